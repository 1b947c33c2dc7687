//! The client's entry point.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    vnf_agent::cli::run(std::env::args_os()).await
}
