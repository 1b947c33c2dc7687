//! Code generated from `proto/`, and its one JSON form.

pub mod json;

/// Ligato's v1 models with our additions.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod ligato {
    tonic::include_proto!("ligato.linux.v1");
}

/// The few fields of Ligato's v1 models of VPP's interfaces that concern TAPs.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod vpp {
    tonic::include_proto!("ligato.vpp.v1");
}

/// Hosts behind Open vSwitch.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod external {
    tonic::include_proto!("vnfagent.external.v1");
}

/// The agent's own services.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod agent {
    tonic::include_proto!("vnfagent.v1");
}

/// Largest request that the agent takes, bytes; its answers are kept below it by pages.
pub const REQUEST_LIMIT: usize = 4 << 20;

/// The descriptors of all files, for reflection and the JSON mapping.
pub static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
