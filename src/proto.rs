//! Code generated from `proto/`.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]

/// Ligato's v1 models with our additions.
pub mod ligato {
    tonic::include_proto!("ligato.linux.v1");
}

/// The descriptors of all files, for reflection and the JSON mapping.
pub static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
