//! What the database shows of our bridge and our ports, and which events lie between two such views: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::ids::{self, Claim, Notes, Role};
use super::rows::{BridgeRow, InterfaceRow, PortRow, Rows};
use super::value::RowId;
use crate::model::{AgentLabel, MacAddr};

/// Number of a port within its bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfPort(NonZeroU16);

impl OfPort {
    /// Largest number of a port (`OFPP_MAX` in OpenFlow 1.0, as Open vSwitch has it).
    const MAX: u16 = 0xfeff;

    /// A number that a port can have: 1 to 65279.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).filter(|_| number <= Self::MAX).map(Self)
    }
}

impl fmt::Display for OfPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether Open vSwitch uses a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It has not looked at it yet.
    Pending,
    /// It works under this number.
    Ready(OfPort),
    /// It cannot use the device, in its own words. It tries again by itself when devices come and go.
    Failed(String),
}

/// One of our ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Its row.
    pub id: RowId,
    /// Its name, which is that of the device.
    pub name: String,
    /// Whether it works.
    pub state: PortState,
    /// The device's address, as Open vSwitch sees it.
    pub mac_in_use: Option<MacAddr>,
    /// The device's MTU (bytes), as Open vSwitch sees it.
    pub mtu: Option<i64>,
    /// Whether the device has carrier.
    pub link_up: Option<bool>,
}

/// The rows of both ports of one NIC, as they were seen while both said that they are ours. The database gives no two rows one identity, not even one after
/// the other, so that a row is ours by it when its ids were emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRows {
    /// That of the internal port.
    pub host: RowId,
    /// That of the NIC's port.
    pub uplink: RowId,
}

/// Rows that are ours, by the name of the host port.
pub(super) type KnownRows = BTreeMap<String, PairRows>;

/// What stands of one NIC: both ports, or what is left of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairView {
    /// The internal port.
    pub host: Option<PortView>,
    /// The NIC's port.
    pub uplink: Option<PortView>,
    /// What is remembered beside them: on the host port, or else on the uplink.
    pub notes: Notes,
    /// Whether one of them does not say any more that it is ours.
    pub is_unmarked: bool,
}

impl PairView {
    /// The rows of both ports, while both say that they are ours.
    #[must_use]
    pub fn rows(&self) -> Option<PairRows> {
        let id = |port: &Option<PortView>| port.as_ref().filter(|_| !self.is_unmarked).map(|port| port.id.clone());
        Some(PairRows { host: id(&self.host)?, uplink: id(&self.uplink)? })
    }

    /// The numbers of both ports, if both work.
    #[must_use]
    pub fn numbers(&self) -> Option<(OfPort, OfPort)> {
        let number = |port: &Option<PortView>| match port.as_ref()?.state {
            PortState::Ready(number) => Some(number),
            PortState::Pending | PortState::Failed(_) => None,
        };
        Some((number(&self.host)?, number(&self.uplink)?))
    }
}

/// The bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeView {
    /// Its datapath: `system`, `netdev`; also another one, of a bridge that others made.
    pub datapath: String,
    /// The versions of OpenFlow that it speaks; empty: all.
    pub protocols: BTreeSet<String>,
}

/// What the database shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchView {
    /// The bridge, if it is there.
    pub bridge: Option<BridgeView>,
    /// Our pairs on it, by the name of the host port.
    pub pairs: BTreeMap<String, PairView>,
    /// Every port and interface of every bridge, ours included: the bridge that holds each name.
    pub names: BTreeMap<String, String>,
    /// The ports among them that an agent of another label has marked.
    pub others: BTreeMap<String, Claim>,
    /// Those of them that are internal ports, whose devices Open vSwitch makes itself.
    pub internal: BTreeMap<String, String>,
    /// Whether `ovs-vswitchd` has followed every change that asked for it.
    pub followed: bool,
}

/// Something that happened to the bridge or to our ports. It says what is dirty; what holds is read anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OvsEvent {
    /// The database answers and was read; what it shows may differ from what it showed before.
    DatabaseBack,
    /// The database does not answer, for this reason.
    DatabaseLost(String),
    /// `ovs-vswitchd` answers on the bridge's management socket. After a restart it has no flow of ours.
    SwitchBack,
    /// It does not, for this reason. Told at each attempt.
    SwitchLost(String),
    /// The bridge is gone.
    BridgeRemoved,
    /// One of our ports is gone.
    PortRemoved(String),
    /// The internal ports of all bridges are others than before: these, each with its bridge.
    InternalPorts(BTreeMap<String, String>),
    /// Flows of ours were removed or changed, by whomever. Not every switch tells it.
    FlowsChanged,
    /// One of our ports appeared, got another number or lost it, failed or recovered, has another address, or one of its pair does not say any more whose it is.
    PortChanged(String, PortState),
}

/// Takes events. Called on the thread that reads the database, so it must not block and must not call back into it.
pub trait OvsSink: Send + Sync + 'static {
    /// One event, in order.
    fn tell(&self, event: OvsEvent);
}

/// What the rows show of this bridge to the agent of this label, who knows these rows for its own.
pub(super) fn view(rows: &Rows, label: &AgentLabel, bridge: &str, known: &KnownRows) -> SwitchView {
    let mut view = SwitchView { internal: internal_ports(rows), ..ours(rows, label, bridge, known) };
    for row in rows.bridges.values() {
        for port in row.ports.iter().filter_map(|id| rows.ports.get(id)) {
            let rows = || port.interfaces.iter().filter_map(|id| rows.interfaces.get(id));
            let claim = ids::claim(&row.name, &port.external_ids).filter(|claim| claim.label != label.as_str());
            view.others.extend(claim.map(|claim| (port.name.clone(), claim)));
            let interfaces = rows().map(|interface| &interface.name);
            view.names.extend(interfaces.chain([&port.name]).map(|name| (name.clone(), row.name.clone())));
        }
    }
    view
}

/// The internal ports of all bridges, whosever they are, each with its bridge.
pub(super) fn internal_ports(rows: &Rows) -> BTreeMap<String, String> {
    let of_port = |id: &RowId| rows.ports.get(id).into_iter().flat_map(|port| &port.interfaces).filter_map(|id| rows.interfaces.get(id));
    let of_bridge = |bridge: &BridgeRow| {
        let internal = bridge.ports.iter().flat_map(of_port).filter(|row| row.kind == "internal");
        internal.map(|row| (row.name.clone(), bridge.name.clone())).collect::<Vec<_>>()
    };
    rows.bridges.values().flat_map(of_bridge).collect()
}

/// As [`view`], without the names of others: what events are made from.
pub(super) fn ours(rows: &Rows, label: &AgentLabel, bridge: &str, known: &KnownRows) -> SwitchView {
    let mut view = SwitchView { followed: rows.progress().is_some_and(|(cur, next)| cur >= next), ..SwitchView::default() };
    let Some((_, row)) = rows.bridge(bridge) else { return view };
    view.bridge = Some(BridgeView { datapath: row.datapath_type.clone(), protocols: row.protocols.clone() });
    let mut peers: BTreeMap<String, (Role, String)> = BTreeMap::new();
    let mut silent = Vec::new();
    for (id, port) in row.ports.iter().filter_map(|id| Some((id, rows.ports.get(id)?))) {
        let seen = port_view(id, port, &port.interfaces.iter().filter_map(|id| rows.interfaces.get(id)).collect::<Vec<_>>());
        let Some(ids) = ids::read(label, &port.external_ids) else {
            silent.extend(ids::may_be_ours(label, &port.external_ids).then_some(seen));
            continue;
        };
        peers.insert(ids.peer.clone(), (ids.role, port.name.clone()));
        match ids.role {
            Role::Host => {
                let pair = view.pairs.entry(port.name.clone()).or_default();
                pair.host = Some(seen);
                pair.notes = ids.notes;
            }
            Role::Uplink => {
                let pair = view.pairs.entry(ids.peer).or_default();
                pair.uplink = Some(seen);
                if pair.host.is_none() {
                    pair.notes = ids.notes;
                }
            }
        }
    }
    for seen in silent {
        // Somebody took the ids of one of the two, and the other one still names it; or those of both.
        let named = match peers.get(&seen.name) {
            Some((Role::Host, host)) => Some((Role::Uplink, host.clone())),
            Some((Role::Uplink, _)) => Some((Role::Host, seen.name.clone())),
            None => None,
        };
        let Some((role, host)) = role_of(known, &seen.id).or(named) else { continue };
        let pair = view.pairs.entry(host).or_default();
        let place = if role == Role::Host { &mut pair.host } else { &mut pair.uplink };
        if place.is_none() {
            (*place, pair.is_unmarked) = (Some(seen), true);
        }
    }
    view
}

/// Which port of which pair a row is known to be.
fn role_of(known: &KnownRows, id: &RowId) -> Option<(Role, String)> {
    known.iter().find_map(|(host, rows)| {
        let role = if rows.host == *id { Some(Role::Host) } else { (rows.uplink == *id).then_some(Role::Uplink) };
        Some((role?, host.clone()))
    })
}

/// A port of ours has one interface, of its own name. With others beside it, it is a bond, and no flow of ours knows its number.
fn port_view(id: &RowId, port: &PortRow, interfaces: &[&InterfaceRow]) -> PortView {
    let interface = interfaces.iter().find(|interface| interface.name == port.name);
    let state = match interface {
        _ if interfaces.len() > 1 => PortState::Failed(format!("it has {} interfaces", interfaces.len())),
        None => PortState::Pending,
        Some(InterfaceRow { error: Some(error), .. }) => PortState::Failed(error.clone()),
        Some(InterfaceRow { ofport: None, .. }) => PortState::Pending,
        Some(InterfaceRow { ofport: Some(number), .. }) => u16::try_from(*number)
            .ok()
            .and_then(OfPort::new)
            .map_or_else(|| PortState::Failed(format!("it has the number {number}")), PortState::Ready),
    };
    PortView {
        id: id.clone(),
        name: port.name.clone(),
        state,
        mac_in_use: interface.and_then(|row| MacAddr::parse(row.mac_in_use.as_deref()?).ok()),
        mtu: interface.and_then(|row| row.mtu),
        link_up: interface.and_then(|row| Some(row.link_state.as_deref()? == "up")),
    }
}

/// What happened between two views.
pub(super) fn events(before: &SwitchView, after: &SwitchView) -> Vec<OvsEvent> {
    let mut events = Vec::new();
    if before.bridge.is_some() && after.bridge.is_none() {
        events.push(OvsEvent::BridgeRemoved);
    }
    let (was, is) = (ports(before), ports(after));
    let gone = was.iter().filter(|(id, _)| !is.contains_key(*id));
    events.extend(gone.map(|(_, port)| OvsEvent::PortRemoved(port.name.clone())));
    let differs =
        |id: &RowId, port: &PortView| was.get(id).is_none_or(|was| (&was.state, was.mac_in_use) != (&port.state, port.mac_in_use));
    let changed = is.iter().filter(|(id, port)| differs(id, port));
    events.extend(changed.map(|(_, port)| OvsEvent::PortChanged(port.name.clone(), port.state.clone())));
    let is_unmarked = |host: &String| before.pairs.get(host).is_some_and(|pair| pair.is_unmarked);
    let unmarked = after.pairs.iter().filter(|(host, pair)| pair.is_unmarked && !is_unmarked(host));
    let ports = unmarked.flat_map(|(_, pair)| [&pair.host, &pair.uplink]).flatten();
    events.extend(ports.map(|port| OvsEvent::PortChanged(port.name.clone(), port.state.clone())));
    events
}

fn ports(view: &SwitchView) -> BTreeMap<&RowId, &PortView> {
    view.pairs.values().flat_map(|pair| [&pair.host, &pair.uplink]).flatten().map(|port| (&port.id, port)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn label() -> AgentLabel {
        AgentLabel::new("vpp1").unwrap()
    }

    fn ids(owner: &str, role: &str, peer: &str) -> Value {
        json!(["map", [["foreign", "kept"], ["vnf-agent-owner", owner], ["vnf-agent-role", role], ["vnf-agent-peer", peer]]])
    }

    fn rows(ofport: Value, error: Value) -> Rows {
        let mut rows = Rows::default();
        rows.take(&json!({
            "Open_vSwitch": {"o": {"insert": {"cur_cfg": 3, "next_cfg": 3}}},
            "Bridge": {
                "b": {"insert": {"name": "br-int", "datapath_type": "netdev", "ports": ["set", [["uuid", "p1"], ["uuid", "p2"], ["uuid", "p3"]]]}},
                "c": {"insert": {"name": "br-other", "ports": ["uuid", "p4"]}},
            },
            "Port": {
                "p1": {"insert": {"name": "eth0", "interfaces": ["uuid", "i1"], "external_ids": ids("vpp1", "host", "eth0~")}},
                "p2": {"insert": {"name": "eth0~", "interfaces": ["uuid", "i2"], "external_ids": ids("vpp1", "uplink", "eth0")}},
                "p3": {"insert": {"name": "eth1", "interfaces": ["uuid", "i3"], "external_ids": ids("vpp10", "host", "eth1~")}},
                "p4": {"insert": {"name": "bond0", "interfaces": ["set", [["uuid", "i4"], ["uuid", "i5"]]], "external_ids": ids("vpp1", "host", "x")}},
            },
            "Interface": {
                "i1": {"insert": {"name": "eth0", "ofport": ofport, "error": error, "mac_in_use": "02:00:00:00:00:01", "mtu": 1400}},
                "i2": {"insert": {"name": "eth0~", "ofport": 1, "link_state": "down"}},
                "i3": {"insert": {"name": "eth1", "ofport": 7}},
                "i4": {"insert": {"name": "eth4"}}, "i5": {"insert": {"name": "eth5"}},
            },
        })).unwrap();
        rows
    }

    fn seen(ofport: Value, error: Value) -> SwitchView {
        view(&rows(ofport, error), &label(), "br-int", &KnownRows::new())
    }

    #[test]
    fn our_pairs_and_nobody_elses() {
        let view = seen(json!(2), json!(["set", []]));
        assert_eq!(view.pairs.keys().collect::<Vec<_>>(), ["eth0"], "not of another label, not of another bridge");
        let pair = &view.pairs["eth0"];
        assert_eq!(pair.numbers(), OfPort::new(2).zip(OfPort::new(1)));
        assert_eq!((pair.host.as_ref().unwrap().mtu, pair.uplink.as_ref().unwrap().link_up), (Some(1400), Some(false)));
        assert_eq!(view.names.keys().collect::<Vec<_>>(), ["bond0", "eth0", "eth0~", "eth1", "eth4", "eth5"]);
        assert_eq!((view.names["eth4"].as_str(), view.names["eth1"].as_str(), view.followed), ("br-other", "br-int", true));
        let others: Vec<_> = view.others.iter().map(|(name, claim)| (name.as_str(), claim.label.as_str(), claim.bridge.as_str())).collect();
        assert_eq!(others, [("eth1", "vpp10", "br-int")]);
        assert_eq!(view.bridge.unwrap().datapath, "netdev");
    }

    #[test]
    fn ports_that_do_not_work() {
        let none = json!(["set", []]);
        for (ofport, error, state) in [
            (none.clone(), none.clone(), PortState::Pending),
            (json!(-1), json!("could not open network device eth0"), PortState::Failed("could not open network device eth0".to_owned())),
            (json!(-1), none.clone(), PortState::Failed("it has the number -1".to_owned())),
            (json!(0), none.clone(), PortState::Failed("it has the number 0".to_owned())),
            (json!(65279), none.clone(), PortState::Ready(OfPort::new(65279).unwrap())),
            (json!(65280), none, PortState::Failed("it has the number 65280".to_owned())),
        ] {
            let pair = &seen(ofport, error).pairs["eth0"];
            assert_eq!(pair.host.as_ref().unwrap().state, state);
        }
    }

    #[test]
    fn half_a_pair_is_found() {
        let mut rows = rows(json!(2), json!(["set", []]));
        rows.take(&json!({"Bridge": {"b": {"modify": {"ports": ["uuid", "p1"]}}}, "Port": {"p1": {"delete": null}}})).unwrap();
        let view = view(&rows, &label(), "br-int", &KnownRows::new());
        let pair = &view.pairs["eth0"];
        assert_eq!((pair.host.is_none(), pair.uplink.as_ref().unwrap().name.as_str()), (true, "eth0~"));
        assert_eq!(pair.numbers(), None);
    }

    #[test]
    fn a_port_that_lost_its_ids_is_known_by_the_other_one() {
        let empty = json!(["set", []]);
        let whole = seen(json!(2), empty.clone());
        for (port, taken) in [("p1", ""), ("p2", ""), ("p1", "another"), ("p2", "another")] {
            let mut rows = rows(json!(2), empty.clone());
            // A difference: what is told again goes.
            let keys = json!(["map", [["vnf-agent-owner", "vpp1"], ["vnf-agent-role", if port == "p1" { "host" } else { "uplink" }]]]);
            rows.take(&json!({"Port": {port: {"modify": {"external_ids": keys}}}})).unwrap();
            if taken == "another" {
                rows.take(&json!({"Port": {port: {"modify": {"external_ids": ["map", [["vnf-agent-owner", "another"]]]}}}})).unwrap();
            }
            let now = view(&rows, &label(), "br-int", &KnownRows::new());
            assert!(!events(&whole, &now).is_empty(), "{port} {taken}");
            let found = &now.pairs["eth0"];
            let expected = whole.pairs["eth0"].numbers().filter(|_| taken.is_empty());
            assert_eq!(found.numbers(), expected, "{port} {taken}: {found:?}");
            assert_eq!((found.is_unmarked, found.rows()), (taken.is_empty(), None), "{port} {taken}");
        }
    }

    #[test]
    fn ports_that_lost_their_ids_are_known_by_their_rows_unless_somebody_says_that_they_are_his() {
        let empty = json!(["set", []]);
        let whole = seen(json!(2), empty.clone());
        let known: KnownRows = [("eth0".to_owned(), whole.pairs["eth0"].rows().unwrap())].into();
        for (owner, is_ours) in [("", true), ("vpp1", true), ("another", false)] {
            let mut rows = rows(json!(2), empty.clone());
            for (port, role, peer) in [("p1", "host", "eth0~"), ("p2", "uplink", "eth0")] {
                let keys = json!(["map", [["vnf-agent-owner", "vpp1"], ["vnf-agent-role", role], ["vnf-agent-peer", peer]]]);
                rows.take(&json!({"Port": {port: {"modify": {"external_ids": keys}}}})).unwrap();
                rows.take(&json!({"Port": {port: {"modify": {"external_ids": ["map", [["vnf-agent-owner", owner]]]}}}})).unwrap();
            }
            let found = view(&rows, &label(), "br-int", &known).pairs;
            assert!(view(&rows, &label(), "br-int", &KnownRows::new()).pairs.is_empty(), "{owner}: nothing else tells of them");
            let pair = found.get("eth0").map(|pair| (pair.numbers(), pair.is_unmarked, pair.notes.clone()));
            assert_eq!(pair, is_ours.then(|| (whole.pairs["eth0"].numbers(), true, Notes::default())), "{owner}");
        }
    }

    #[test]
    fn what_happened() {
        let empty = json!(["set", []]);
        let (ready, pending) = (seen(json!(2), empty.clone()), seen(empty.clone(), empty.clone()));
        assert_eq!(events(&ready, &ready), []);
        assert_eq!(events(&ready, &pending), [OvsEvent::PortChanged("eth0".to_owned(), PortState::Pending)]);
        let moved = seen(json!(5), empty);
        assert_eq!(events(&ready, &moved), [OvsEvent::PortChanged("eth0".to_owned(), PortState::Ready(OfPort::new(5).unwrap()))]);
        let removed = ["eth0", "eth0~"].map(|name| OvsEvent::PortRemoved(name.to_owned()));
        assert_eq!(events(&ready, &SwitchView::default()), [vec![OvsEvent::BridgeRemoved], removed.to_vec()].concat());
        assert_eq!(events(&SwitchView::default(), &ready).len(), 2);
    }
}
