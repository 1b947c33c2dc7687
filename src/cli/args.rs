//! The command line of `vnfctl`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cli::nodes::NodeCommand;

/// Where the agent is when nobody says.
pub const AGENT_DEFAULT: &str = "unix:/run/vnf-agent/agent.sock";

/// Where the options that all commands share stand in the help, apart from those of the command.
const CONNECTION: &str = "Connection";

/// Asks a vnf-agent and tells it what to configure.
///
/// Exit status: 0 done, 1 the agent said no, 2 usage, 3 the agent cannot be reached.
#[derive(Parser, Debug)]
#[command(name = "vnfctl", version)]
pub struct Cli {
    /// The agent: `unix:/path`, `https://host:port` (with --ca, and --cert and --key where it asks for them) or `http://host:port`
    #[arg(long, global = true, help_heading = CONNECTION, env = "VNF_AGENT", default_value = AGENT_DEFAULT, value_name = "ADDRESS")]
    pub agent: String,
    /// Certificate authority of the agent (PEM)
    #[arg(long, global = true, help_heading = CONNECTION, env = "VNF_AGENT_CA", value_name = "PATH")]
    pub ca: Option<PathBuf>,
    /// Certificate to show to the agent (PEM)
    #[arg(long, global = true, help_heading = CONNECTION, env = "VNF_AGENT_CERT", value_name = "PATH", requires = "tls_key")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long = "key", global = true, help_heading = CONNECTION, env = "VNF_AGENT_KEY", value_name = "PATH", requires = "cert")]
    pub tls_key: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value = "table", value_name = "FORM", display_order = 900)]
    pub output: Form,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Table,
    /// For programs: the agent's own field names
    Json,
    /// The same as YAML
    Yaml,
}

/// Waiting for what was written.
#[derive(Args, Debug, Clone, Copy)]
pub struct WaitArgs {
    /// Wait until the agent has worked on it, and print what it says then
    #[arg(long)]
    pub wait: bool,
    /// How long to wait at most
    #[arg(long, requires = "wait", default_value = "30s", value_name = "DURATION", value_parser = crate::config::values::duration)]
    pub timeout: Duration,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Write a value under a key
    Put {
        /// Such as linux/config/v1/interface/veth1; the agent adds its own prefix
        key: String,
        /// File with the value (JSON, binary protobuf, or YAML by its name); `-` is standard input
        file: PathBuf,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Print the value of a key
    Get {
        /// The key
        key: String,
    },
    /// List keys
    Ls {
        /// Only keys that begin with this
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Delete a key
    Del {
        /// The key
        key: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Write everything that files hold, all at once
    Apply {
        /// File or directory (.json, .yaml, .yml); `-` is standard input. Each holds objects or lists of them: an interface, a node, or a `key` with its `value`
        #[arg(short, long = "file", required = true, value_name = "PATH")]
        file: Vec<PathBuf>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// What the agent says: of itself and all interfaces, or of those that are named
    Status {
        /// Names of interfaces
        names: Vec<String>,
        /// Go on and print changes as they come
        #[arg(short, long)]
        watch: bool,
    },
    /// Interfaces with everything that was read back from the kernel
    Interfaces {
        /// Only those whose names begin with this
        #[arg(default_value = "")]
        prefix: String,
        /// Only those in this state, such as PENDING; may be repeated
        #[arg(long, value_name = "STATE", ignore_case = true)]
        state: Vec<String>,
        /// Only those in this namespace: its name, number, path or label
        #[arg(long, value_name = "REFERENCE")]
        namespace: Option<String>,
    },
    /// Namespaces that wishes refer to
    Namespaces,
    /// Which link in the kernel belongs to which name
    Index {
        /// Only this one
        name: Option<String>,
        /// Only those in the container with this label
        #[arg(long, value_name = "LABEL", conflicts_with = "name")]
        microservice: Option<String>,
    },
    /// External nodes: hosts whose NICs stand behind Open vSwitch
    Nodes,
    /// One external node
    #[command(subcommand)]
    Node(NodeCommand),
    /// The latest passes with their steps, the newest last
    History {
        /// How many
        #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Have the agent read the kernel and the store again
    Resync {
        /// Also remove what the store does not hold (leaves HOLD)
        #[arg(long)]
        accept_removals: bool,
    },
    /// Let an interface take over an unmarked pair that stands under the wished names
    Adopt {
        /// Name of the interface
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
