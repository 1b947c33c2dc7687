//! Writes `docs/config.md` from the table of options; a test fails when the file is stale.

use std::fmt::Write;

use crate::config::options::OPTIONS;

const HEAD: &str = "\
# Configuration

Every option can be given as a flag, as an environment variable or in a TOML file that `--config PATH` (or `VNF_AGENT_CONFIG`) names. A flag
wins over the environment, the environment over the file, the file over the default. An environment variable that is empty counts as unset. Where
two variables are listed, the first that is set counts.

In the file an option has the name of its flag with `_` for `-`: `etcd_endpoints = [\"10.0.0.1:2379\"]`. A key that is not listed here
is an error that names the key and its line. A value that cannot be used is an error that names the option, the value, where it came from
and the rule; the agent then exits with status 2 and has touched nothing.

What is marked *external node* matters only to hosts whose NICs are put behind Open vSwitch (see keys.md and operations.md).

| flag | environment | default | meaning |
|---|---|---|---|
";

const TAIL: &str = "
## Settings of the external node

They are read at the start.

- `--node-name` and `--node-namespace` say which node is this host's. One agent follows one node; others below its label read UNIMPLEMENTED.
- `--ovs-bridge`: NICs that stand behind another bridge when the agent starts stay there, and so does whatever is wished meanwhile, until none stands there any more: all of them were given back, also on request (`vnfctl node rollback`).
- `--ovs-db`: the agent looks into the database that it is told, not into one of before. Delete the node's key before you name another one, and write it again afterwards.
- `--ovs-datapath` counts only when the bridge is made: that of a bridge that is there is never changed. `system` is the kernel's; `netdev` the one in user space.
- `--node-confirm-timeout` must be longer than the host may need to hear of its store again. Too short, and each attachment is undone.
- `--node-managed-nic allow`: a DHCP client that goes by the NIC's name may go on, and its leases are followed; tell systemd-networkd or NetworkManager to leave the NIC alone, or it goes on changing what the agent repairs.
- A database at `tcp:host:port` is spoken to in the clear. The switch must be on this host all the same: flows are written through the bridge's socket, beside that of the
  database, or in `/var/run/openvswitch`.

## Rules that no policy may stop (external node)

```toml
[[external_node.policy_bypass_rules]]
direction = \"ingress\"       # ingress or egress, seen from the host
protocol = \"tcp\"            # tcp, udp, icmp or ip
cidr = \"192.0.2.0/24\"       # the other side, IPv4 or IPv6, with its prefix length
port = 22                   # 1 to 65535, for tcp and udp only; left out: all ports
```

A rule that says something impossible (a network without a prefix length, a port with icmp) is named in the log with its line and reason when the
agent starts; the other rules are used.
";

/// The text of `docs/config.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for option in &OPTIONS {
        let env: Vec<String> = option.env.iter().map(|v| format!("`{v}`")).collect();
        let default = option.default.map_or("none".to_owned(), |d| format!("`{d}`"));
        let value = option.value.replace('|', "\\|");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `--{}` {value} | {} | {default} | {} |", option.flag, env.join(", else "), option.help);
    }
    text + TAIL
}
