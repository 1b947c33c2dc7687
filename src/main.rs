//! The daemon's entry point: configuration, log, agent, exit status.

use std::process::ExitCode;
use std::time::Duration;

use vnf_agent::config::Config;
use vnf_agent::external_node::stand_by;
use vnf_agent::{agent, panics, telemetry};

/// How long the last lines of the log may take to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

#[allow(clippy::print_stderr, reason = "before the log stands, and after it is gone")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(order) = stand_by::order_of(&arguments) {
        return stand_by(order);
    }
    let config = match Config::load() {
        Ok(config) => config,
        // Help and version go to standard output, errors to standard error.
        Err(vnf_agent::config::ConfigError::Usage(usage)) => {
            let _ = usage.print();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
        Err(error) => {
            for line in error.to_string().lines() {
                eprintln!("vnf-agent: {line}");
            }
            return ExitCode::from(2);
        }
    };
    let log = match telemetry::init(&config.log, config.log_format) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("vnf-agent: {error}");
            return ExitCode::from(2);
        }
    };
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name(panics::ASYNC_THREADS).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("vnf-agent: start the runtime: {error}");
                return ExitCode::FAILURE;
            }
        };
    let ended = runtime.block_on(agent::run(config));
    // Whatever still waits for a store that does not answer is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    log.flush(LAST_LINES);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vnf-agent: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// The process that gives a NIC back if the agent does not confirm that it works.
#[allow(clippy::print_stderr, reason = "it has no log but its standard error, which is the agent's")]
fn stand_by(order: Result<stand_by::Order, String>) -> ExitCode {
    let log = telemetry::init("info", telemetry::LogFormat::Text);
    let ended = order.and_then(|order| agent::stand_by(&order));
    if let Ok(log) = log {
        log.flush(LAST_LINES);
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vnf-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes, each told once: some tell their cause themselves.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
