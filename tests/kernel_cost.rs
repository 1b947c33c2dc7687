//! What the kernel work costs. Numbers are printed, not judged: they belong to one machine at one time.
//!
//! `cargo test --release --test kernel_cost -- --ignored --nocapture`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it measures and prints")]

mod kernel_support;

use std::time::{Duration, Instant};

use kernel_support::*;
use vnf_agent::linux::{ExpectedMark, Kernel, KernelOp, LinkChange};

const PAIRS: usize = 1000;
const SPACES: usize = 10;

fn alias(text: String) -> LinkChange {
    LinkChange { alias: Some(text), ..LinkChange::default() }
}

fn per_pair(what: &str, took: Duration) {
    println!("{what:<44} {:>8.1} us/pair", took.as_secs_f64() * 1e6 / PAIRS as f64);
}

#[test]
#[ignore = "prints numbers and judges nothing; run by hand as said above"]
fn pairs() {
    for round in 0..3 {
        for link_locals in [true, false] {
            println!("round {round}, IPv6 link-locals {}", if link_locals { "on" } else { "off" });
            one_round(link_locals);
        }
    }
}

fn one_round(link_locals: bool) {
    let mut bed = Bed::new();
    let spaces: Vec<_> = (0..SPACES).map(|_| bed.netns()).collect();
    for netns in &spaces {
        if !link_locals {
            netns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap());
        }
        bed.kernel.read_netns(netns.id).unwrap();
    }
    let place = |i: usize| (&spaces[i % SPACES], &spaces[(i + 1 + i / SPACES % (SPACES - 1)) % SPACES]);
    let creations: Vec<_> = (0..PAIRS)
        .map(|i| {
            let (a, b) = place(i);
            let mut op = create((a, &format!("a{i}")), (b, &format!("b{i}")));
            if let KernelOp::CreateVeth { a, b, .. } = &mut op {
                a.mac = Some(mac(1));
                b.mac = Some(mac(2));
                a.mtu = 1400;
                b.mtu = 1400;
            }
            op
        })
        .collect();
    let before = bed.kernel.counters();
    let start = Instant::now();
    let answers = bed.kernel.execute(&creations);
    let created = start.elapsed();
    let ends: Vec<_> = answers.into_iter().enumerate().map(|(i, d)| ends(place(i).0, place(i).1, d.unwrap())).collect();
    let mut rest = Vec::with_capacity(4 * PAIRS);
    for (i, (a, b)) in ends.iter().enumerate() {
        rest.push(set(*a, alias(format!("vnf-agent:vpp1:veth:a{i}"))));
        rest.push(set(*b, LinkChange { up: Some(true), ..alias(format!("vnf-agent:vpp1:veth:b{i}")) }));
        let subnet = |last: u8| format!("10.{}.{}.{last}/30", i >> 8, i & 255);
        rest.push(add(*a, &subnet(1)));
        rest.push(add(*b, &subnet(2)));
    }
    assert!(bed.kernel.execute(&rest).iter().all(Result::is_ok));
    per_pair("create", created);
    per_pair("create, alias both, peer up, an address each", start.elapsed());
    let cost = bed.kernel.counters();
    println!("  writes {}, reads {}, sends {}", cost.writes - before.writes, cost.reads - before.reads, cost.sends - before.sends);

    let start = Instant::now();
    let links: usize = spaces.iter().map(|netns| bed.kernel.read_netns(netns.id).unwrap().links.len()).sum();
    println!("  read {links} links with addresses: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    for (a, b) in &ends {
        assert!(bed.kernel.read_link(*a).unwrap().is_some() && bed.kernel.read_link(*b).unwrap().is_some());
    }
    println!("  read one link with addresses: {:.1} us", start.elapsed().as_secs_f64() * 1e6 / (2 * PAIRS) as f64);

    let expected = ExpectedMark { group: GROUP, alias: None };
    let deletions: Vec<_> =
        ends.iter().map(|(a, _)| KernelOp::DeleteLink { link: *a, doomed_group: DOOMED, expected: expected.clone() }).collect();
    let start = Instant::now();
    assert!(bed.kernel.execute(&deletions).iter().all(Result::is_ok));
    per_pair("delete, handed over", start.elapsed());
    while spaces.iter().any(|netns| bed.kernel.read_netns(netns.id).unwrap().links.len() > 1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    per_pair("delete, all gone", start.elapsed());
}

#[test]
#[ignore = "prints numbers and judges nothing; run by hand as said above"]
fn one_pair_at_a_time() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let mut took = Vec::new();
    for i in 0..200 {
        let start = Instant::now();
        let done = bed.execute_one(create((&red, &format!("a{i}")), (&blue, &format!("b{i}")))).unwrap();
        let (a, b) = ends(&red, &blue, done);
        let second_up = LinkChange { up: Some(true), ..alias(format!("vnf-agent:vpp1:veth:b{i}")) };
        let rest = [
            set(a, alias(format!("vnf-agent:vpp1:veth:a{i}"))),
            set(b, second_up),
            add(a, &format!("10.1.{i}.1/30")),
            add(b, &format!("10.1.{i}.2/30")),
        ];
        assert!(bed.kernel.execute(&rest).iter().all(Result::is_ok));
        assert!(bed.link(a).is_some() && bed.link(b).is_some());
        took.push(start.elapsed());
    }
    took.sort();
    println!("one pair, complete and read back: p50 {:?}, p99 {:?}", took[100], took[198]);
}
