//! Keeps frames that arrive on an uplink from the host's own stack.
//!
//! The user-space datapath of Open vSwitch only listens to its uplink; the host would see every frame too, and answer past the flows. An nftables
//! chain at ingress drops what the host would see; who listens to raw frames sees them before. The kernel's datapath needs none of this.
//!
//! The kernel is asked itself: a program that is missing, hangs or is being upgraded must not keep anybody from giving a NIC back.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use crate::linux::KernelError;
use crate::linux::batch::{self, NLMSG_ERROR};
use crate::linux::decode;
use crate::linux::encode::attribute;
use crate::linux::nic::{NicKernel, sysctl};
use crate::linux::socket::Failure;
use crate::model::nic::NicLink;

/// How long an answer may take; the kernel works inside of the sending.
const DEADLINE: TimeVal = TimeVal::new(5, 0);
const READ_SIZE: usize = 16 * 1024;

/// `struct nlmsghdr`, and behind it `struct nfgenmsg`.
const HEADER: usize = 16;
/// `NFNL_MSG_BATCH_BEGIN` and `…_END`, for the subsystem that the batch is for.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = NEW_TABLE | 1;
const DELETE_TABLE: u16 = NEW_TABLE | 2;
const NEW_CHAIN: u16 = NEW_TABLE | 3;
const GET_CHAIN: u16 = NEW_TABLE | 4;

/// `NFPROTO_NETDEV`.
const NETDEV: u8 = 5;
/// `NFTA_TABLE_NAME`.
const TABLE_NAME: u16 = 1;
/// `NFTA_CHAIN_…`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// `NFTA_HOOK_…`.
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const NESTED: u16 = 0x8000;
/// `NF_NETDEV_INGRESS`, `NF_DROP`.
const INGRESS: u32 = 0;
const DROP: u32 = 0;
const CHAIN: &str = "ingress";
/// Before whatever else looks at ingress.
const PRIORITY: i32 = -500;

/// By index: the table outlives a rename of the link.
fn table(link: &NicLink) -> String {
    format!("vnf_agent_nic_{}", link.ifindex)
}

/// Whether it drops: what drops is the chain, which some kernels remove with its link, and leave the table.
pub(super) fn stands(kernel: &mut NicKernel, link: &NicLink) -> Result<bool, KernelError> {
    let chain = [attribute(CHAIN_TABLE, &text(&table(link))), attribute(CHAIN_NAME, &text(CHAIN))];
    is_there(kernel, link, GET_CHAIN, &chain.concat())
}

/// Whether anything of it is there.
pub(super) fn remains(kernel: &mut NicKernel, link: &NicLink) -> Result<bool, KernelError> {
    is_there(kernel, link, GET_TABLE, &attribute(TABLE_NAME, &text(&table(link))))
}

fn is_there(kernel: &mut NicKernel, link: &NicLink, kind: u16, name: &[u8]) -> Result<bool, KernelError> {
    let asked = sysctl::inside(kernel, || transact(&[message(kind, 0, 0, NETDEV, 0, name)], &[0]));
    // A kernel that has no tables at all has not this one.
    let none = [Errno::ENOENT, Errno::EPROTONOSUPPORT, Errno::EOPNOTSUPP, Errno::EINVAL];
    match asked {
        Ok(()) => Ok(true),
        Err(failure) if none.iter().any(|errno| failure.is(*errno)) => Ok(false),
        Err(failure) => Err(failure.attempting(format!("look for the guard of {}", link.name))),
    }
}

pub(super) fn raise(kernel: &mut NicKernel, link: &NicLink) -> Result<(), KernelError> {
    let table = table(link);
    let number = |number: u32| number.to_be_bytes();
    let hook = [
        attribute(HOOK_NUMBER, &number(INGRESS)),
        attribute(HOOK_PRIORITY, &PRIORITY.to_be_bytes()),
        attribute(HOOK_DEVICE, &text(&link.name)),
    ];
    let chain = [
        attribute(CHAIN_TABLE, &text(&table)),
        attribute(CHAIN_NAME, &text(CHAIN)),
        attribute(CHAIN_HOOK | NESTED, &hook.concat()),
        attribute(CHAIN_POLICY, &number(DROP)),
        attribute(CHAIN_TYPE, &text("filter")),
    ];
    // Removed first, in the same transaction: it may stand from before a rename.
    let name = attribute(TABLE_NAME, &text(&table));
    let steps = [(NEW_TABLE, &name), (DELETE_TABLE, &name), (NEW_TABLE, &name), (NEW_CHAIN, &chain.concat())];
    change(kernel, &steps).map_err(|failure| failure.attempting(format!("guard {}", link.name)))
}

pub(super) fn lower(kernel: &mut NicKernel, link: &NicLink) -> Result<(), KernelError> {
    let name = attribute(TABLE_NAME, &text(&table(link)));
    change(kernel, &[(NEW_TABLE, &name), (DELETE_TABLE, &name)])
        .map_err(|failure| failure.attempting(format!("end the guard of {}", link.name)))
}

/// All of it or nothing.
fn change(kernel: &mut NicKernel, steps: &[(u16, &Vec<u8>)]) -> Result<(), Failure> {
    let bound = |kind: u16| message(kind, 0, 0, 0, SUBSYSTEM, &[]);
    let made = steps.iter().zip(1..).map(|((kind, attributes), at)| message(*kind, NLM_F_ACK | NLM_F_CREATE, at, NETDEV, 0, attributes));
    let messages: Vec<Vec<u8>> = std::iter::once(bound(BATCH_BEGIN)).chain(made).chain([bound(BATCH_END)]).collect();
    let awaited: Vec<u32> = (1..).take(steps.len()).collect();
    sysctl::inside(kernel, || transact(&messages, &awaited))
}

/// Sends messages at once, and waits until these of them were answered. The first error is returned.
fn transact(messages: &[Vec<u8>], awaited: &[u32]) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.set_cap_ack(true)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &DEADLINE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    // Only the kernel may answer.
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&messages.concat(), 0)?;
    let mut missing: Vec<u32> = awaited.to_vec();
    let mut buffer = Vec::with_capacity(READ_SIZE);
    while !missing.is_empty() {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Errno::ETIMEDOUT.into()),
            Err(error) => return Err(error),
        }
        for heard in batch::messages(&buffer) {
            if heard.message_type() == NLMSG_ERROR
                && let Some(code) = decode::error_code(heard.payload()).filter(|code| *code != 0)
            {
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            missing.retain(|sequence| *sequence != heard.sequence_number());
        }
    }
    Ok(())
}

fn message(kind: u16, flags: u16, sequence: u32, family: u8, subsystem: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + 4 + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(subsystem.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn text(words: &str) -> Vec<u8> {
    [words.as_bytes(), &[0]].concat()
}
