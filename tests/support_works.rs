//! The support itself: what the other tests take for granted.

mod support;

use support::{Canaries, Host, eventually};

#[test]
fn a_host_is_private_and_leaves_nothing_behind() {
    let host = Host::with_netns(&["red"]);
    assert!(host.has_netns("red"));
    assert!(!std::path::Path::new("/run/netns/red").exists(), "the machine sees nothing of it");
    host.run("ip -n red link add veth1 type veth peer name veth2");
    host.run("ip -n red address add 10.11.1.1/24 dev veth1");
    host.run("ip -n red link set veth1 up");
    let veth1 = host.link("red", "veth1").unwrap();
    assert_eq!((veth1.kind.as_str(), veth1.up, veth1.mtu), ("veth", true, 1500));
    assert_eq!(veth1.addresses, ["10.11.1.1/24"]);
    let file = host.netns_file("red");
    drop(host);
    eventually("the namespace is gone", || !file.exists());
}

#[test]
fn canaries_sing_when_touched() {
    let host = Host::with_netns(&["red"]);
    let canaries = Canaries::plant(&host, &["", "red"]);
    canaries.assert_untouched();
    host.run("ip -n red link set veth10 mtu 1400");
    let heard = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| canaries.assert_untouched()));
    assert!(heard.is_err());
}

#[test]
fn digests_tell_a_difference_and_ignore_an_index() {
    let host = Host::with_netns(&["red"]);
    let make = || host.run("ip -n red link add veth1 address 02:00:00:00:00:01 type veth peer name veth2 address 02:00:00:00:00:02");
    make();
    let before = host.digest(&["red"]);
    host.run("ip -n red link del veth1");
    assert_ne!(host.digest(&["red"]), before);
    make();
    assert_eq!(host.digest(&["red"]), before);
}

#[test]
fn a_closure_runs_inside_a_namespace() {
    let host = Host::with_netns(&["red"]);
    let inode = |path: &str| support::host::inode(std::path::Path::new(path));
    let outside = inode("/proc/thread-self/ns/net");
    let inside = host.inside("red", || inode("/proc/thread-self/ns/net"));
    assert_eq!(inside, support::host::inode(&host.netns_file("red")));
    assert_ne!(inside, outside);
    assert_eq!(inode("/proc/thread-self/ns/net"), outside);
}

#[test]
fn etcd_serves_freezes_and_forgets() {
    let host = Host::new();
    let mut etcd = host.start_etcd();
    let [veth1, _] = support::the_pair();
    etcd.put(&veth1);
    assert_eq!(etcd.get(&support::etcd::config_key("veth1")), Some(veth1));
    etcd.kill();
    etcd.start();
    assert_eq!(etcd.keys(support::etcd::PREFIX), [support::etcd::config_key("veth1")]);
    etcd.wipe();
    etcd.start();
    assert!(etcd.keys(support::etcd::PREFIX).is_empty());
}

#[test]
fn docker_lives_on_its_host_and_leaves_nothing_behind() {
    let host = Host::contained();
    let mut docker = host.start_docker();
    docker.run("one", "ms1");
    let netns = docker.netns("one");
    host.run(&format!("nsenter --net={netns} ip link add veth1 type veth peer name veth2"));
    assert_eq!(host.link_names(&netns), ["veth1", "veth2"]);
    let groups = format!("/sys/fs/cgroup/pids{}", host.cgroup());
    let group = std::path::Path::new(&groups);
    let unified = std::path::PathBuf::from(format!("/sys/fs/cgroup{}", host.cgroup()));
    assert!(group.exists() || unified.exists());
    docker.ask(&["restart", "one"]);
    assert_eq!(host.link_names(&docker.netns("one")), [""; 0], "another namespace");
    docker.kill();
    docker.start();
    docker.stop();
    docker.start();
    assert_eq!(docker.pid("one"), 0, "ended with the daemon");
    docker.ask(&["start", "one"]);
    let running = host.netns_file(&docker.netns("one"));
    assert!(running.exists());
    drop(docker);
    drop(host);
    assert!(!running.exists(), "the container ended with its host");
    assert!(!group.exists() && !unified.exists(), "control groups");
}
