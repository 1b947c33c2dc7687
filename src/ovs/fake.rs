//! Open vSwitch in memory, for tests that need its faults at a certain step: any call may fail before or after it took effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::view::{BridgeView, OfPort, PairView, PortState, PortView, SwitchView};
use super::{Cookie, Failing, FlowError, FlowSet, FlowSink, NewPair, Notes, OvsError, PairRows, RowId, Standing, Switch};
use crate::model::{Datapath, MacAddr};

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`Switch::read`].
    Read,
    /// [`Switch::ensure_bridge`].
    EnsureBridge,
    /// [`Switch::create_pair`].
    CreatePair,
    /// [`Switch::delete_pair`].
    DeletePair,
    /// [`Switch::write_notes`].
    WriteNotes,
    /// [`Switch::wait_ready`].
    WaitReady,
    /// [`Switch::wait_gone`].
    WaitGone,
    /// [`Switch::wait_followed`].
    WaitFollowed,
    /// [`FlowSink::replace`].
    Replace,
    /// [`FlowSink::remove`].
    Remove,
    /// [`FlowSink::standing`].
    Standing,
    /// [`FlowSink::forget_connections`].
    ForgetConnections,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not reachable; nothing was done.
    Unreachable,
    /// Refused; nothing was done.
    Refused,
    /// No answer, and nothing was done. A call that waits is just not done in time.
    UnknownUndone,
    /// No answer, and it was done.
    UnknownDone,
}

/// The fake: a database, a switch that follows at once, and flow tables.
#[derive(Default)]
pub struct FakeOvs(Mutex<State>);

#[derive(Default)]
struct State {
    view: SwitchView,
    flows: BTreeSet<Standing>,
    next_port: u16,
    faults: BTreeMap<Call, VecDeque<Fault>>,
    calls: Vec<Call>,
    /// Names of devices that the switch cannot use.
    unusable: BTreeSet<String>,
}

impl FakeOvs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next of these calls fail; several are used up in turn.
    pub fn fail(&self, call: Call, fault: Fault) {
        self.lock().faults.entry(call).or_default().push_back(fault);
    }

    /// Lets the switch refuse a device of this name from now on, or take it again.
    pub fn set_usable(&self, name: &str, usable: bool) {
        let mut state = self.lock();
        if usable {
            state.unusable.remove(name)
        } else {
            state.unusable.insert(name.to_owned())
        };
        state.refresh();
    }

    /// All calls up to now, those that failed included.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Removes one port, as others may do.
    pub fn remove_port(&self, name: &str) {
        let mut state = self.lock();
        for pair in state.view.pairs.values_mut() {
            pair.host.take_if(|port| port.name == name);
            pair.uplink.take_if(|port| port.name == name);
        }
        state.view.pairs.retain(|_, pair| pair.host.is_some() || pair.uplink.is_some());
        state.view.names.remove(name);
    }

    /// Forgets all flows, as a restart of the switch does.
    pub fn forget_flows(&self) {
        self.lock().flows.clear();
    }

    /// Makes a call: `work` unless a fault is due.
    fn call<T>(&self, call: Call, attempted: &str, work: impl FnOnce(&mut State) -> Result<T, OvsError>) -> Result<T, OvsError> {
        let mut state = self.lock();
        state.calls.push(call);
        let (attempted, cause) = (attempted.to_owned(), "a fault of the test".to_owned());
        match state.faults.get_mut(&call).and_then(VecDeque::pop_front) {
            None => work(&mut state),
            Some(Fault::Unreachable) => Err(OvsError::Unreachable { attempted, cause }),
            Some(Fault::Refused) => Err(OvsError::Refused { attempted, cause }),
            Some(fault) => {
                let waits = [Call::WaitReady, Call::WaitGone, Call::WaitFollowed].contains(&call);
                if fault == Fault::UnknownDone {
                    work(&mut state)?;
                }
                Err(if waits {
                    OvsError::NotYet { attempted, limit: Duration::ZERO, last: cause }
                } else {
                    OvsError::Unknown { attempted, cause }
                })
            }
        }
    }

    fn flow_call<T>(&self, call: Call, work: impl FnOnce(&mut State) -> T) -> Result<T, FlowError> {
        self.call(call, "work on the flows", |state| Ok(work(state))).map_err(|error| match error {
            OvsError::Unknown { attempted, .. } => FlowError::NoAnswer { attempted, limit: Duration::ZERO },
            other => FlowError::Refused { attempted: "work on the flows".to_owned(), cause: other.to_string() },
        })
    }
}

impl State {
    fn port(&mut self, name: &str, mac: Option<MacAddr>, mtu: Option<i64>) -> PortView {
        self.next_port += 1;
        let id = RowId::new(&format!("port-{}", self.next_port));
        let state = OfPort::new(self.next_port).map_or(PortState::Pending, PortState::Ready);
        PortView { id, name: name.to_owned(), state, mac_in_use: mac, mtu, link_up: Some(true) }
    }

    /// Applies what the switch thinks of devices.
    fn refresh(&mut self) {
        let Self { view, unusable, next_port, .. } = self;
        for port in view.pairs.values_mut().flat_map(|pair| [&mut pair.host, &mut pair.uplink]).flatten() {
            match (&port.state, unusable.contains(&port.name)) {
                (PortState::Ready(_) | PortState::Pending, true) => port.state = PortState::Failed("No such device".to_owned()),
                (PortState::Failed(_), false) => {
                    *next_port += 1;
                    port.state = OfPort::new(*next_port).map_or(PortState::Pending, PortState::Ready);
                }
                _ => {}
            }
        }
    }
}

impl Switch for FakeOvs {
    fn read(&self) -> Result<SwitchView, OvsError> {
        self.call(Call::Read, "read the ports", |state| Ok(SwitchView { followed: true, ..state.view.clone() }))
    }

    fn read_within(&self, _limit: Duration) -> Result<SwitchView, OvsError> {
        self.read()
    }

    /// Its ports have no ids that anybody could empty.
    fn know(&self, _host: &str, _rows: Option<&PairRows>) {}

    fn ensure_bridge(&self, datapath: Datapath) -> Result<BridgeView, OvsError> {
        self.call(Call::EnsureBridge, "make the bridge", |state| {
            let new = || BridgeView { datapath: datapath.as_str().to_owned(), protocols: BTreeSet::new() };
            Ok(state.view.bridge.get_or_insert_with(new).clone())
        })
    }

    fn create_pair(&self, pair: &NewPair) -> Result<PairRows, OvsError> {
        let attempted = format!("make the ports `{}` and `{}`", pair.host, pair.uplink);
        self.call(Call::CreatePair, &attempted, |state| {
            if state.view.bridge.is_none() {
                return Err(OvsError::NoBridge { attempted: attempted.clone(), bridge: "fake".to_owned() });
            }
            let names = [pair.host.as_str(), pair.uplink.as_str()];
            if let Some(name) = names.iter().find(|name| state.view.names.contains_key(**name)) {
                return Err(OvsError::Taken { attempted: attempted.clone(), name: (*name).to_owned() });
            }
            let uplink = state.port(names[1], Some(pair.mac), None);
            let host = state.port(names[0], Some(pair.mac), Some(pair.mtu.into()));
            let rows = PairRows { host: host.id.clone(), uplink: uplink.id.clone() };
            let made = PairView { host: Some(host), uplink: Some(uplink), notes: pair.notes.clone(), is_unmarked: false };
            state.view.pairs.insert(names[0].to_owned(), made);
            state.view.names.extend(names.map(|name| (name.to_owned(), "fake".to_owned())));
            state.refresh();
            Ok(rows)
        })
    }

    fn delete_pair(&self, host: &str) -> Result<(), OvsError> {
        self.call(Call::DeletePair, &format!("remove the ports of `{host}`"), |state| {
            let pair = state.view.pairs.remove(host).unwrap_or_default();
            for port in [pair.host, pair.uplink].into_iter().flatten() {
                state.view.names.remove(&port.name);
            }
            Ok(())
        })
    }

    fn write_notes(&self, host: &str, notes: &Notes) -> Result<(), OvsError> {
        let attempted = format!("write down what belongs to the ports of `{host}`");
        self.call(Call::WriteNotes, &attempted, |state| match state.view.pairs.get_mut(host) {
            Some(pair) => {
                pair.notes = notes.clone();
                Ok(())
            }
            None => Err(OvsError::NoPort { attempted: attempted.clone(), port: host.to_owned() }),
        })
    }

    fn wait_ready(&self, host: &str, mac: MacAddr, failing: Failing, limit: Duration) -> Result<(OfPort, OfPort), OvsError> {
        let attempted = format!("wait for the ports of `{host}`");
        self.call(Call::WaitReady, &attempted, |state| {
            super::client::ready(&attempted, host, state.view.pairs.get(host), mac, failing).into_result(attempted.clone(), limit)
        })
    }

    fn wait_gone(&self, host: &str, limit: Duration) -> Result<(), OvsError> {
        let attempted = format!("wait until the ports of `{host}` are gone");
        self.call(Call::WaitGone, &attempted, |state| {
            let last = "the database has them".to_owned();
            let there = state.view.pairs.contains_key(host);
            if there { Err(OvsError::NotYet { attempted: attempted.clone(), limit, last }) } else { Ok(()) }
        })
    }

    fn wait_followed(&self, _limit: Duration) -> Result<(), OvsError> {
        self.call(Call::WaitFollowed, "wait for ovs-vswitchd", |_| Ok(()))
    }
}

impl FlowSink for FakeOvs {
    fn replace(&self, flows: &FlowSet) -> Result<(), FlowError> {
        self.flow_call(Call::Replace, |state| state.flows = flows.standing())
    }

    fn remove(&self, cookies: &[Cookie]) -> Result<(), FlowError> {
        self.flow_call(Call::Remove, |state| state.flows.retain(|found| !cookies.contains(&found.cookie)))
    }

    fn standing(&self) -> Result<BTreeSet<Standing>, FlowError> {
        self.flow_call(Call::Standing, |state| state.flows.clone())
    }

    fn forget_connections(&self) -> Result<(), FlowError> {
        self.flow_call(Call::ForgetConnections, |_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HostIfName;

    fn pair() -> NewPair {
        let name = |text| HostIfName::new(text).unwrap();
        let mac = MacAddr::new([2, 0, 0, 0, 0, 1]).unwrap();
        NewPair { host: name("eth0"), uplink: name("eth0~"), mac, mtu: 1400, notes: Notes::default() }
    }

    #[test]
    fn faults_before_and_after_the_deed() {
        let ovs = FakeOvs::default();
        assert!(matches!(ovs.create_pair(&pair()), Err(OvsError::NoBridge { .. })));
        ovs.ensure_bridge(Datapath::System).unwrap();
        for (fault, done) in
            [(Fault::Unreachable, false), (Fault::UnknownUndone, false), (Fault::Refused, false), (Fault::UnknownDone, true)]
        {
            ovs.fail(Call::CreatePair, fault);
            assert!(ovs.create_pair(&pair()).is_err());
            assert_eq!(ovs.read().unwrap().pairs.contains_key("eth0"), done, "{fault:?}");
        }
        assert!(matches!(ovs.create_pair(&pair()), Err(OvsError::Taken { .. })));
        assert!(ovs.wait_ready("eth0", pair().mac, Failing::Ends, Duration::ZERO).is_ok());
        ovs.set_usable("eth0~", false);
        assert!(matches!(ovs.wait_ready("eth0", pair().mac, Failing::Ends, Duration::ZERO), Err(OvsError::PortFailed { .. })));
        assert!(matches!(ovs.wait_ready("eth0", pair().mac, Failing::MayPass, Duration::ZERO), Err(OvsError::NotYet { .. })));
        ovs.remove_port("eth0~");
        assert!(matches!(ovs.wait_ready("eth0", pair().mac, Failing::Ends, Duration::ZERO), Err(OvsError::NoPort { .. })));
        ovs.delete_pair("eth0").unwrap();
        ovs.wait_gone("eth0", Duration::ZERO).unwrap();
        assert!(ovs.read().unwrap().names.is_empty());
    }
}
