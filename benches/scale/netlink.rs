//! Bare rtnetlink: messages put together by hand, many in one send. It shares no code with the agent, so that nothing done to the agent moves the floor.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

use crate::support::Host;

pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_SETLINK: u16 = 19;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_GETADDR: u16 = 22;

pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_LINK: u16 = 5;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_IFALIAS: u16 = 20;
pub const IFLA_GROUP: u16 = 27;
pub const IFLA_NET_NS_FD: u16 = 28;
pub const IFLA_EXT_MASK: u16 = 29;
pub const IFLA_NUM_TX_QUEUES: u16 = 31;
pub const IFLA_NUM_RX_QUEUES: u16 = 32;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const VETH_INFO_PEER: u16 = 1;
pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_PROTO: u16 = 11;

pub const IFF_UP: u32 = 1;
pub const IFF_RUNNING: u32 = 0x40;
pub const IFF_LOWER_UP: u32 = 0x1_0000;

/// `RTEXT_FILTER_SKIP_STATS`.
const SKIP_STATS: u32 = 8;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// `NLM_F_CREATE | NLM_F_EXCL`.
pub const CREATE: u16 = 0x600;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;

/// One size for all reads: the kernel sizes its answers to a dump by the largest one.
const READ: usize = 128 * 1024;
/// Room for what is told while nobody reads.
const RECEIVE: usize = 32 * 1024 * 1024;

/// `struct ifinfomsg`.
pub fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// `struct ifaddrmsg` of an IPv4 address.
pub fn address_header(index: u32, prefix: u8) -> [u8; 8] {
    const AF_INET: u8 = 2;
    let [a, b, c, d] = index.to_ne_bytes();
    [AF_INET, prefix, 0, 0, a, b, c, d]
}

/// Attributes of a message that is being written.
pub struct Attributes<'b>(&'b mut Vec<u8>);

impl Attributes<'_> {
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap();
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// A text with the closing NUL.
    pub fn name(&mut self, kind: u16, value: &str) {
        self.put(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// An attribute that holds a header (maybe empty) and attributes.
    pub fn nest(&mut self, kind: u16, header: &[u8], inner: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.put(kind, header);
        inner(&mut Attributes(self.0));
        let length = u16::try_from(self.0.len() - start).unwrap();
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

/// Messages that go in one send.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    pub fn add(&mut self, kind: u16, flags: u16, header: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend([0; HEADER]);
        self.bytes.extend(header);
        attributes(&mut Attributes(&mut self.bytes));
        let length = u32::try_from(self.bytes.len() - start).unwrap();
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 4..start + 6].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[start + 6..start + 8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    fn flag(&mut self, start: usize, flag: u16) {
        let at = start + 6;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | flag;
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Sent {
    pub messages: u64,
    pub sends: u64,
}

/// A request socket.
pub struct Conn {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    pub sent: Sent,
}

impl Conn {
    /// In the calling thread's namespace.
    pub fn here() -> Self {
        Self { socket: socket(&[]), sequence: 0, buffer: Vec::with_capacity(READ), sent: Sent::default() }
    }

    /// In a namespace of a host.
    pub fn inside(host: &Host, netns: &str) -> Self {
        host.inside(netns, Self::here)
    }

    /// Sends all messages and waits for the answer to the last one; the kernel tells of any other only if it failed.
    pub fn send(&mut self, mut batch: Batch) -> Result<(), Errno> {
        let Some(last) = batch.starts.last().copied() else { return Ok(()) };
        batch.flag(last, NLM_F_ACK);
        for start in &batch.starts {
            self.sequence += 1;
            batch.bytes[start + 8..start + 12].copy_from_slice(&self.sequence.to_ne_bytes());
        }
        self.transmit(&batch.bytes, batch.len());
        let mut outcome = Ok(());
        loop {
            self.receive();
            for (kind, _, sequence, payload) in messages(&self.buffer) {
                if kind != NLMSG_ERROR {
                    continue;
                }
                let code = i32::from_ne_bytes(payload[..4].try_into().unwrap());
                if code != 0 && outcome.is_ok() {
                    outcome = Err(Errno::from_raw(-code));
                }
                if sequence == self.sequence {
                    return outcome;
                }
            }
        }
    }

    /// Asks for one thing; the payload of the answer.
    pub fn ask(&mut self, mut batch: Batch) -> Result<Vec<u8>, Errno> {
        self.sequence += 1;
        batch.bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        self.transmit(&batch.bytes, 1);
        self.receive();
        let (kind, _, _, payload) = messages(&self.buffer).next().unwrap();
        if kind == NLMSG_ERROR {
            return Err(Errno::from_raw(-i32::from_ne_bytes(payload[..4].try_into().unwrap())));
        }
        Ok(payload.to_vec())
    }

    /// Reads a listing; again when it was interrupted by a change.
    pub fn dump(&mut self, kind: u16, header: &[u8], mut take: impl FnMut(&[u8])) {
        loop {
            let mut batch = Batch::default();
            batch.add(kind, NLM_F_DUMP, header, |attributes| {
                if kind == RTM_GETLINK {
                    attributes.number(IFLA_EXT_MASK, SKIP_STATS);
                }
            });
            self.sequence += 1;
            batch.bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
            self.transmit(&batch.bytes, 1);
            if self.listing(&mut take) {
                return;
            }
        }
    }

    fn listing(&mut self, take: &mut impl FnMut(&[u8])) -> bool {
        let mut whole = true;
        loop {
            self.receive();
            for (kind, flags, _, payload) in messages(&self.buffer) {
                whole &= flags & NLM_F_DUMP_INTR == 0;
                match kind {
                    NLMSG_DONE => return whole,
                    NLMSG_ERROR => panic!("a listing was refused"),
                    _ => take(payload),
                }
            }
        }
    }

    fn transmit(&mut self, bytes: &[u8], count: usize) {
        self.sent.messages += count as u64;
        self.sent.sends += 1;
        self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0).unwrap();
    }

    fn receive(&mut self) {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer, 0).unwrap();
    }
}

/// A socket in the calling thread's namespace, that hears these groups.
pub fn socket(groups: &[u32]) -> Socket {
    let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE).unwrap();
    socket.set_cap_ack(true).unwrap();
    socket.set_netlink_get_strict_chk(true).unwrap();
    socket.bind(&SocketAddr::new(0, 0)).unwrap();
    groups.iter().for_each(|group| socket.add_membership(*group).unwrap());
    socket
}

/// Reads what is there without waiting; false when there is nothing.
pub fn read_now(socket: &Socket, buffer: &mut Vec<u8>) -> bool {
    const MSG_DONTWAIT: i32 = 0x40;
    buffer.clear();
    buffer.reserve(READ);
    match socket.recv(buffer, MSG_DONTWAIT) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        Err(error) => panic!("the kernel's news were lost: {error}"),
    }
}

/// Messages of a datagram: type, flags, sequence, payload.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let header = datagram.get(..HEADER)?;
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_ne_bytes(header[at..at + 2].try_into().unwrap());
        let length = word(0) as usize;
        let payload = datagram.get(HEADER..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((half(4), half(6), word(8), payload))
    })
}

/// Attributes: type without its flags, value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().unwrap()));
        let kind = u16::from_ne_bytes(bytes[2..4].try_into().unwrap()) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A number in an attribute.
pub fn number(value: &[u8]) -> u32 {
    u32::from_ne_bytes(value[..4].try_into().unwrap())
}

/// A text in an attribute.
pub fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value).unwrap().trim_end_matches('\0')
}
