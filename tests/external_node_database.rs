//! A database that loses answers, stalls or is cut off, at each transaction of a move: the host is reachable throughout, and all is as wished in the end.

mod node_support;
mod support;

use std::sync::atomic::Ordering;

use node_support::*;
use serde_json::json;
use support::{Agent, Etcd, Host, Nic, Ovs, OvsdbProxy, eventually};

/// What the requests of a move have in them: those of the way there, then those of the way back.
const ATTACH: [&str; 5] = [BRIDGE, r#""mtu_request":1400"#, r#""op":"select""#, READ, r#"["external_ids","delete""#];
const DETACH: [&str; 2] = [r#"["ports","delete""#, READ];
/// Made once, in the first round.
const BRIDGE: &str = r#""datapath_type":"netdev""#;
/// In every request; so the first one, which reads.
const READ: &str = r#""op":"assert""#;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The answer is lost; it was done.
    Lost,
    /// The connection is cut, and the request arrives late.
    Late,
    /// Nothing passes for longer than anybody waits.
    Stall,
}

struct Bed<'h> {
    host: &'h Host,
    nic: Nic<'h>,
    ovs: Ovs<'h>,
    etcd: Etcd<'h>,
    agent: Agent<'h>,
    proxy: OvsdbProxy,
    before: Vec<String>,
}

impl<'h> Bed<'h> {
    fn new(host: &'h Host) -> Self {
        let nic = host.add_nic("nic0", 0);
        let before = settled_shape(host, "nic0");
        let (ovs, etcd) = (host.start_ovs(), host.start_etcd());
        // Beside the real socket: the switch's own one is looked for there.
        let proxy = OvsdbProxy::start(host.outside("/run/openvswitch/proxy.sock"), ovs.socket());
        let agent = agent(host).with(&["--ovs-db", "unix:/run/openvswitch/proxy.sock"]).started();
        Self { host, nic, ovs, etcd, agent, proxy, before }
    }

    /// Prepares a fault at the next request with this text.
    fn arm(&self, fault: Fault, marker: &str) {
        let faults = &self.proxy.faults;
        match fault {
            Fault::Lost => *faults.lose_answer.lock().expect("no panic") = Some(marker.to_owned()),
            Fault::Late | Fault::Stall => faults.hold(marker),
        }
    }

    /// Lets the world see it through.
    fn is_hit(&self, fault: Fault, marker: &str, (lost, held): (usize, usize)) {
        let faults = &self.proxy.faults;
        let hit = || faults.lost.load(Ordering::SeqCst) > lost || faults.held.load(Ordering::SeqCst) > held;
        eventually_long(&format!("{fault:?} hits {marker}"), || if hit() { Ok(()) } else { Err(status(&self.etcd)) });
        if matches!(fault, Fault::Stall) {
            faults.stall.store(true, Ordering::SeqCst);
            wait_reachable(self.host, &self.nic, "while the database is stalled");
            faults.stall.store(false, Ordering::SeqCst);
        }
        wait_reachable(self.host, &self.nic, "after the fault");
        faults.release();
    }

    fn hits(&self) -> (usize, usize) {
        (self.proxy.faults.lost.load(Ordering::SeqCst), self.proxy.faults.held.load(Ordering::SeqCst))
    }

    fn ports(&self) -> Vec<String> {
        let mut ports: Vec<String> = self.ovs.vsctl("list-ports br-int").lines().map(str::to_owned).collect();
        ports.sort();
        ports
    }
}

fn sweep(fault: Fault) {
    let host = Host::new();
    let bed = Bed::new(&host);
    let talk = Talk::start(&host, "", support::NETWORK, "10.199.0.1:5000".parse().expect("an address"));
    talk.wait_for_some();
    let markers = ATTACH.iter().map(|marker| (marker, true)).chain(DETACH.iter().map(|marker| (marker, false)));
    for (marker, attach) in markers {
        let (hits, come, go) = (bed.hits(), || wish(&bed.etcd, &json!([{"name": "nic0"}])), || unwish(&bed.etcd));
        if attach {
            bed.arm(fault, marker);
            come();
            bed.is_hit(fault, marker, hits);
        } else {
            come();
            wait_attached(&bed.etcd, &["nic0"]);
            bed.arm(fault, marker);
        }
        if attach {
            wait_attached(&bed.etcd, &["nic0"]);
            assert_eq!(bed.ports(), ["nic0", "nic0~"], "{fault:?} at {marker}");
            bed.nic.passes_all_but(5001, &[]);
        }
        go();
        if !attach {
            bed.is_hit(fault, marker, hits);
        }
        wait_plain(&host, "nic0", &bed.before);
        eventually("no port is left", || bed.ports().is_empty());
        wait_reachable(&host, &bed.nic, "afterwards");
        talk.wait_for_some();
    }
    talk.end();
    assert!(!bed.agent.log().contains("panicked"));
}

#[test]
fn answers_are_lost() {
    sweep(Fault::Lost);
}

#[test]
fn requests_arrive_late() {
    sweep(Fault::Late);
}

#[test]
fn nothing_passes_for_a_while() {
    sweep(Fault::Stall);
}
