//! What the agent costs with many interfaces: the release binary on a real kernel and etcd, beside the kernel's own time for the same requests.
//!
//! `cargo bench --bench scale -- [--quick | --full] [--only restart|bulk|one|memory|microservices]`. It prints tables for `docs/performance.md` and judges nothing:
//! numbers belong to one machine at one time. Everything happens inside namespaces of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "it measures, prints, and stops when it cannot go on")]

mod bed;
mod bulk;
mod floor;
mod follow;
mod listen;
mod memory;
mod microservices;
mod one;
mod restart;
mod stats;
#[path = "../../tests/support/mod.rs"]
mod support;

/// How much is measured.
pub struct Scale {
    /// Pairs that are restarted with, made, changed and deleted at once.
    pub pairs: usize,
    /// Namespaces that they lie in.
    pub spaces: usize,
    /// Pairs of the large bed for single changes and memory.
    pub large_pairs: usize,
    /// Namespaces that they lie in.
    pub large_spaces: usize,
    /// Single changes.
    pub changes: usize,
    /// Repetitions of what concerns all pairs.
    pub rounds: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let only = arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1));
    let scale = if has("--quick") {
        Scale { pairs: 100, spaces: 10, large_pairs: 500, large_spaces: 10, changes: 20, rounds: 2 }
    } else {
        let large_pairs = if has("--full") { 5000 } else { 1000 };
        Scale { pairs: 1000, spaces: 10, large_pairs, large_spaces: large_pairs / 100, changes: 100, rounds: 5 }
    };
    let wanted = |part: &str| only.is_none_or(|only| only == part);
    println!("{}", stats::machine());
    if wanted("restart") {
        restart::measure(&scale);
    }
    if wanted("bulk") {
        bulk::measure(&scale);
    }
    if wanted("one") || wanted("memory") {
        one::measure(&scale, wanted("one"));
    }
    if wanted("microservices") {
        microservices::measure(&scale);
    }
    println!("\nLoad at the end: {}", stats::load());
}
