//! Whether a NIC may be touched: everything that could cut the host off, and that can be known before, is refused here.

use std::fmt;

use crate::external_node::selection::Candidate;
use crate::model::name::HOST_IF_NAME_MAX;
use crate::model::nic::{NicAddress, NicLink};
use crate::model::node::short_hash;
use crate::model::owner::mark_of_any;

/// What ends an uplink's name. Antrea's way, so that whoever knows that finds its way here.
const UPLINK_SUFFIX: char = '~';
/// Bytes of a long name that its uplink's name keeps: five of the hash and the suffix follow.
const KEPT_OF_LONG_NAME: usize = HOST_IF_NAME_MAX - 6;

const IFF_LOOPBACK: u32 = 0x8;
const IFF_POINTOPOINT: u32 = 0x10;
const IFF_SLAVE: u32 = 0x800;

/// A program that looks after a NIC's addresses by itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// systemd-networkd.
    Networkd,
    /// NetworkManager.
    NetworkManager,
    /// A DHCP client of this name runs for the NIC.
    DhcpClient(String),
    /// An address has a lease: somebody renews it.
    Lease(String),
    /// A route was made by a DHCP client.
    DhcpRoute(String),
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Networkd => f.write_str("systemd-networkd looks after it"),
            Self::NetworkManager => f.write_str("NetworkManager looks after it"),
            Self::DhcpClient(name) => write!(f, "the DHCP client {name} runs for it"),
            Self::Lease(address) => write!(f, "its address {address} has a lease that somebody renews"),
            Self::DhcpRoute(route) => write!(f, "its route {route} was made by a DHCP client"),
        }
    }
}

/// What is known of a NIC before it is touched.
#[derive(Clone, Debug)]
pub struct Examined<'a> {
    /// The NIC.
    pub nic: &'a Candidate,
    /// All links of the host.
    pub links: &'a [NicLink],
    /// The bridge that it is to be put behind.
    pub bridge: &'a str,
    /// Bridges of Open vSwitch that have a port of its name or of the uplink's which is not ours: that name, and the bridge.
    pub bridges: Vec<(String, String)>,
    /// Who looks after it.
    pub managers: &'a [Manager],
    /// Whether it may be taken from who looks after it.
    pub allow_managed: bool,
}

/// Why a NIC is not touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// Its kind cannot be a bridge's uplink, or is not handled.
    Kind(String),
    /// An agent made it for a wish.
    MadeByAgent(String),
    /// It is a port of another link.
    PortOf(String),
    /// The bridge has, or is to have, its name or the uplink's.
    IsBridge(String),
    /// Open vSwitch has a port of its name, or of the uplink's, that is not ours.
    PortTaken {
        /// The name.
        port: String,
        /// The bridge.
        bridge: String,
    },
    /// Other links stand on it.
    Under(Vec<String>),
    /// It is down.
    Down,
    /// It has no hardware address of six bytes.
    NoMac,
    /// The uplink's name is taken.
    UplinkNameTaken {
        /// The name.
        uplink: String,
        /// By which link.
        by: String,
    },
    /// Its name cannot be written safely where it must be written.
    Name(String),
    /// Somebody looks after its addresses and would undo the move, or lose the lease.
    Managed(Vec<Manager>),
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "a link of the kind {kind} cannot be put behind a bridge"),
            Self::MadeByAgent(mark) => {
                write!(f, "an agent has made it for a wish of its own (it is marked by {mark}): it is no NIC of the host")
            }
            Self::PortOf(master) => write!(f, "it is a port of {master}; take it out there first"),
            Self::IsBridge(name) => write!(f, "the bridge is called {name} as well (--ovs-bridge); give it another name"),
            Self::PortTaken { port, bridge } => write!(f, "the bridge {bridge} of Open vSwitch has a port {port}; remove it there first"),
            Self::Under(links) => write!(f, "other links stand on it ({}), which would lose their way to the network", links.join(", ")),
            Self::Down => f.write_str("it is down; set it up first"),
            Self::NoMac => f.write_str("it has no hardware address of six bytes"),
            Self::UplinkNameTaken { uplink, by } if uplink == by => write!(f, "the uplink's name {uplink} is taken by another link"),
            Self::UplinkNameTaken { uplink, by } => write!(f, "the uplink's name {uplink} is an alternative name of {by}"),
            Self::Name(name) => write!(f, "the name `{}` holds characters other than letters, digits and . _ - @ ~", name.escape_debug()),
            Self::Managed(managers) => {
                let all: Vec<String> = managers.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{}: give it static addresses and take it from there, or allow it by --node-managed-nic allow",
                    all.join(", and ")
                )
            }
        }
    }
}

/// The uplink's name: the NIC's own one with a tilde; of one of 15 bytes the first nine, five digits of its hash, and the tilde.
#[must_use]
pub fn uplink_name(own: &str) -> String {
    if own.len() < HOST_IF_NAME_MAX {
        return format!("{own}{UPLINK_SUFFIX}");
    }
    let cut = (0..=KEPT_OF_LONG_NAME).rev().find(|at| own.is_char_boundary(*at)).unwrap_or_default();
    format!("{}{}{UPLINK_SUFFIX}", own.get(..cut).unwrap_or_default(), short_hash(own))
}

/// The uplink's name for a NIC that may be touched.
///
/// # Errors
/// Every reason why not.
pub fn examine(examined: &Examined<'_>) -> Result<String, Vec<Unsuitable>> {
    let link = &examined.nic.link;
    let uplink = uplink_name(&link.name);
    let mut reasons = Vec::new();
    reasons.extend(kind(link));
    reasons.extend(mark_of_any(link.group, &link.alias).map(Unsuitable::MadeByAgent));
    reasons.extend(role(link, examined.links));
    if link.is_called(examined.bridge) || uplink == examined.bridge {
        reasons.push(Unsuitable::IsBridge(examined.bridge.to_owned()));
    }
    reasons.extend(examined.bridges.iter().map(|(port, bridge)| Unsuitable::PortTaken { port: port.clone(), bridge: bridge.clone() }));
    if !link.up {
        reasons.push(Unsuitable::Down);
    }
    if link.mac().is_none() {
        reasons.push(Unsuitable::NoMac);
    }
    if !link.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@~".contains(&b)) {
        reasons.push(Unsuitable::Name(link.name.clone()));
    }
    let taken = examined.links.iter().find(|other| other.is_called(&uplink));
    reasons.extend(taken.map(|other| Unsuitable::UplinkNameTaken { uplink: uplink.clone(), by: other.name.clone() }));
    if !examined.managers.is_empty() && !examined.allow_managed {
        reasons.push(Unsuitable::Managed(examined.managers.to_vec()));
    }
    if reasons.is_empty() { Ok(uplink) } else { Err(reasons) }
}

fn kind(link: &NicLink) -> Option<Unsuitable> {
    if link.flags & IFF_LOOPBACK != 0 {
        return Some(Unsuitable::Kind("loopback".into()));
    }
    if link.flags & IFF_POINTOPOINT != 0 {
        return Some(Unsuitable::Kind("point-to-point link".into()));
    }
    // Physical devices have no kind; a veth is a container's or a test's NIC; the rest either takes frames itself or is no NIC.
    match &*link.kind {
        "" | "veth" | "netdevsim" | "vlan" => None,
        kind => Some(Unsuitable::Kind(kind.into())),
    }
}

fn role(link: &NicLink, links: &[NicLink]) -> Vec<Unsuitable> {
    let name_of = |index: u32| links.iter().find(|l| l.ifindex == index).map_or_else(|| format!("link {index}"), |l| l.name.clone());
    let mut reasons = Vec::new();
    if link.master != 0 {
        reasons.push(Unsuitable::PortOf(name_of(link.master)));
    } else if link.flags & IFF_SLAVE != 0 {
        reasons.push(Unsuitable::PortOf("another link".into()));
    }
    let on_it = standing_on(link, links);
    if !on_it.is_empty() {
        reasons.push(Unsuitable::Under(on_it));
    }
    reasons
}

/// Names of the links that stand on this one, and go with it.
pub(super) fn standing_on(link: &NicLink, links: &[NicLink]) -> Vec<String> {
    let ports = links.iter().filter(|other| other.master == link.ifindex);
    // A veth tells its other end as the link below; that one does not stand on it.
    let above = links.iter().filter(|other| other.lower == link.ifindex && other.kind != "veth");
    ports.chain(above).map(|other| other.name.clone()).collect()
}

/// What the addresses themselves tell of who looks after them.
#[must_use]
pub fn leases(addresses: &[NicAddress]) -> Vec<Manager> {
    addresses.iter().filter(|a| a.is_leased()).filter_map(NicAddress::address).map(|a| Manager::Lease(a.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nic::{Attribute, Message};
    use crate::model::{AgentLabel, InterfaceName, MarkKind, Owner};

    fn link(index: u32, name: &str) -> NicLink {
        NicLink { mac: "02:00:00:00:00:01".into(), flags: 0x1043, ..NicLink::of_test(index, name) }
    }

    fn examined(nic: NicLink, others: Vec<NicLink>, managers: &[Manager], allow_managed: bool) -> Result<String, Vec<Unsuitable>> {
        let candidate = Candidate { link: nic.clone(), addresses: Vec::new() };
        let links: Vec<NicLink> = std::iter::once(nic).chain(others).collect();
        examine(&Examined { nic: &candidate, links: &links, bridge: "br-int", bridges: Vec::new(), managers, allow_managed })
    }

    #[test]
    fn uplink_names_fit_and_differ() {
        assert_eq!(uplink_name("eth0"), "eth0~");
        assert_eq!(uplink_name("12345678901234"), "12345678901234~");
        let (a, b) = (uplink_name("enp10s31f6np1d0"), uplink_name("enp10s31f6np1d1"));
        assert!(a.len() == 15 && b.len() == 15 && a != b && a.starts_with("enp10s31f") && a.ends_with('~'), "{a} {b}");
        let wide = uplink_name("üüüüüüüe");
        assert!(wide.len() <= 15 && wide.starts_with("üüüü"), "{wide}");
    }

    #[test]
    fn a_plain_nic_is_suitable() {
        assert_eq!(examined(link(2, "eth0"), vec![link(3, "eth1")], &[], false), Ok("eth0~".into()));
        let own_altname = NicLink { altnames: vec!["eth0".into(), "enp0s3".into()], ..link(2, "eth0") };
        assert_eq!(examined(own_altname, Vec::new(), &[], false), Ok("eth0~".into()));
        // The other end of a veth is told as the link below it.
        let veth = NicLink { kind: "veth".into(), lower: 3, ..link(2, "eth0") };
        let other_end = NicLink { kind: "veth".into(), lower: 2, ..link(3, "p0") };
        assert_eq!(examined(veth, vec![other_end], &[], false), Ok("eth0~".into()));
    }

    #[test]
    fn what_would_cut_the_host_off_is_refused() {
        let refused = |nic: NicLink, others: Vec<NicLink>| examined(nic, others, &[], true).unwrap_err();
        let bridge = NicLink { kind: "bridge".into(), ..link(9, "br0") };
        assert_eq!(refused(NicLink { master: 9, ..link(2, "eth0") }, vec![bridge.clone()]), [Unsuitable::PortOf("br0".into())]);
        assert_eq!(refused(NicLink { flags: 0x843, ..link(2, "eth0") }, vec![]), [Unsuitable::PortOf("another link".into())]);
        assert_eq!(refused(bridge, vec![]), [Unsuitable::Kind("bridge".into())]);
        assert_eq!(refused(NicLink { flags: 0x49, ..link(1, "lo") }, vec![]), [Unsuitable::Kind("loopback".into())]);
        let vlan = NicLink { kind: "vlan".into(), lower: 2, ..link(7, "eth0.7") };
        assert_eq!(refused(link(2, "eth0"), vec![vlan]), [Unsuitable::Under(vec!["eth0.7".into()])]);
        let all = refused(NicLink { up: false, mac: String::new(), ..link(2, "eth\"0") }, vec![link(3, "eth\"0~")]);
        assert_eq!(all.len(), 4, "{all:?}");
        let holder = NicLink { altnames: vec!["eth0~".into()], ..link(3, "eth1") };
        let taken = Unsuitable::UplinkNameTaken { uplink: "eth0~".into(), by: "eth1".into() };
        assert_eq!(refused(link(2, "eth0"), vec![holder]), [taken]);
    }

    #[test]
    fn what_an_agent_made_is_no_nic() {
        let owner = Owner::new(AgentLabel::new("other").unwrap());
        let named = owner.alias(MarkKind::Veth, &InterfaceName::new("veth1").unwrap());
        for (group, alias, mark) in [
            (owner.group(), named.as_str(), "its alias `vnf-agent:other:veth:veth1`"),
            (0, &named, "its alias `vnf-agent:other:veth:veth1`"),
            (owner.group(), "", "its group"),
            (owner.doomed_group(), "words of a user", "its group"),
        ] {
            let veth = NicLink { kind: "veth".into(), group, alias: alias.to_owned(), ..link(2, "eth0") };
            let refused = examined(veth, Vec::new(), &[], true).unwrap_err();
            assert!(matches!(&refused[..], [Unsuitable::MadeByAgent(said)] if said.starts_with(mark)), "{refused:?}");
        }
        let others = NicLink { group: 0x5500_0001, alias: "vnf-agents: none".into(), ..link(2, "eth0") };
        assert_eq!(examined(others, Vec::new(), &[], false), Ok("eth0~".into()));
    }

    #[test]
    fn a_port_of_another_bridge_is_left_there() {
        let nic = Candidate { link: link(2, "eth0"), addresses: Vec::new() };
        let bridges = vec![("eth0".to_owned(), "br-ex".to_owned())];
        let examined = |bridge| Examined { nic: &nic, links: &[], bridge, bridges: bridges.clone(), managers: &[], allow_managed: true };
        let taken = Unsuitable::PortTaken { port: "eth0".into(), bridge: "br-ex".into() };
        for bridge in ["eth0", "eth0~"] {
            assert_eq!(examine(&examined(bridge)).unwrap_err(), [Unsuitable::IsBridge(bridge.into()), taken.clone()]);
        }
        assert_eq!(examine(&examined("br-int")).unwrap_err(), [taken]);
    }

    #[test]
    fn who_looks_after_it_is_asked_first() {
        let managers = [Manager::Networkd, Manager::Lease("192.0.2.5/24".into())];
        let refused = examined(link(2, "eth0"), Vec::new(), &managers, false).unwrap_err();
        let text = refused[0].to_string();
        assert!(text.contains("systemd-networkd looks after it, and its address 192.0.2.5/24 has a lease"), "{text}");
        assert_eq!(examined(link(2, "eth0"), Vec::new(), &managers, true), Ok("eth0~".into()));
    }

    #[test]
    fn leases_are_recognised() {
        let address = |valid: u32, proto: u8| {
            let info: Vec<u8> = [valid, valid, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
            let attributes = vec![Attribute(2, vec![192, 0, 2, 5]), Attribute(6, info), Attribute(11, vec![proto])];
            NicAddress::new(Message { header: vec![2, 24, 0, 0, 0, 0, 0, 0], attributes }).unwrap()
        };
        assert_eq!(leases(&[address(3600, 0)]), [Manager::Lease("192.0.2.5/24".into())]);
        // For ever; and from a router, which goes on advertising to the port.
        assert!(leases(&[address(u32::MAX, 0), address(3600, 2)]).is_empty());
    }
}
