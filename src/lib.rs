//! vnf-agent: makes the kernel's network look like what users wrote into etcd, and keeps it so.
//!
//! One pipeline: a [`store`] and the [`namespace`] trackers send events to the [`configurator`], which compares what is desired with what is
//! observed, plans, lets [`linux`] do it, reads back, and publishes per key what it did or why not. [`model`] is the
//! vocabulary of all of them. See `ARCHITECTURE.md`.

pub mod agent;
pub mod api;
mod backoff;
pub mod cli;
pub mod config;
pub mod configurator;
pub mod external_node;
mod heap;
pub mod linux;
pub mod model;
pub mod namespace;
pub mod ovs;
pub mod panics;
mod program;
pub mod proto;
pub mod state_dir;
pub mod status_feed;
pub mod store;
pub mod telemetry;
