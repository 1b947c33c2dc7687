//! The commands about external nodes.

use clap::Subcommand;
use serde_json::{Value, json};
use tonic::Status;

use crate::cli::Failure;
use crate::cli::client::{Agent, Client};
use crate::cli::out::Out;
use crate::cli::table::table;
use crate::cli::text::{age, safe};
use crate::proto::agent as pb;
use crate::proto::json::to_value;

/// Columns that a narrow terminal does without, the least important first.
const SPARE: &[&str] = &["OFPORTS", "BRIDGE", "ENTITY", "AGE", "NAMESPACE"];

/// What may be asked for one node.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// The steps that its NICs would go from where they are now, behind the bridge and back
    Plan {
        /// Name of the node
        name: String,
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
        NodeCommand::Plan { name } => {
            let plan = client.node.plan_node(pb::PlanNodeRequest { name }).await.map_err(&refused)?.into_inner();
            out.show(|| to_value(&plan), |_| plan.lines.iter().map(|line| safe(line) + "\n").collect())
        }
        NodeCommand::Confirm { name } => {
            client.node.confirm_node(pb::ConfirmNodeRequest { name: name.clone() }).await.map_err(&refused)?;
            out.show(|| json!({}), |_| format!("the attachment of `{}` is confirmed\n", safe(&name)))
        }
        NodeCommand::Rollback { name } => {
            client.node.rollback_node(pb::RollbackNodeRequest { name: name.clone() }).await.map_err(&refused)?;
            out.show(|| json!({}), |_| format!("the NICs of `{}` are given back; `vnfctl nodes` tells the outcome\n", safe(&name)))
        }
    }
}

fn render(out: &Out, nodes: &[pb::NodeStatus], now: i64) -> String {
    let header =
        ["NAME", "NAMESPACE", "STATE", "AGE", "ENTITY", "INTERFACE", "PHASE", "UPLINK", "BRIDGE", "OFPORTS", "ADDRESSES", "MESSAGE"];
    let number = |n: u32| if n == 0 { "-".to_owned() } else { n.to_string() };
    let rows = nodes.iter().flat_map(|node| {
        let message = match (node.reason.is_empty(), node.message.is_empty()) {
            (true, _) => node.message.clone(),
            (false, true) => node.reason.clone(),
            (false, false) => format!("{}: {}", node.reason, node.message),
        };
        let (state, age) = (node.state().as_str_name().to_owned(), age(node.since.as_ref(), now));
        let head = [node.name.clone(), node.namespace.clone(), state, age, node.entities.join(" ")];
        let nothing = [pb::NodeInterfaceStatus::default()];
        let interfaces = if node.interfaces.is_empty() { nothing.to_vec() } else { node.interfaces.clone() };
        interfaces.into_iter().map(move |interface| {
            let ports = if interface.host_ofport == 0 && interface.uplink_ofport == 0 {
                String::new()
            } else {
                format!("{}/{}", number(interface.host_ofport), number(interface.uplink_ofport))
            };
            let addresses = interface.ip_addresses.join(" ");
            let tail = [interface.name, interface.phase, interface.uplink, interface.bridge, ports, addresses, message.clone()];
            head.iter().cloned().chain(tail).collect::<Vec<String>>()
        })
    });
    table(out, &header, SPARE, rows)
}
