//! Links and addresses on the real kernel: made, changed, read back.

mod kernel_support;

use kernel_support::*;
use nix::errno::Errno;
use vnf_agent::linux::{Done, Kernel, KernelOp, LinkChange, LinuxKernel, NewAddress, NewLink, RestoredAddress};
use vnf_agent::model::{LinkId, LinkKind, ObservedAddress};

/// A listing shows a carrier when the link watch has run, in its own time; whoever asks for one link need not wait (on kernels before 6.8 he must).
#[test]
fn who_asks_for_a_link_is_told_of_its_carrier() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (a, b) = bed.pair((&red, "x"), (&blue, "x"));
    let ask = |kernel: &mut LinuxKernel, link: LinkId| kernel.read_settings(link.netns, &[link.ifindex]).swap_remove(0).unwrap().unwrap();
    assert!(ask(&mut bed.kernel, a).lacks_carrier());
    assert_eq!(bed.execute_one(up(b)), Ok(Done::Ok));
    assert_eq!(bed.execute_one(add(a, "10.0.0.1/24")), Ok(Done::Ok));
    // So that the other ends can be placed.
    bed.kernel.read_netns(red.id).unwrap();
    for link in [a, b] {
        let seen = bed.until("carrier", |kernel| Some(ask(kernel, link)).filter(|seen| !seen.lacks_carrier()));
        assert_eq!((seen.addresses.len(), seen.peer.and_then(|peer| peer.netns).is_some()), (0, true), "settings, and nothing else");
    }
    assert_eq!(bed.kernel.read_settings(a.netns, &[no_such_index()]), [Ok(None)]);
}

#[test]
fn a_pair_is_complete_from_its_first_moment() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    // A link of this name in the agent's own namespace is in nobody's way.
    bed.own.ip("link add eth0 type bridge");
    let op = KernelOp::CreateVeth {
        a: NewLink { mac: Some(mac(1)), mtu: 1400, ..new_link(&red, "eth0") },
        b: NewLink { mac: Some(mac(2)), mtu: 9000, ..new_link(&blue, "eth0") },
        group: GROUP,
        a_up: true,
    };
    let before = bed.kernel.counters();
    let (a, b) = ends(&red, &blue, bed.execute_one(op).unwrap());
    let cost = bed.kernel.counters();
    // The indexes come with the answer: nothing is read.
    assert_eq!((cost.writes - before.writes, cost.reads - before.reads), (1, 0));
    let (first, second) = (bed.link(a).unwrap(), bed.link(b).unwrap());
    assert_eq!((&*first.name, first.mac, first.mtu, first.group, first.admin_up), ("eth0", Some(mac(1)), 1400, GROUP, true));
    assert_eq!((&*second.name, second.mac, second.mtu, second.group, second.admin_up), ("eth0", Some(mac(2)), 9000, GROUP, false));
    assert_eq!((&first.kind, &second.kind), (&LinkKind::Veth, &LinkKind::Veth));
    assert_eq!(first.peer.unwrap().ifindex, b.ifindex);
    assert_eq!(second.peer.unwrap().ifindex, a.ifindex);
    assert!(first.peer.unwrap().nsid.is_some());
    let own: Vec<_> = bed.kernel.read_netns(bed.own.id).unwrap().links.into_iter().filter(|l| &*l.name == "eth0").collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].kind, LinkKind::Other("bridge".into()));
}

#[test]
fn both_ends_in_one_namespace() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, b) = bed.pair((&red, "x"), (&red, "y"));
    assert_eq!(bed.link(a).unwrap().peer.unwrap().nsid, None);
    assert_eq!(&*bed.link(b).unwrap().name, "y");
}

#[test]
fn indexes_are_right_when_many_are_made_at_once() {
    let mut bed = Bed::new();
    let spaces: Vec<_> = (0..4).map(|_| bed.netns()).collect();
    let pairs: Vec<_> = (0..200usize).map(|i| (&spaces[i % 4], &spaces[(i + 1) % 4], format!("a{i}"), format!("b{i}"))).collect();
    let ops: Vec<_> = pairs.iter().map(|(a, b, x, y)| create((a, x), (b, y))).collect();
    let answers = bed.kernel.execute(&ops);
    for ((a, b, x, y), answer) in pairs.iter().zip(answers) {
        let (first, second) = ends(a, b, answer.unwrap());
        assert_eq!(&*bed.link(first).unwrap().name, x);
        assert_eq!(&*bed.link(second).unwrap().name, y);
    }
}

#[test]
fn many_pairs_take_five_messages_each_and_few_sends() {
    let mut bed = Bed::new();
    let spaces: Vec<_> = (0..4).map(|_| bed.netns()).collect();
    for netns in &spaces {
        bed.kernel.read_netns(netns.id).unwrap();
    }
    let place = |n: usize| (&spaces[n % 4], &spaces[(n + 1) % 4]);
    let before = bed.kernel.counters();
    let creations: Vec<_> = (0..100).map(|n| create((place(n).0, &format!("a{n}")), (place(n).1, &format!("b{n}")))).collect();
    let mut rest = Vec::new();
    for (n, answer) in bed.kernel.execute(&creations).into_iter().enumerate() {
        let (a, b) = ends(place(n).0, place(n).1, answer.unwrap());
        let alias = |end: char| LinkChange { alias: Some(format!("{end}{n}")), ..LinkChange::default() };
        rest.push(set(a, alias('a')));
        rest.push(add(a, &format!("10.0.{n}.1/24")));
        rest.push(set(b, LinkChange { up: Some(true), ..alias('b') }));
        rest.push(add(b, &format!("10.0.{n}.2/24")));
    }
    assert!(bed.kernel.execute(&rest).iter().all(Result::is_ok));
    let after = bed.kernel.counters();
    assert_eq!((after.writes - before.writes, after.reads - before.reads, after.moves), (500, 0, 0));
    // Per namespace one send of creations, and two of the 100 other messages.
    assert_eq!(after.sends - before.sends, 4 + 4 * 2);
}

#[test]
fn a_taken_name_leaves_nothing_behind_and_stops_nobody() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    blue.ip("link add taken type bridge");
    let ops = [
        create((&red, "one"), (&blue, "one")),
        create((&red, "two"), (&blue, "taken")),
        create((&red, "three"), (&blue, "three")),
        create((&red, "three"), (&blue, "four")),
    ];
    let answers = bed.kernel.execute(&ops);
    assert!(matches!(answers[0], Ok(Done::Created { .. })), "{answers:?}");
    assert!(matches!(answers[2], Ok(Done::Created { .. })), "{answers:?}");
    for failed in [1, 3] {
        let error = answers[failed].as_ref().unwrap_err();
        assert!(error.is(Errno::EEXIST), "{error}");
        assert!(error.attempted.starts_with("create veth t"), "{error}");
    }
    assert_eq!(bed.names(&red), ["lo", "one", "three"]);
    let mut blue_names = bed.names(&blue);
    blue_names.sort();
    assert_eq!(blue_names, ["lo", "one", "taken", "three"]);
}

#[test]
fn the_ends_of_a_pair_never_have_the_same_index() {
    let mut bed = Bed::new();
    // Both count from the same number on: left to the kernel, both ends would get the same index, and their carrier up to a second later.
    let (red, blue) = (bed.netns(), bed.netns());
    let pairs: Vec<_> = (0..8).map(|n| bed.pair((&red, &format!("a{n}")), (&blue, &format!("b{n}")))).collect();
    assert!(pairs.iter().all(|(a, b)| a.ifindex != b.ifindex), "{pairs:?}");
    let firsts: std::collections::BTreeSet<_> = pairs.iter().map(|(a, _)| a.ifindex).collect();
    assert_eq!(firsts.len(), pairs.len());
}

#[test]
fn a_taken_index_is_left_to_its_owner() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (first, _) = bed.pair((&red, "a0"), (&blue, "b0"));
    // The next ones that would be given.
    let taken: Vec<u32> = (1..=3).map(|n| first.ifindex.get() + n).collect();
    for index in &taken {
        red.ip(&format!("link add f{index} index {index} mtu 1300 type bridge"));
    }
    let foreign = red.show("-d addr show type bridge");
    let ops = [
        create((&red, "a1"), (&blue, "b1")),
        create((&red, "a0"), (&blue, "b2")),
        create((&red, "a3"), (&blue, "b0")),
        create((&red, "a4"), (&blue, "b4")),
    ];
    let answers = bed.kernel.execute(&ops);
    let (one, one_b) = ends(&red, &blue, answers[0].clone().unwrap());
    let (four, four_b) = ends(&red, &blue, answers[3].clone().unwrap());
    assert!(!taken.contains(&one.ifindex.get()) && !taken.contains(&four.ifindex.get()), "{answers:?}");
    for (end, name) in [(one, "a1"), (one_b, "b1"), (four, "a4"), (four_b, "b4")] {
        assert_eq!(&*bed.link(end).unwrap().name, name);
    }
    // Index and name taken: told as what it is, and nothing is left of it.
    for failed in [1, 2] {
        assert!(answers[failed].as_ref().unwrap_err().is(Errno::EEXIST), "{answers:?}");
    }
    let steps = [
        up(one),
        set(one_b, LinkChange { alias: Some("ours".into()), ..LinkChange::default() }),
        add(one, "10.0.0.1/24"),
        up(four),
        add(four_b, "10.0.1.1/24"),
    ];
    assert!(bed.kernel.execute(&steps).iter().all(Result::is_ok));
    assert_eq!(red.show("-d addr show type bridge"), foreign, "the links of others are as they were");
    assert_eq!(bed.names(&red).len(), 1 + 1 + taken.len() + 2);
    assert_eq!(bed.names(&blue).len(), 1 + 1 + 2);
}

#[test]
fn everything_of_a_link_changes_in_one_request() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (a, b) = bed.pair((&red, "x"), (&blue, "x"));
    let change = LinkChange {
        name: Some(name("renamed")),
        mac: Some(mac(7)),
        mtu: Some(1300),
        up: Some(true),
        group: Some(GROUP + 1),
        alias: Some("vnf-agent:vpp1:veth:x".into()),
    };
    let before = bed.kernel.counters().writes;
    assert_eq!(bed.kernel.execute(&[set(b, change), up(a)]), [Ok(Done::Ok), Ok(Done::Ok)]);
    assert_eq!(bed.kernel.counters().writes - before, 2);
    let link = bed.link(b).unwrap();
    assert_eq!((&*link.name, link.mac, link.mtu, link.admin_up), ("renamed", Some(mac(7)), 1300, true));
    assert_eq!((link.group, link.alias.as_deref()), (GROUP + 1, Some("vnf-agent:vpp1:veth:x")));

    let longest = "é".repeat(127) + "x";
    let alias = |text: &str| LinkChange { alias: Some(text.to_owned()), ..LinkChange::default() };
    assert_eq!(bed.execute_one(set(b, alias(&longest))), Ok(Done::Ok));
    assert_eq!(bed.link(b).unwrap().alias.as_deref(), Some(&*longest));
    assert_eq!(bed.execute_one(set(b, alias(""))), Ok(Done::Ok));
    assert_eq!(bed.link(b).unwrap().alias, None);

    let down = LinkChange { up: Some(false), ..LinkChange::default() };
    assert_eq!(bed.execute_one(set(b, down)), Ok(Done::Ok));
    assert!(!bed.link(b).unwrap().admin_up);
    assert_eq!(bed.execute_one(set(b, LinkChange::default())), Ok(Done::AlreadySo));
}

#[test]
fn refusals_come_with_the_kernels_words() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    let mtu = LinkChange { mtu: Some(10), ..LinkChange::default() };
    let error = bed.execute_one(set(a, mtu)).unwrap_err();
    assert!(error.is(Errno::EINVAL), "{error}");
    assert_eq!(error.text, "mtu less than device minimum");
    assert_eq!(error.attempted, format!("set mtu 10 of link {}@{}", a.ifindex, red.handle().inode));
    let nowhere = LinkId { netns: red.id, ifindex: no_such_index() };
    assert!(bed.execute_one(up(nowhere)).unwrap_err().is(Errno::ENODEV));
    assert_eq!(bed.link(nowhere), None);
}

#[test]
fn addresses_of_both_families() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, b) = bed.pair((&red, "x"), (&red, "y"));
    let ops = [up(b), add(a, "10.0.0.1/24"), add(a, "10.0.0.2/24"), add(a, "10.0.0.1/25"), add(a, "fd00::1/64"), add(a, "fe80::5/64")];
    assert!(bed.kernel.execute(&ops).iter().all(Result::is_ok));
    red.ip("address add 10.9.9.9/32 dev x");
    let link = bed.link(a).unwrap();
    let find = |text: &str| link.addresses.iter().find(|o| o.address == address(text)).unwrap_or_else(|| panic!("{text}: {link:?}"));
    assert_eq!((find("10.0.0.1/24").proto, find("10.0.0.1/24").broadcast, find("10.0.0.1/24").secondary), (PROTO, None, false));
    assert!(find("10.0.0.2/24").secondary);
    assert!(!find("10.0.0.1/25").secondary);
    let global: &ObservedAddress = find("fd00::1/64");
    assert_eq!((global.proto, global.tentative, global.dad_failed, global.kernel_made), (PROTO, false, false, false));
    assert!(!find("fe80::5/64").kernel_made);
    assert_eq!(find("10.9.9.9/32").proto, 0);
    assert_eq!(find("10.0.0.1/24").label, None);
    assert!(link.addresses.iter().any(|o| o.kernel_made), "the kernel's own link-local: {link:?}");
    // The whole namespace says the same as the one link.
    let whole = bed.kernel.read_netns(red.id).unwrap();
    assert!(whole.complete);
    let again = whole.links.iter().find(|l| l.ifindex == a.ifindex).unwrap();
    assert_eq!(again.addresses.len(), link.addresses.len());

    let ops =
        [remove(a, "10.0.0.1/25"), remove(a, "fd00::1/64"), remove(a, "10.0.0.1/25"), remove(a, "fd00::1/64"), remove(a, "10.0.0.77/24")];
    let gone = bed.kernel.execute(&ops);
    assert_eq!(gone, [Ok(Done::Ok), Ok(Done::Ok), Ok(Done::AlreadySo), Ok(Done::AlreadySo), Ok(Done::AlreadySo)]);
    let left = bed.link(a).unwrap().addresses;
    assert!(left.iter().any(|o| o.address == address("10.0.0.1/24")));
    assert!(!left.iter().any(|o| o.address == address("10.0.0.1/25")));
    let nowhere = LinkId { netns: red.id, ifindex: no_such_index() };
    assert_eq!(bed.execute_one(remove(nowhere, "10.0.0.1/24")), Ok(Done::AlreadySo));
    assert!(bed.execute_one(add(nowhere, "10.0.0.1/24")).unwrap_err().is(Errno::ENODEV));
}

#[test]
fn an_address_that_is_there_becomes_ours() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    red.ip("address add 10.0.0.1/24 dev x");
    red.ip("address add fd00::1/64 dev x nodad");
    assert_eq!(bed.kernel.execute(&[add(a, "10.0.0.1/24"), add(a, "fd00::1/64")]), [Ok(Done::Ok), Ok(Done::Ok)]);
    let addresses = bed.link(a).unwrap().addresses;
    let ours: Vec<_> = addresses.iter().filter(|o| o.proto == PROTO).map(|o| o.address).collect();
    assert_eq!(ours, [address("10.0.0.1/24"), address("fd00::1/64")]);
}

#[test]
fn an_address_is_put_back_as_it_was() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    red.ip("address add 10.0.0.1/24 broadcast 10.0.0.255 label x:old scope link dev x");
    let was = bed.link(a).unwrap().addresses.into_iter().find(|o| o.address == address("10.0.0.1/24")).unwrap();
    assert_eq!((was.scope, was.broadcast, was.label.as_deref()), (253, Some([10, 0, 0, 255].into()), Some("x:old")));
    assert_eq!(bed.execute_one(remove(a, "10.0.0.1/24")), Ok(Done::Ok));
    let restore = RestoredAddress { scope: was.scope, broadcast: was.broadcast, label: was.label.clone() };
    let address = NewAddress { address: was.address, proto: was.proto, nodad: true, restore: Some(restore) };
    assert_eq!(bed.execute_one(KernelOp::AddAddress { link: a, address }), Ok(Done::Ok));
    assert!(bed.link(a).unwrap().addresses.contains(&was));
}

#[test]
fn ipv6_is_enabled_on_one_link_only() {
    let mut bed = Bed::new();
    let red = bed.netns();
    red.run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap());
    red.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap());
    let (a, b) = bed.pair((&red, "eth0.100"), (&red, "other"));
    assert!(bed.link(a).unwrap().ipv6_disabled && bed.link(b).unwrap().ipv6_disabled);
    assert!(bed.execute_one(add(a, "fd00::1/64")).unwrap_err().is(Errno::EACCES));
    let enable = |link, name: &str| KernelOp::EnableIpv6 { link, name: name.into() };
    // A name that is another link's by now, or no link's, touches nothing.
    assert!(bed.execute_one(enable(a, "other")).unwrap_err().is(Errno::ENODEV));
    for bad in ["all", "default", "../all", "."] {
        assert!(bed.execute_one(enable(a, bad)).unwrap_err().is(Errno::ENODEV), "{bad}");
    }
    assert!(bed.execute_one(enable(a, "absent")).unwrap_err().is(Errno::ENOENT));
    assert!(bed.link(a).unwrap().ipv6_disabled && bed.link(b).unwrap().ipv6_disabled);
    let before = bed.kernel.counters().writes;
    assert_eq!(bed.kernel.execute(&[enable(a, "eth0.100"), add(a, "fd00::1/64")]), [Ok(Done::Ok), Ok(Done::Ok)]);
    assert_eq!(bed.kernel.counters().writes - before, 2);
    assert!(!bed.link(a).unwrap().ipv6_disabled);
    assert!(bed.link(b).unwrap().ipv6_disabled);
}

#[test]
fn odd_names_hide_nobody() {
    let mut bed = Bed::new();
    let red = bed.netns();
    bed.pair((&red, "good"), (&red, "alsogood"));
    let odd: [&'static [u8]; 4] = [b"\xff\xfe\x80", b"\x1b[31mred", b"-f", b"$(id)"];
    red.run(move || {
        use std::os::unix::ffi::OsStrExt;
        for name in odd {
            let name = std::ffi::OsStr::from_bytes(name);
            let made = std::process::Command::new("ip").args(["link", "add", "name"]).arg(name).args(["type", "bridge"]).output().unwrap();
            assert!(made.status.success(), "{name:?}: {made:?}");
        }
        let alt = std::process::Command::new("ip").args(["link", "property", "add", "dev", "good", "altname", "another"]).output().unwrap();
        assert!(alt.status.success(), "{alt:?}");
        let alias = std::ffi::OsStr::from_bytes(b"\xffalias");
        let set = std::process::Command::new("ip").args(["link", "set", "dev", "good", "alias"]).arg(alias).output().unwrap();
        assert!(set.status.success(), "{set:?}");
    });
    // Kinds with attributes that few parsers know.
    for kind in ["vxlan id 5 dstport 4789", "gre remote 10.0.0.1 local 10.0.0.2", "sit remote 10.0.0.1", "bridge", "vrf table 10", "bond"] {
        let _not_in_every_kernel = red.try_ip(&format!("link add type {kind}"));
    }
    // As many alternative names as the kernel takes: some 64 KiB in one message.
    red.run(|| {
        let batch: Vec<String> = (0..480).map(|i| format!("link property add dev alsogood altname {i:0>120}")).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batch");
        std::fs::write(&file, batch.join("\n")).unwrap();
        let done = std::process::Command::new("ip").arg("-batch").arg(&file).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    });
    let links = bed.kernel.read_netns(red.id).unwrap().links;
    assert_eq!(links.iter().find(|l| &*l.name == "alsogood").unwrap().altnames.len(), 480);
    for name in ["good", "alsogood", "\u{fffd}\u{fffd}\u{fffd}", "\u{1b}[31mred", "-f", "$(id)", "lo"] {
        assert!(links.iter().any(|l| &*l.name == name), "{name:?} in {:?}", links.iter().map(|l| &l.name).collect::<Vec<_>>());
    }
    let good = links.iter().find(|l| &*l.name == "good").unwrap();
    assert!(good.answers_to("another"));
    assert_eq!(good.alias.as_deref(), Some("\u{fffd}alias"));
    let listed = red.show("-oneline link show").lines().count();
    assert_eq!(links.len(), listed);
}

#[test]
fn a_tap_is_read_with_its_settings() {
    let mut bed = Bed::new();
    let red = bed.netns();
    red.ip("tuntap add tap7 mode tap user 1000 group 1001 multi_queue vnet_hdr");
    red.ip("tuntap add tun7 mode tun");
    let links = bed.kernel.read_netns(red.id).unwrap().links;
    let kind = |name: &str| links.iter().find(|l| &*l.name == name).map(|l| l.kind.clone()).unwrap();
    let LinkKind::Tun(tap) = kind("tap7") else { panic!("{:?}", kind("tap7")) };
    assert!(tap.tap && tap.multi_queue && tap.vnet_hdr && tap.persist, "{tap:?}");
    assert_eq!((tap.owner, tap.group), (Some(1000), Some(1001)));
    let LinkKind::Tun(tun) = kind("tun7") else { panic!() };
    assert!(!tun.tap && !tun.multi_queue && !tun.vnet_hdr && tun.persist, "{tun:?}");
    assert_eq!((tun.owner, tun.group), (None, None));
}

#[test]
fn answers_that_the_kernel_did_not_give_are_not_heard() {
    use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
    let mut bed = Bed::new();
    let red = bed.netns();
    bed.kernel.read_netns(red.id).unwrap();
    // The namespace's own root sees the ports of our sockets in it and sends to them: acknowledgements of any number, each an error.
    let (attempts, refused) = red.run(|| {
        let list = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
        let ports: Vec<u32> =
            list.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)?.parse().ok()).filter(|p| *p != 0).collect();
        let mut forged = vec![36u8, 0, 0, 0, 2, 0, 0, 0];
        forged.extend(5u32.to_ne_bytes());
        forged.extend([0; 4]);
        forged.extend((-13i32).to_ne_bytes());
        forged.extend([0; 16]);
        let socket = Socket::new(NETLINK_ROUTE).unwrap();
        let results: Vec<_> = ports.iter().map(|port| socket.send_to(&forged, &SocketAddr::new(*port, 0), 0)).collect();
        (results.len(), results.iter().filter(|r| r.is_err()).count())
    });
    assert!(attempts >= 1);
    assert_eq!(attempts, refused);
    assert!(bed.kernel.read_netns(red.id).is_ok());
}
