//! The configurator on a fake kernel, with a fake tracker and a store of a few lines: no root, no threads, no waiting.

mod attacked_taps;
mod auto_taps;
mod bench;
mod costs;
mod drift;
mod faults;
mod oracle;
mod pairs;
mod plans;
mod properties;
mod removal;
mod reserved;
mod rules;
mod states;
mod taps;
