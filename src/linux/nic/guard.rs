//! Keeps frames that arrive on an uplink from the host's own stack.
//!
//! The user-space datapath of Open vSwitch only listens to its uplink; the host would see every frame too, and answer past the flows. An nftables
//! chain at ingress drops what the host would see; who listens to raw frames sees them before. The kernel's datapath needs none of this.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use crate::linux::KernelError;
use crate::linux::nic::{NicKernel, sysctl};
use crate::linux::socket::Failure;
use crate::model::nic::NicLink;
use crate::program;

/// How long `nft` may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// By index: the table outlives a rename of the link.
fn table(link: &NicLink) -> String {
    format!("vnf_agent_nic_{}", link.ifindex)
}

pub(super) fn stands(kernel: &mut NicKernel, link: &NicLink) -> Result<bool, KernelError> {
    let listed = nft(kernel, "list tables netdev\n").map_err(|failure| failure.attempting("list the nftables tables"))?;
    let wanted = format!("table netdev {}", table(link));
    Ok(listed.lines().any(|line| line.trim() == wanted))
}

pub(super) fn raise(kernel: &mut NicKernel, link: &NicLink) -> Result<(), KernelError> {
    let attempted = || format!("guard {}", link.name);
    // It is written between quotes, which nft has no way to escape.
    if !link.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@~".contains(&b)) {
        return Err(Failure::new(Errno::EINVAL, "the name holds characters that nftables cannot take").attempting(attempted()));
    }
    let (table, name) = (table(link), &link.name);
    // Emptied first, in the same transaction: it may stand from before a rename.
    let rules = format!(
        "table netdev {table}\ndelete table netdev {table}\ntable netdev {table} {{\n  chain ingress {{\n    type filter hook ingress device \"{name}\" priority -500; policy drop;\n  }}\n}}\n"
    );
    nft(kernel, &rules).map(|_| ()).map_err(|failure| failure.attempting(attempted()))
}

pub(super) fn lower(kernel: &mut NicKernel, link: &NicLink) -> Result<(), KernelError> {
    let table = table(link);
    let rules = format!("table netdev {table}\ndelete table netdev {table}\n");
    nft(kernel, &rules).map(|_| ()).map_err(|failure| failure.attempting(format!("end the guard of {}", link.name)))
}

/// Lets `nft` read commands, in the NICs' namespace; what it prints.
fn nft(kernel: &mut NicKernel, commands: &str) -> Result<String, Failure> {
    sysctl::inside(kernel, || run(commands))
}

fn run(commands: &str) -> io::Result<String> {
    program::run(Path::new("nft"), &["-f", "-"], commands.to_owned(), DEADLINE).map_err(|failure| {
        io::Error::other(match failure {
            program::Failure::NotRun(cause) => format!("run nft: {cause}"),
            program::Failure::NoAnswer => format!("nft did not end within {} s", DEADLINE.as_secs()),
            program::Failure::Refused(words) => format!("nft: {}", words.lines().next().unwrap_or_default()),
        })
    })
}
