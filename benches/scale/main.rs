//! What the agent costs: the release binary on a real kernel and etcd, beside the least that the kernel takes for the same work (the floor), the classical way of
//! doing it, and `ip -batch`.
//!
//! `cargo bench --bench scale -- [--quick | --full] [--only PHASE]… [--size PAIRSxNAMESPACES]… [--rounds N] [--no-link-locals] [--json FILE] [--plot FILE]`, phases:
//! bulk, single, churn, taps, one, memory, restart, microservices. All methods take turns within a round, on the same host, and one verifier compares what each has made with
//! the work. Numbers belong to one machine at one time: compare within a run; beside other work, `nice -n -20` keeps the noise down for all methods alike. It judges
//! its targets and fails for none. Everything happens inside namespaces of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "it measures, prints, and stops when it cannot go on")]

mod bed;
mod bulk;
mod churn;
mod classical;
mod floor;
mod follow;
mod hear;
mod memory;
mod microservices;
mod netlink;
mod one;
mod plot;
mod report;
mod restart;
mod run;
mod single;
mod stats;
#[path = "../../tests/support/mod.rs"]
mod support;
mod taps;
mod targets;
mod tool;
mod tun;
mod verify;
mod work;

use report::{Report, Size};

/// How much is measured.
struct Scale {
    /// Sizes of all pairs at once, with their rounds.
    bulk: Vec<(Size, usize)>,
    /// Single changes.
    changes: usize,
    /// Pairs that stand while a tenth is deleted, and rounds of that.
    churn: (usize, usize),
    /// TAPs.
    taps: usize,
    /// Pairs of the large bed for single changes and memory.
    large: usize,
    restart: restart::Scale,
}

impl Scale {
    fn of(arguments: &[String]) -> Self {
        let has = |word: &str| arguments.iter().any(|argument| argument == word);
        let size = |pairs, spaces| Size { pairs, spaces, link_locals: true };
        let alone = |pairs, spaces| Size { pairs, spaces, link_locals: false };
        if has("--quick") {
            let restart = restart::Scale { pairs: 100, spaces: 10, rounds: 2 };
            return Self { bulk: vec![(size(100, 10), 3)], changes: 20, churn: (100, 2), taps: 100, large: 500, restart };
        }
        let mut bulk = vec![(size(100, 10), 5), (size(1000, 10), 5), (size(1000, 100), 3), (alone(5000, 10), 3)];
        if has("--full") {
            bulk.extend([(size(100, 100), 5), (alone(1000, 10), 5), (alone(5000, 100), 3), (size(5000, 10), 3)]);
        }
        Self {
            bulk,
            changes: 100,
            churn: (1000, 5),
            taps: 1000,
            large: 5000,
            restart: restart::Scale { pairs: 1000, spaces: 10, rounds: 5 },
        }
    }
}

/// The sizes of `--size`, with the rounds of `--rounds`, in place of the scale's own ones.
fn chosen(arguments: &[String], usual: Vec<(Size, usize)>) -> Vec<(Size, usize)> {
    let after = |word: &'static str| arguments.windows(2).filter(move |pair| pair[0] == word).map(|pair| pair[1].as_str());
    let rounds = after("--rounds").next().map(|rounds| rounds.parse().expect("--rounds takes a number"));
    let link_locals = !arguments.iter().any(|argument| argument == "--no-link-locals");
    let size = |text: &str| {
        let (pairs, spaces) = text.split_once('x').expect("--size takes 1000x10: pairs, namespaces");
        Size { pairs: pairs.parse().unwrap(), spaces: spaces.parse().unwrap(), link_locals }
    };
    let mut sizes: Vec<_> = after("--size").map(|text| (size(text), rounds.unwrap_or(3))).collect();
    if sizes.is_empty() {
        sizes = usual.into_iter().map(|(size, usual)| (size, rounds.unwrap_or(usual))).collect();
    }
    sizes
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &'static str| arguments.windows(2).filter(move |pair| pair[0] == word).map(|pair| pair[1].as_str());
    let wanted = |phase: &str| after("--only").next().is_none() || after("--only").any(|only| only == phase);
    let mut scale = Scale::of(&arguments);
    scale.bulk = chosen(&arguments, scale.bulk);
    let mut report = Report { machine: stats::machine(), ..Report::default() };
    println!("{}", report.machine);
    if wanted("bulk") {
        scale.bulk.iter().for_each(|(size, rounds)| bulk::measure(&mut report, *size, *rounds));
    }
    if wanted("single") {
        single::measure(&mut report, scale.changes);
    }
    if wanted("churn") {
        churn::measure(&mut report, scale.churn.0, scale.churn.1);
    }
    if wanted("taps") {
        let size = Size { pairs: scale.taps, spaces: 10, link_locals: true };
        taps::measure(&mut report, size, scale.taps, scale.churn.1);
    }
    if wanted("one") || wanted("memory") {
        one::measure(&mut report, scale.large, if wanted("one") { scale.changes } else { 0 });
    }
    if wanted("microservices") {
        microservices::measure(scale.changes);
    }
    if wanted("restart") {
        restart::measure(&scale.restart);
    }
    report.targets = targets::judge(&report);
    report.print();
    println!("\nLoad at the end: {}", stats::load());
    for file in after("--json") {
        std::fs::write(file, serde_json::to_string_pretty(&report).unwrap()).unwrap();
    }
    for file in after("--plot") {
        std::fs::write(file, plot::draw(&report)).unwrap();
    }
}
