//! What the end-to-end tests stand on: a host of their own, the real binaries in it, and independent eyes on the kernel.
//!
//! A [`Host`] is a fresh network namespace and a fresh mount namespace with an empty `/run`: `ip netns`, the agent and etcd work in it with
//! their usual paths and ports, many at a time, and nothing of it is seen outside. It is held by one child process that ends with
//! the test, whatever ends the test; the kernel then removes mounts, namespaces and links by itself.
#![allow(dead_code, unused_imports, reason = "each test file uses its own part of the support")]

pub mod agent;
pub mod canary;
pub mod dice;
pub mod docker;
pub mod etcd;
pub mod host;
pub mod kernel;
pub mod last_write;
pub mod nic;
pub mod ovs;
pub mod ovs_events;
pub mod ovsdb_proxy;
pub mod tun;
pub mod wire;
pub mod wish;
pub mod world;

pub use agent::Agent;
pub use canary::Canaries;
pub use dice::Dice;
pub use docker::Docker;
pub use etcd::Etcd;
pub use host::Host;
pub use last_write::LastWrite;
pub use nic::{NETWORK, Nic, Probes};
pub use ovs::Ovs;
pub use ovs_events::OvsEvents;
pub use ovsdb_proxy::OvsdbProxy;
pub use wire::{Point, Wire};
pub use wish::{pair, the_pair, veth};
pub use world::World;

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long a condition may take. Generous: the tests say what must become true, never how fast on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_ok(what, || if condition() { Ok(()) } else { Err("not yet") });
}

/// Waits until the probe is `Ok`, and returns its value.
///
/// # Panics
/// When it is not within [`PATIENCE`], with the last thing that the probe said.
pub fn eventually_ok<T, E: Debug>(what: &str, probe: impl FnMut() -> Result<T, E>) -> T {
    eventually_within(PATIENCE, what, probe)
}

/// As [`eventually_ok`], with another limit.
///
/// # Panics
/// When it is not `Ok` within the limit, with the last thing that the probe said.
pub fn eventually_within<T, E: Debug>(limit: Duration, what: &str, mut probe: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("waited in vain: {what}; last seen: {last:#?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until two readings, taken by the same probe, are equal and as wished.
///
/// # Panics
/// When they are not within [`PATIENCE`].
pub fn eventually_eq<T: PartialEq + Debug>(what: &str, wanted: &T, mut probe: impl FnMut() -> T) {
    eventually_ok(what, || {
        let seen = probe();
        if seen == *wanted { Ok(()) } else { Err(seen) }
    });
}
