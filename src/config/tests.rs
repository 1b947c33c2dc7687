//! Precedence, and an error for everything that cannot be used.

use super::*;

fn load(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let arguments = std::iter::once("vnf-agent").chain(arguments.iter().copied()).map(OsString::from).collect();
    let environment: Vec<(String, String)> = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Config::from_sources(arguments, |variable| environment.iter().find(|(k, _)| k == variable).map(|(_, v)| v.clone()))
}

fn problems(result: Result<Config, ConfigError>) -> Vec<String> {
    match result {
        Err(ConfigError::Invalid(problems)) => problems.into_iter().map(|p| p.0).collect(),
        other => panic!("{other:?}"),
    }
}

fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

#[test]
fn defaults() {
    let config = load(&[], &[]).unwrap();
    assert_eq!(config.label.as_str(), "vpp1");
    assert_eq!(config.etcd, None);
    assert_eq!(config.state_dir, PathBuf::from("/var/lib/vnf-agent"));
    assert_eq!(config.socket, Some("/run/vnf-agent/agent.sock".into()));
    let grpc = config.grpc.unwrap();
    assert_eq!((grpc.listen.to_string().as_str(), grpc.takes_writes()), ("127.0.0.1:9111", false));
    assert_eq!(config.http_listen, Some("127.0.0.1:9191".parse().unwrap()));
    assert_eq!(config.docker_socket, Some("/var/run/docker.sock".into()));
    assert_eq!(config.netns_dir, PathBuf::from("/var/run/netns"));
    assert_eq!((config.named_netns, config.adopt), (NamedNetns::Create, Adopt::FirstStart));
    assert_eq!(config.ovs.db.to_string(), "unix:/var/run/openvswitch/db.sock");
    assert_eq!((config.ovs.bridge.as_str(), config.ovs.datapath), ("br-int", Datapath::System));
    assert_eq!((config.node.confirm_timeout, config.node.name.as_str()), (Duration::from_secs(60), "vpp1"));
    assert_eq!((config.ipv6_dad, config.extra_addresses), (false, ExtraAddresses::Keep));
    assert_eq!((config.log.as_str(), config.log_format), ("info", LogFormat::Text));
}

#[test]
fn flag_before_environment_before_file_before_default() {
    let (_file, path) = file("label = \"file\"\nlog = \"debug\"\nnamed_netns = \"wait\"\n");
    let config = load(&["--config", &path, "--label", "flag"], &[("MICROSERVICE_LABEL", "env"), ("RUST_LOG", "trace")]).unwrap();
    assert_eq!((config.label.as_str(), config.log.as_str(), config.named_netns), ("flag", "trace", NamedNetns::Wait));
    let config = load(&[], &[("VNF_AGENT_CONFIG", &path), ("MICROSERVICE_LABEL", "env"), ("INITIAL_LOGLVL", "")]).unwrap();
    assert_eq!((config.label.as_str(), config.log.as_str()), ("env", "debug"));
}

#[test]
fn the_first_variable_that_is_set_counts() {
    let endpoints = |environment: &[(&str, &str)]| load(&[], environment).unwrap().etcd.map(|e| e.endpoints);
    assert_eq!(endpoints(&[("ETCDV3_ENDPOINTS", "10.0.0.1:2379")]), Some(vec!["http://10.0.0.1:2379".to_owned()]));
    let both = [("ETCD_ENDPOINTS", "https://a:1, [::1]:2/"), ("ETCDV3_ENDPOINTS", "b:1")];
    assert_eq!(endpoints(&both), Some(vec!["https://a:1".to_owned(), "http://[::1]:2".to_owned()]));
    assert_eq!(endpoints(&[("ETCD_ENDPOINTS", ""), ("ETCDV3_ENDPOINTS", "b:1")]), Some(vec!["http://b:1".to_owned()]));
    assert_eq!(endpoints(&[("ETCD_ENDPOINTS", "")]), None);
    let tls = load(&["--etcd-endpoints", "a:1", "--etcd-ca", "/ca.pem"], &[]).unwrap().etcd.unwrap();
    assert_eq!((tls.endpoints, tls.ca), (vec!["https://a:1".to_owned()], Some("/ca.pem".into())));
    assert_eq!(load(&[], &[("RUST_LOG", ""), ("INITIAL_LOGLVL", "fatal")]).unwrap().log, "error");
    assert_eq!(load(&["--log", "vnf_agent"], &[("RUST_LOG", "off")]).unwrap().log, "vnf_agent");
}

#[test]
fn each_error_names_option_value_source_and_rule() {
    let (_file, path) = file("\nlabel = \"x y\"\n");
    let said = problems(load(&["--config", &path], &[]));
    assert_eq!(said, [format!("option `label`: value `x y` ({path}, line 2) must match [A-Za-z0-9][A-Za-z0-9_.-]{{0,62}}")]);
    let said = problems(load(&["--ipv6-dad", "yes"], &[("VNF_AGENT_NODE_CONFIRM_TIMEOUT", "60")]));
    let expected = [
        "option `node-confirm-timeout`: value `60` (environment variable VNF_AGENT_NODE_CONFIRM_TIMEOUT) must be a duration between 1s and 24h with its unit (ms, s, m, h), as in `60s`",
        "option `ipv6-dad`: value `yes` (flag --ipv6-dad) must be one of `off`, `on`",
    ];
    assert_eq!(said, expected);
}

#[test]
fn values_that_cannot_be_used() {
    for (flag, value) in [
        ("--label", "a/b"),
        ("--label", ""),
        ("--etcd-endpoints", "http://"),
        ("--etcd-endpoints", "host"),
        ("--etcd-endpoints", "ftp://host:1"),
        ("--etcd-endpoints", "http://user@host:1"),
        ("--etcd-endpoints", ","),
        ("--state-dir", "relative"),
        ("--socket", "agent.sock"),
        ("--grpc-listen", "9111"),
        ("--grpc-listen", "0.0.0.0:9111"),
        ("--http-listen", "example.com:80"),
        ("--docker-host", "tcp://10.0.0.1:2375"),
        ("--named-netns", "Create"),
        ("--ovs-db", "tcp:host"),
        ("--ovs-bridge", "a bridge with a long name"),
        ("--ovs-datapath", "dpdk"),
        ("--node-confirm-timeout", "0s"),
        ("--node-name", "a/b"),
        ("--extra-addresses", "drop"),
        ("--adopt", "always"),
        ("--log", "info,=,="),
        ("--log", "inof"),
        ("--log-format", "xml"),
        ("--etcd-cert", "/cert.pem"),
        ("--etcd-user", "root"),
        ("--tls-key", "/key.pem"),
        ("--tls-client-ca", "/ca.pem"),
    ] {
        let said = problems(load(&[flag, value], &[]));
        assert_eq!(said.len(), 1, "{flag} {value}: {said:?}");
    }
    assert!(matches!(load(&["--lable", "x"], &[]), Err(ConfigError::Usage(_))));
}

#[test]
fn off_and_switches() {
    let config = load(&["--socket", "off", "--http-listen", "off", "--docker-host", "off", "--grpc-insecure-writes"], &[]).unwrap();
    assert_eq!((config.socket, config.http_listen, config.docker_socket), (None, None, None));
    assert!(config.grpc.unwrap().takes_writes());
    assert_eq!(load(&["--grpc-listen", "off"], &[]).unwrap().grpc, None);
    let (_file, path) = file("grpc_insecure_writes = true\netcd_endpoints = [\"a:1\", \"b:2\"]\n");
    let config = load(&["--config", &path], &[]).unwrap();
    assert!(config.grpc.unwrap().insecure_writes);
    assert_eq!(config.etcd.unwrap().endpoints.len(), 2);
    let tls = ["--grpc-listen", "0.0.0.0:9111", "--tls-cert", "/c", "--tls-key", "/k", "--tls-client-ca", "/a"];
    assert!(load(&tls, &[]).unwrap().grpc.unwrap().takes_writes());
}

#[test]
fn unknown_keys_are_named_with_their_line() {
    let (_file, path) = file("label = \"a\"\n# a comment\nlable = \"b\"\n[external_node]\npolicy = 1\n[zzzzzzz]\n");
    let said = problems(load(&["--config", &path], &[]));
    assert_eq!(said.len(), 3, "{said:?}");
    for line in [
        format!("{path}, line 3: unknown key `lable`; did you mean `label`?"),
        format!("{path}, line 5: unknown key `policy`"),
        format!("{path}, line 6: unknown key `zzzzzzz`"),
    ] {
        assert!(said.contains(&line), "{said:?}");
    }
    for (text, part) in [("label = ", "line 1: this is no TOML"), ("label = [\"a\"]", "must be a string"), ("\nlog = 1.5", "line 2: `log`")]
    {
        let (_file, path) = file(text);
        let said = problems(load(&["--config", &path], &[]));
        assert!(said[0].contains(part), "{said:?}");
    }
    let said = problems(load(&["--config", "/nowhere/x.toml"], &[]));
    assert!(said[0].starts_with("configuration file /nowhere/x.toml cannot be read"), "{said:?}");
}

/// C86: each bad rule is named with its line and reason; the good ones around it are used.
#[test]
fn bypass_rules() {
    let rules: Vec<String> = [
        "direction='ingress'\nprotocol='tcp'\ncidr='192.0.2.7/24'\nport=22",
        "direction='ingress'\nprotocol='tcp'\ncidr='1.1.1.1'",
        "direction='ingress'\nprotocol='tcp'\ncidr='1.1.1.1/33'",
        "direction='egress'\nprotocol='icmp'\ncidr='::/0'",
        "direction='egress'\nprotocol='tcpp'\ncidr='::/0'",
        "direction='egress'\nprotocol='icmp'\ncidr='::/0'\nport=1",
        "direction='egress'\nprotocol='tcp'\ncidr='::/0'\nport=0",
        "direction='egress'\nprotocol='tcp'\ncidr='::/0'\nport=70000",
        "protocol='tcp'\ncidr='::/0'",
        "direction='egress'\nprotocol='udp'\ncidr='2001:db8::/32'\nport=53",
    ]
    .map(|rule| format!("[[external_node.policy_bypass_rules]]\n{rule}\n"))
    .to_vec();
    let (_file, path) = file(&rules.concat());
    let node = load(&["--config", &path], &[]).unwrap().node;
    let used: Vec<String> = node.bypass_rules.iter().map(ToString::to_string).collect();
    assert_eq!(used, ["ingress tcp 192.0.2.0/24 port 22", "egress icmp ::/0", "egress udp 2001:db8::/32 port 53"]);
    let refused: Vec<String> = node.refused_rules.iter().map(ToString::to_string).collect();
    let wanted = [(1, "cidr"), (2, "cidr"), (4, "protocol"), (5, "port"), (6, "port"), (7, "port"), (8, "direction")];
    assert_eq!(refused.len(), wanted.len(), "{refused:#?}");
    for ((index, field), said) in wanted.iter().zip(&refused) {
        assert!(said.contains(&format!("policy_bypass_rules[{index}].{field}`")) && said.contains(", line "), "{said}");
    }
    assert!(refused[1].contains("value `1.1.1.1/33`") && refused[1].contains("must be a network"), "{}", refused[1]);
    // A key that nobody knows is still an error of the whole file.
    let (_file, path) = file("[[external_node.policy_bypass_rules]]\nsport = 1\n");
    assert!(problems(load(&["--config", &path], &[]))[0].contains("unknown key `sport`"));
}

#[test]
fn the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, docs::markdown()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == docs::markdown(),
        "docs/config.md is stale; write it anew with UPDATE_DOCS=1 cargo test the_documentation_is_up_to_date"
    );
}
