//! All options of the daemon in one table: the command line, the environment, the configuration file and `docs/config.md` are made from it.

/// One option.
pub struct OptionSpec {
    /// Its flag, without the dashes; in the configuration file `_` stands for `-`.
    pub flag: &'static str,
    /// Environment variables that set it; the first that is set and not empty counts.
    pub env: &'static [&'static str],
    /// What it is when nobody sets it; `None`: nothing, see `help`.
    pub default: Option<&'static str>,
    /// What its value is, in a word.
    pub value: &'static str,
    /// What it does.
    pub help: &'static str,
}

impl OptionSpec {
    /// Its name in the configuration file.
    #[must_use]
    pub fn file_key(&self) -> String {
        self.flag.replace('-', "_")
    }
}

const fn option(
    flag: &'static str,
    env: &'static [&'static str],
    default: Option<&'static str>,
    value: &'static str,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { flag, env, default, value, help }
}

/// The table, in the order of the documentation.
pub const OPTIONS: [OptionSpec; 30] = [
    option(
        "label",
        &["MICROSERVICE_LABEL"],
        Some("vpp1"),
        "LABEL",
        "Label under which this agent owns its keys and its links: [A-Za-z0-9][A-Za-z0-9_.-]{0,62}",
    ),
    option(
        "etcd-endpoints",
        &["ETCD_ENDPOINTS", "ETCDV3_ENDPOINTS"],
        None,
        "LIST",
        "Endpoints of etcd, separated by commas (host:port, http:// or https://); without any, the embedded store is used",
    ),
    option(
        "state-dir",
        &["VNF_AGENT_STATE_DIR"],
        Some("/var/lib/vnf-agent"),
        "PATH",
        "Directory of the embedded store and of what the agent must remember over restarts",
    ),
    option("etcd-ca", &["ETCD_CA"], None, "PATH", "Certificate authority of etcd (PEM); read again when it changes"),
    option("etcd-cert", &["ETCD_CERT"], None, "PATH", "Client certificate for etcd (PEM); needs --etcd-key"),
    option("etcd-key", &["ETCD_KEY"], None, "PATH", "Key of the client certificate for etcd (PEM); needs --etcd-cert"),
    option("etcd-user", &["ETCD_USER"], None, "NAME", "User for etcd; needs --etcd-password-file"),
    option("etcd-password-file", &["ETCD_PASSWORD_FILE"], None, "PATH", "File that holds the user's password; needs --etcd-user"),
    option(
        "socket",
        &["VNF_AGENT_SOCKET"],
        Some("/run/vnf-agent/agent.sock"),
        "PATH|off",
        "Unix socket (mode 0660) with all services, for whoever may open it",
    ),
    option(
        "grpc-listen",
        &["VNF_AGENT_GRPC_LISTEN"],
        Some("127.0.0.1:9111"),
        "ADDRESS|off",
        "TCP address of gRPC; read-only unless clients show certificates or --grpc-insecure-writes is given",
    ),
    option(
        "grpc-insecure-writes",
        &["VNF_AGENT_GRPC_INSECURE_WRITES"],
        Some("false"),
        "BOOL",
        "Take writes on the TCP address from everybody who can reach it",
    ),
    option(
        "tls-cert",
        &["VNF_AGENT_TLS_CERT"],
        None,
        "PATH",
        "Certificate of the TCP address (PEM); an address other than loopback needs it, with --tls-key and --tls-client-ca",
    ),
    option("tls-key", &["VNF_AGENT_TLS_KEY"], None, "PATH", "Key of that certificate (PEM)"),
    option(
        "tls-client-ca",
        &["VNF_AGENT_TLS_CLIENT_CA"],
        None,
        "PATH",
        "Certificate authority that clients of the TCP address must be signed by (PEM)",
    ),
    option(
        "http-listen",
        &["VNF_AGENT_HTTP_LISTEN"],
        Some("127.0.0.1:9191"),
        "ADDRESS|off",
        "Address of /liveness, /readiness, /metrics and /status (plain HTTP, read-only)",
    ),
    option(
        "docker-host",
        &["DOCKER_HOST"],
        Some("unix:///var/run/docker.sock"),
        "URL|off",
        "Unix socket of Docker, or of another runtime with its API (Podman), for microservices",
    ),
    option("netns-dir", &["VNF_AGENT_NETNS_DIR"], Some("/var/run/netns"), "PATH", "Directory of named namespaces"),
    option(
        "named-netns",
        &["VNF_AGENT_NAMED_NETNS"],
        Some("create"),
        "create|wait",
        "Whether a named namespace that is missing is created when its key is first seen, or waited for",
    ),
    option(
        "ovs-db",
        &["VNF_AGENT_OVS_DB"],
        Some("unix:/var/run/openvswitch/db.sock"),
        "URL",
        "Open vSwitch database, unix:/path or tcp:host:port (external node only)",
    ),
    option("ovs-bridge", &["VNF_AGENT_OVS_BRIDGE"], Some("br-int"), "NAME", "Bridge that NICs are put behind (external node only)"),
    option(
        "ovs-datapath",
        &["VNF_AGENT_OVS_DATAPATH"],
        Some("system"),
        "system|netdev",
        "Datapath of the bridge, used when it is made (external node only)",
    ),
    option(
        "node-confirm-timeout",
        &["VNF_AGENT_NODE_CONFIRM_TIMEOUT"],
        Some("60s"),
        "DURATION",
        "How long a NIC's attachment waits for the host to be reachable before it is undone (external node only)",
    ),
    option(
        "node-managed-nic",
        &["VNF_AGENT_NODE_MANAGED_NIC"],
        Some("refuse"),
        "refuse|allow",
        "Whether a NIC is attached although a DHCP client or a network manager looks after it (external node only)",
    ),
    option("node-name", &["NODE_NAME"], None, "NAME", "Name of this host's ExternalNode; without it the label (external node only)"),
    option(
        "node-namespace",
        &["VNF_AGENT_NODE_NAMESPACE"],
        Some("default"),
        "NAME",
        "Kubernetes namespace of this host's ExternalNode (external node only)",
    ),
    option(
        "ipv6-dad",
        &["VNF_AGENT_IPV6_DAD"],
        Some("off"),
        "off|on",
        "Duplicate address detection: off adds IPv6 addresses ready for use, on waits for the kernel's check",
    ),
    option(
        "extra-addresses",
        &["VNF_AGENT_EXTRA_ADDRESSES"],
        Some("keep"),
        "keep|remove",
        "What happens to addresses that others added to our links",
    ),
    option(
        "adopt",
        &["VNF_AGENT_ADOPT"],
        Some("first-start"),
        "first-start|never",
        "Whether unmarked pairs that stand as wished are taken over while the state directory is new",
    ),
    option(
        "log",
        &["RUST_LOG", "INITIAL_LOGLVL"],
        Some("info"),
        "FILTER",
        "What is logged: error, warn, info, debug, trace, or a filter such as info,vnf_agent::store=debug",
    ),
    option("log-format", &["VNF_AGENT_LOG_FORMAT"], Some("text"), "text|json", "Form of the log on standard error"),
];
