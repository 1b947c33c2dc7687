//! Compiles `proto/` without protoc, and keeps the descriptors: reflection and the JSON mapping read them at run time.

use std::path::PathBuf;

const FILES: [&str; 6] = [
    "ligato/linux/interfaces.proto",
    "ligato/vpp/interfaces.proto",
    "external/v1/node.proto",
    "vnfagent/v1/status.proto",
    "vnfagent/v1/config.proto",
    "vnfagent/v1/node.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(FILES)?;
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure().compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}
