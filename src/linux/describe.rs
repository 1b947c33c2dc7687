//! Operations in words, for errors: what was attempted, on what. Namespaces are named by inode, as `lsns` shows them.

use crate::linux::sockets::Sockets;
use crate::linux::{KernelOp, LinkChange};
use crate::model::LinkId;

/// `create veth a@4026532301 / b@4026532302`.
pub(super) fn op(op: &KernelOp, sockets: &Sockets) -> String {
    let at = |link: &LinkId| link_id(*link, sockets);
    match op {
        KernelOp::CreateVeth { a, b, .. } => {
            format!("create veth {}@{} / {}@{}", a.name, sockets.inode(a.netns), b.name, sockets.inode(b.netns))
        }
        KernelOp::CreateTap(new) => format!("create tap {}@{}", new.link.name, sockets.inode(new.link.netns)),
        KernelOp::SetLink { link, change } => {
            format!("set {} of {}", changes(change), at(link))
        }
        KernelOp::MoveLink { link, to, change, .. } => format!("move {} to {} and set {}", at(link), sockets.inode(*to), changes(change)),
        KernelOp::EnableIpv6 { link, name } => format!("enable IPv6 on `{}`, {}", name.escape_debug(), at(link)),
        KernelOp::AddAddress { link, address } => format!("add {} to {}", address.address, at(link)),
        KernelOp::RemoveAddress { link, address } => format!("remove {address} from {}", at(link)),
        KernelOp::DeleteLink { link, .. } => format!("delete {}", at(link)),
    }
}

fn changes(change: &LinkChange) -> String {
    let mut what: Vec<String> = Vec::new();
    what.extend(change.name.as_ref().map(|name| format!("name {name}")));
    what.extend(change.mac.map(|mac| format!("hardware address {mac}")));
    what.extend(change.mtu.map(|mtu| format!("mtu {mtu}")));
    what.extend(change.up.map(|up| if up { "up" } else { "down" }.to_owned()));
    what.extend(change.group.map(|group| format!("group {group}")));
    what.extend(change.alias.as_ref().map(|alias| format!("alias `{}`", alias.escape_debug())));
    what.join(", ")
}

/// `link 7@4026532301`.
pub(super) fn link_id(link: LinkId, sockets: &Sockets) -> String {
    format!("link {}@{}", link.ifindex, sockets.inode(link.netns))
}
