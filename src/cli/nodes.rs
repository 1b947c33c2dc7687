//! The commands about external nodes.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use tonic::Status;

use crate::cli::client::{Agent, Client};
use crate::cli::out::Out;
use crate::cli::table::{paint, table};
use crate::cli::text::{age, safe};
use crate::cli::{Failure, files};
use crate::proto::agent as pb;
use crate::proto::json::to_value;

/// Columns that a narrow terminal does without, the least important first.
const SPARE: &[&str] = &["OFPORTS", "BRIDGE", "ENTITY", "AGE", "NAMESPACE", "UPLINK", "ADDRESSES"];

/// What may be asked for one node.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// The steps that its NICs would go from where they are now, behind the bridge and back
    Plan {
        /// Name of the node
        name: String,
        /// A wish that is not written yet: what would it do? `-` is standard input
        #[arg(short, long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Say that the host works with its NIC behind the bridge
    Confirm {
        /// Name of the node
        name: String,
    },
    /// Give its NICs back; they stay so until the wish is written again
    Rollback {
        /// Name of the node
        name: String,
    },
}

/// All nodes with their interfaces.
pub async fn list(agent: &Agent, client: &mut Client, out: Out, now: i64) -> Result<(), Failure> {
    let refused = |status: Status| agent.failure(&status);
    let nodes = client.node.list_nodes(pb::ListNodesRequest {}).await.map_err(refused)?.into_inner().nodes;
    let value = || nodes.iter().map(to_value).collect::<Value>();
    out.show(value, |out| render(out, &nodes, now))
}

/// One node.
pub async fn one(agent: &Agent, client: &mut Client, out: Out, command: NodeCommand) -> Result<(), Failure> {
    let refused = |status: Status| agent.failure(&status);
    match command {
        NodeCommand::Plan { name, file } => {
            let value = file.as_deref().map(files::value).transpose()?.unwrap_or_default();
            if file.is_some() && value.is_empty() {
                return Err(Failure::Usage("the file holds no wish".to_owned()));
            }
            let plan = client.node.plan_node(pb::PlanNodeRequest { name, value }).await.map_err(&refused)?.into_inner();
            out.show(|| to_value(&plan), |_| plan.lines.iter().map(|line| safe(line) + "\n").collect())
        }
        NodeCommand::Confirm { name } => {
            let answer = client.node.confirm_node(pb::ConfirmNodeRequest { name: name.clone() }).await.map_err(&refused)?.into_inner();
            let before = if answer.already { " already" } else { "" };
            out.show(|| to_value(&answer), |_| format!("the attachment of `{}` is confirmed{before}\n", safe(&name)))
        }
        NodeCommand::Rollback { name } => {
            client.node.rollback_node(pb::RollbackNodeRequest { name: name.clone() }).await.map_err(&refused)?;
            out.show(|| json!({}), |_| format!("the NICs of `{}` are given back; `vnfctl nodes` tells the outcome\n", safe(&name)))
        }
    }
}

/// State, NICs and explanation, on one line without its end.
pub fn state_line(out: &Out, node: &pb::NodeStatus) -> String {
    let state = node.state().as_str_name();
    let state = if out.colour { paint(state) } else { state.to_owned() };
    let nics: Vec<String> = node.interfaces.iter().map(|nic| format!("{} {}", nic.name, nic.phase)).collect();
    let why = why(node);
    let text = if why.is_empty() { nics.join(", ") } else { why };
    format!("{state} {}", safe(&text)).trim_end().to_owned()
}

/// Why a node is as it is, in one line; how much more there is to say stands in `-o json`.
fn why(node: &pb::NodeStatus) -> String {
    let text = match (node.reason.is_empty(), node.message.is_empty()) {
        (true, _) => node.message.clone(),
        (false, true) => node.reason.clone(),
        (false, false) => format!("{}: {}", node.reason, node.message),
    };
    match (text.is_empty(), node.errors.len(), node.warnings.as_slice()) {
        (true, _, [first, ..]) => format!("warning: {first}"),
        // A field that is not known may be why another one is missing.
        (_, 0 | 1, [first, ..]) if node.state() == pb::State::Invalid => format!("{text}; warning: {first}"),
        (_, 0 | 1, _) => text,
        (_, errors, _) => format!("{text} (and {} more)", errors - 1),
    }
}

/// One line for each NIC; what is said of the node as a whole stands on its first one.
fn render(out: &Out, nodes: &[pb::NodeStatus], now: i64) -> String {
    let header =
        ["NAME", "NAMESPACE", "STATE", "AGE", "INTERFACE", "PHASE", "UPLINK", "BRIDGE", "OFPORTS", "ENTITY", "ADDRESSES", "MESSAGE"];
    let number = |n: u32| if n == 0 { "-".to_owned() } else { n.to_string() };
    let ports = |nic: &pb::NodeInterfaceStatus| match (nic.host_ofport, nic.uplink_ofport) {
        (0, 0) => String::new(),
        (host, uplink) => format!("{}/{}", number(host), number(uplink)),
    };
    let rows = nodes.iter().flat_map(|node| {
        let head = [node.name.clone(), node.namespace.clone(), node.state().as_str_name().to_owned(), age(node.since.as_ref(), now)];
        let none = || vec![pb::NodeInterfaceStatus { entity: node.entities.join(" "), ..Default::default() }];
        let nics = if node.interfaces.is_empty() { none() } else { node.interfaces.clone() };
        nics.into_iter().enumerate().map(move |(at, nic)| {
            let (ports, addresses) = (ports(&nic), nic.ip_addresses.join(" "));
            let message = if at == 0 { why(node) } else { String::new() };
            let bridge = if nic.host_ofport == 0 && nic.uplink.is_empty() { String::new() } else { nic.bridge };
            let tail = [nic.name, nic.phase, nic.uplink, bridge, ports, nic.entity, addresses, message];
            head.iter().cloned().chain(tail).collect::<Vec<String>>()
        })
    });
    table(out, &header, SPARE, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Form;

    #[test]
    fn what_is_said_of_a_node_is_said_once() {
        let nic = |name: &str| pb::NodeInterfaceStatus {
            name: name.into(),
            phase: "ATTACHED".into(),
            uplink: format!("{name}~"),
            bridge: "br-int".into(),
            host_ofport: 2,
            uplink_ofport: 1,
            ip_addresses: vec!["10.0.0.1/24".into()],
            entity: format!("host1-{name}"),
            ..Default::default()
        };
        let waits = pb::NodeStatus {
            name: "host1".into(),
            namespace: "default".into(),
            state: pb::State::Pending.into(),
            reason: "LINK_MISSING".into(),
            message: "no NIC has the address 10.0.0.9".into(),
            interfaces: vec![nic("eth0"), nic("eth1")],
            ..Default::default()
        };
        let other = pb::NodeStatus { name: "host2".into(), state: pb::State::Unimplemented.into(), ..Default::default() };
        let out = Out { form: Form::Table, width: None, colour: false };
        let expected = "\
NAME   NAMESPACE  STATE          AGE  INTERFACE  PHASE     UPLINK  BRIDGE  OFPORTS  ENTITY      ADDRESSES    MESSAGE
host1  default    PENDING        -    eth0       ATTACHED  eth0~   br-int  2/1      host1-eth0  10.0.0.1/24  LINK_MISSING: no NIC has the address 10.0.0.9
host1  default    PENDING        -    eth1       ATTACHED  eth1~   br-int  2/1      host1-eth1  10.0.0.1/24  -
host2  -          UNIMPLEMENTED  -    -          -         -       -       -        -           -            -
";
        assert_eq!(render(&out, &[waits.clone(), other], 0), expected);
        assert_eq!(state_line(&out, &waits), "PENDING LINK_MISSING: no NIC has the address 10.0.0.9");
        let invalid = pb::NodeStatus { state: pb::State::Invalid.into(), warnings: vec!["field `interface`".into()], ..waits.clone() };
        assert_eq!(state_line(&out, &invalid), "INVALID LINK_MISSING: no NIC has the address 10.0.0.9; warning: field `interface`");
        let fine = pb::NodeStatus { state: pb::State::Configured.into(), reason: String::new(), message: String::new(), ..waits };
        assert_eq!(state_line(&out, &fine), "CONFIGURED eth0 ATTACHED, eth1 ATTACHED");
    }
}
