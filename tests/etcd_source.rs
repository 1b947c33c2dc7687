//! The etcd source on real etcd processes, each in a network namespace of its own, through the faults that etcd has in the field.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod store_support;

use std::sync::Arc;
use std::time::Duration;

use store_support::etcd::Etcd;
use store_support::{PREFIX, Running, in_own_netns, key};
use vnf_agent::store::etcd::{EtcdOptions, EtcdStore, Timing};

fn options(endpoints: &[&str]) -> EtcdOptions {
    EtcdOptions { endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(), ..EtcdOptions::default() }
}

fn store(options: EtcdOptions) -> EtcdStore {
    EtcdStore::new(options, PREFIX.to_owned()).expect("good options")
}

fn start(store: EtcdStore) -> Running {
    let store = Arc::new(store);
    Running::start("etcd", |sink, health, resync, stop| store.run_source(sink, health, resync, stop))
}

/// A heart that beats faster, for tests that wait for it.
fn quick() -> Timing {
    Timing { heartbeat: Duration::from_millis(300), ..Timing::default() }
}

const SOON: Duration = Duration::from_secs(10);

#[test]
fn lists_then_follows_and_sees_no_neighbour() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        etcd.put(&key("a"), "1");
        etcd.put("/vnf-agent/vpp10/linux/config/v1/interface/a", "neighbour");
        etcd.put("/vnf-agent/vpp1/linux/status/v1/interface/a", "status");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        source.sink.wait_value("a", Some("1")).await;
        etcd.put(&key("b"), "2");
        etcd.put("/vnf-agent/vpp10/linux/config/v1/interface/b", "neighbour");
        etcd.del(&key("a"));
        source.sink.wait_value("a", None).await;
        assert_eq!(source.sink.told().view.len(), 1);
        assert_eq!(source.health.borrow().revision, 7);
        source.end().await;
    });
}
