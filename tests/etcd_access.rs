//! Being let in to etcd, and finding the way to a member that can answer: users, certificates, several members.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod store_support;

use std::time::{Duration, Instant};

use store_support::etcd::{Certificates, Etcd};
use store_support::{Log, SOON, eventually, in_own_netns, key, options, quick, relative, start, store};
use vnf_agent::store::etcd::EtcdOptions;
use vnf_agent::store::{ConfigStore, Write};

fn write(name: &str, value: &str) -> Vec<Write> {
    vec![Write::Put(relative(name), value.as_bytes().to_vec())]
}

/// Turns authentication on: root, and the agent's user who may only touch the agent's prefix.
fn with_users(etcd: &mut Etcd) {
    for command in [
        "role add root",
        "user add root:top",
        "user grant-role root root",
        "role add agent",
        "role grant-permission agent --prefix=true readwrite /vnf-agent/vpp1/",
        "user add agent:first",
        "user grant-role agent agent",
        "auth enable",
    ] {
        etcd.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    etcd.ctl_args = vec!["--user=root:top".to_owned()];
}

#[test]
fn tokens_that_run_out_and_passwords_that_change() {
    in_own_netns(async || {
        let mut etcd = Etcd::start_with(&["--auth-token-ttl", "2"]);
        with_users(&mut etcd);
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        std::fs::write(&password, "first\n").unwrap();
        let given = EtcdOptions { user: Some("agent".to_owned()), password_file: Some(password.clone()), ..options(&[&etcd.endpoint()]) };
        let mut source = start(store(given.clone()).with_timing(quick()));
        let writer = store(given.clone());
        source.live(SOON).await;
        writer.write(write("a", "1")).await.unwrap();
        source.sink.wait_value("a", Some("1")).await;
        // Longer than a token lives; the tokens of both connections have been idle or in use.
        tokio::time::sleep(Duration::from_secs(4)).await;
        writer.write(write("a", "2")).await.unwrap();
        source.sink.wait_value("a", Some("2")).await;
        // A new watch on a connection whose token has run out.
        source.resync.notify_one();
        source.sink.wait_listings(2).await;
        etcd.put(&key("a"), "3");
        source.sink.wait_value("a", Some("3")).await;
        assert!(source.health.borrow().live);
        // Another password: refused until the file has it, then let in without a restart.
        for command in ["user delete agent", "user add agent:second", "user grant-role agent agent"] {
            etcd.ctl(&command.split(' ').collect::<Vec<_>>());
        }
        source.end().await;
        let mut source = start(store(given).with_timing(quick()));
        let down = eventually(&mut source.health, SOON, "refused", |health| health.message != "starting").await;
        assert!(down.message.contains("invalid user ID or password"), "{}", down.message);
        std::fs::write(&password, "second").unwrap();
        source.live(SOON).await;
        source.sink.wait_value("a", Some("3")).await;
        source.end().await;
    });
}

#[test]
fn a_user_without_the_right_is_told_so() {
    in_own_netns(async || {
        let mut etcd = Etcd::start();
        with_users(&mut etcd);
        etcd.ctl(&["role", "revoke-permission", "agent", "--prefix=true", "/vnf-agent/vpp1/"]);
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        std::fs::write(&password, "first").unwrap();
        let given = EtcdOptions { user: Some("agent".to_owned()), password_file: Some(password), ..options(&[&etcd.endpoint()]) };
        let mut source = start(store(given.clone()));
        eventually(&mut source.health, SOON, "denied", |health| health.message.contains("permission denied")).await;
        let refused = store(given).write(write("a", "1")).await.unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{refused}");
        etcd.ctl(&["role", "grant-permission", "agent", "--prefix=true", "readwrite", "/vnf-agent/vpp1/"]);
        source.live(SOON).await;
        source.end().await;
    });
}

#[test]
fn certificates_are_checked_shown_and_read_again() {
    in_own_netns(async || {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(dir.path());
        certificates.issue("server");
        certificates.issue("agent");
        let other_dir = tempfile::tempdir().unwrap();
        let strangers = Certificates::new(other_dir.path());
        let [ca, cert, key_file, agent, agent_key] =
            ["ca.pem", "server.pem", "server.key", "agent.pem", "agent.key"].map(|name| certificates.path(name));
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let args = ["--cert-file", &path(&cert), "--key-file", &path(&key_file), "--trusted-ca-file", &path(&ca), "--client-cert-auth"];
        let mut etcd = Etcd::member("m0", 2379, "m0=http://127.0.0.1:2380", &args);
        etcd.ctl_args = vec![format!("--cacert={}", path(&ca)), format!("--cert={}", path(&agent)), format!("--key={}", path(&agent_key))];
        etcd.up();
        etcd.put(&key("a"), "1");
        let tls = |ca: &std::path::Path| EtcdOptions { ca: Some(ca.to_owned()), ..options(&["127.0.0.1:2379"]) };
        // The wrong authority, then no certificate of our own: both say so.
        let mut source = start(store(tls(&strangers.path("ca.pem"))));
        eventually(&mut source.health, SOON, "unknown issuer", |health| health.message.contains("UnknownIssuer")).await;
        source.end().await;
        let mut source = start(store(tls(&ca)));
        eventually(&mut source.health, SOON, "no certificate", |health| health.message.to_lowercase().contains("certificate")).await;
        source.end().await;
        let log = Log::listen();
        // A file that is missing is named, and taken up when it is there; when it changes, the connection is made anew.
        let ours = dir.path().join("ours.pem");
        let given = EtcdOptions { cert: Some(ours.clone()), key: Some(agent_key.clone()), ..tls(&ca) };
        let mut source = start(store(given.clone()).with_timing(quick()));
        eventually(&mut source.health, SOON, "no file", |health| health.message.contains("ours.pem")).await;
        std::fs::copy(&agent, &ours).unwrap();
        source.live(SOON).await;
        let warned = log.count(" WARN ", "not readable");
        source.sink.wait_value("a", Some("1")).await;
        let (listings, since) = (source.sink.told().listings.len(), source.health.borrow().since);
        std::fs::write(&ours, std::fs::read_to_string(&agent).unwrap() + "\n").unwrap();
        source.sink.wait_listings(listings + 1).await;
        assert_eq!((source.live(SOON).await.since, log.count(" WARN ", "not readable")), (since, warned), "that was no outage");
        store(given).write(write("a", "2")).await.unwrap();
        source.sink.wait_value("a", Some("2")).await;
        source.end().await;
    });
}

/// Three members of one cluster.
fn three() -> Vec<Etcd> {
    let cluster = "m0=http://127.0.0.1:2380,m1=http://127.0.0.1:2480,m2=http://127.0.0.1:2580";
    let member = |(name, port)| Etcd::member(name, port, cluster, &[]).run_as(20_000 + u32::from(port));
    let mut members: Vec<Etcd> = [("m0", 2379), ("m1", 2479), ("m2", 2579)].into_iter().map(member).collect();
    members.iter_mut().for_each(Etcd::spawn);
    members.iter().for_each(Etcd::wait_ready);
    members
}

/// The member to which the source says that it is connected.
fn ours(message: &str, members: &[Etcd]) -> usize {
    members.iter().position(|member| message.contains(&member.endpoint())).unwrap_or_else(|| panic!("no member in {message}"))
}

/// C61, with several members: the connected one is killed, or frozen.
#[test]
fn another_member_takes_over_from_a_killed_or_a_frozen_one() {
    in_own_netns(async || {
        let mut members = three();
        let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
        let given = EtcdOptions { endpoints, ..EtcdOptions::default() };
        let mut source = start(store(given.clone()));
        let live = source.live(SOON).await;
        let first = ours(&live.message, &members);
        members[first].kill();
        source.down(SOON).await;
        let live = source.live(SOON).await;
        let second = ours(&live.message, &members);
        assert_ne!(first, second);
        members[first].up();
        members[second].pause();
        source.down(SOON).await;
        let live = source.live(SOON).await;
        assert_ne!(ours(&live.message, &members), second);
        let writer = store(given);
        let end = Instant::now() + SOON;
        while let Err(error) = writer.write(write("a", "1")).await {
            assert!(Instant::now() < end, "{error}");
        }
        source.sink.wait_value("a", Some("1")).await;
        members[second].cont();
        source.end().await;
    });
}

#[test]
fn a_member_without_majority_is_left() {
    in_own_netns(async || {
        let mut members = three();
        // Only one endpoint is known: it must say that it has no leader, not keep silent.
        let mut source = start(store(options(&[&members[0].endpoint()])));
        source.live(SOON).await;
        members[1].kill();
        members[2].kill();
        // The watch ends because it asks for a leader; silence alone would take longer to be noticed.
        let down = source.down(SOON).await;
        assert!(down.last_heard.is_some());
        eventually(&mut source.health, SOON, "why", |health| {
            health.message.contains("no leader") || health.message.contains("timed out") || health.message.contains("no answer")
        })
        .await;
        members[1].up();
        source.live(SOON).await;
        source.end().await;
    });
}

/// C62: cut off from the majority, our member is left for another endpoint.
#[test]
fn our_member_is_cut_off_from_the_others() {
    in_own_netns(async || {
        let members = three();
        let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
        let mut source = start(store(EtcdOptions { endpoints, ..EtcdOptions::default() }));
        let live = source.live(SOON).await;
        let cut = ours(&live.message, &members);
        // Members talk over their peer ports only: our member's, and the connections that it made to the others.
        members[cut].cut_off();
        let other = &members[(cut + 1) % 3];
        let end = Instant::now() + SOON;
        while !other.try_ctl(&["put", &key("a"), "majority"]).0 {
            assert!(Instant::now() < end, "the majority does not take writes");
        }
        source.sink.wait_value("a", Some("majority")).await;
        let live = source.live(SOON).await;
        assert_ne!(ours(&live.message, &members), cut);
        source.end().await;
    });
}
