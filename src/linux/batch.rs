//! Many requests per send, each answered on its own.
//!
//! The kernel goes on after a message that failed and says which one by its sequence number; so does this. Nothing is retried here.

use std::collections::VecDeque;

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use crate::linux::decode;
use crate::linux::socket::{Failure, RouteSocket};

/// Most messages in one send: above 16 the size hardly matters, and all answers must fit into the receive buffer.
const MOST_MESSAGES: usize = 64;
/// Most bytes in one send, well below the default send buffer (212,992).
const MOST_BYTES: usize = 32 * 1024;

/// Length of `struct nlmsghdr`.
const NETLINK_HEADER: usize = 16;
pub(super) const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Whether a request modifies something; only for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It reads.
    Read,
    /// It modifies links or addresses.
    Write,
    /// It modifies only how namespaces are numbered, which nobody asked us not to.
    Numbering,
}

/// What a request says.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A message that was built attribute by attribute.
    Built(Box<RouteNetlinkMessage>),
    /// A message that the kernel wrote itself, given back to it with few changes: type and payload.
    Kept(u16, Vec<u8>),
}

impl Body {
    fn kind(&self) -> u16 {
        match self {
            Self::Built(message) => message.message_type(),
            Self::Kept(kind, _) => *kind,
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Built(message) => NetlinkSerializable::buffer_len(&**message),
            Self::Kept(_, payload) => payload.len(),
        }
    }

    fn write(&self, into: &mut [u8]) {
        match self {
            Self::Built(message) => message.serialize(into),
            Self::Kept(_, payload) => into.copy_from_slice(payload),
        }
    }
}

impl From<RouteNetlinkMessage> for Body {
    fn from(message: RouteNetlinkMessage) -> Self {
        Self::Built(Box::new(message))
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The message.
    pub(super) message: Body,
    /// Flags beside REQUEST and ACK.
    pub(super) flags: u16,
    /// For the counters.
    pub(super) effect: Effect,
}

impl Request {
    pub(super) fn read(message: impl Into<Body>) -> Self {
        Self { message: message.into(), flags: 0, effect: Effect::Read }
    }

    pub(super) fn write(message: impl Into<Body>, flags: u16) -> Self {
        Self { message: message.into(), flags, effect: Effect::Write }
    }

    fn append_to(&self, bytes: &mut Vec<u8>, sequence: u32, flags: u16) {
        let length = NETLINK_HEADER + self.message.length();
        let mut header = NetlinkHeader::default();
        header.length = u32::try_from(length).unwrap_or(u32::MAX);
        header.message_type = self.message.kind();
        header.flags = NLM_F_REQUEST | self.flags | flags;
        header.sequence_number = sequence;
        let start = bytes.len();
        // Messages start at multiples of four.
        bytes.resize(start + length.next_multiple_of(4), 0);
        header.emit(&mut bytes[start..start + NETLINK_HEADER]);
        self.message.write(&mut bytes[start + NETLINK_HEADER..start + length]);
    }
}

impl RouteSocket {
    /// Performs all requests in order; the n-th answer belongs to the n-th request. `reply` is given what the kernel tells beside the
    /// acknowledgement: the request's place, the message's type, its payload.
    ///
    /// Once the socket is broken, what was not answered fails and what was not sent stays unsent.
    pub(super) fn perform(&mut self, requests: &[Request], mut reply: impl FnMut(usize, u16, &[u8])) -> Vec<Result<(), Failure>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut lost: Option<Failure> = None;
        while answers.len() < requests.len() {
            let first = answers.len();
            if let Some(failure) = &lost {
                answers.push(Err(failure.clone()));
                continue;
            }
            let (bytes, count) = self.fill(&requests[first..]);
            let chunk = self.send(&bytes).and_then(|()| self.collect(count, |at, kind, payload| reply(first + at, kind, payload)));
            match chunk {
                Ok(chunk) => {
                    lost = chunk.lost;
                    answers.extend(chunk.answers);
                }
                Err(failure) => answers.extend(std::iter::repeat_n(Err(failure), count)),
            }
        }
        answers
    }

    /// Serializes as many requests as one send takes, at least one.
    fn fill(&mut self, requests: &[Request]) -> (Vec<u8>, usize) {
        let mut bytes = Vec::with_capacity(MOST_BYTES);
        let mut count = 0;
        for request in requests.iter().take(MOST_MESSAGES) {
            if bytes.len() > MOST_BYTES {
                break;
            }
            self.sequence = self.sequence.wrapping_add(1);
            request.append_to(&mut bytes, self.sequence, NLM_F_ACK);
            match request.effect {
                Effect::Read => self.counters.count_reads(1),
                Effect::Write => self.counters.count_writes(1),
                Effect::Numbering => {}
            }
            count += 1;
        }
        (bytes, count)
    }

    /// Collects the answers to the last `count` messages.
    fn collect(&mut self, count: usize, mut reply: impl FnMut(usize, u16, &[u8])) -> Result<Chunk, Failure> {
        let first = self.sequence.wrapping_sub(u32::try_from(count).unwrap_or(u32::MAX)).wrapping_add(1);
        let mut answers: Vec<Option<Result<(), Failure>>> = vec![None; count];
        let mut open = count;
        while open > 0 {
            let datagram = match self.receive() {
                Ok(datagram) => datagram,
                Err(failure) => {
                    let answers = answers.into_iter().map(|a| a.unwrap_or_else(|| Err(failure.clone()))).collect();
                    return Ok(Chunk { answers, lost: Some(failure) });
                }
            };
            for message in messages(datagram) {
                let at = message.sequence_number().wrapping_sub(first) as usize;
                let Some(answer) = answers.get_mut(at) else { continue };
                if message.message_type() == NLMSG_ERROR {
                    open -= usize::from(answer.is_none());
                    *answer = Some(acknowledgement(&message));
                } else {
                    reply(at, message.message_type(), message.payload());
                }
            }
        }
        Ok(Chunk { answers: answers.into_iter().flatten().collect(), lost: None })
    }

    /// Reads a listing. True when it was not interrupted by changes.
    pub(super) fn dump(&mut self, request: &Request, mut reply: impl FnMut(u16, &[u8])) -> Result<bool, Failure> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let mut bytes = Vec::new();
        request.append_to(&mut bytes, sequence, NLM_F_DUMP);
        self.counters.count_reads(1);
        self.send(&bytes)?;
        let mut complete = true;
        loop {
            for message in messages(self.receive()?) {
                if message.sequence_number() != sequence {
                    continue;
                }
                complete &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    NLMSG_DONE => return done(message.payload()).map(|()| complete),
                    NLMSG_ERROR => return acknowledgement(&message).map(|()| complete),
                    kind => reply(kind, message.payload()),
                }
            }
        }
    }
}

struct Chunk {
    answers: VecDeque<Result<(), Failure>>,
    lost: Option<Failure>,
}

/// The messages of one datagram. What is cut off or malformed ends the listing.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        let length = (message.length() as usize).next_multiple_of(4).min(datagram.len());
        datagram = &datagram[length..];
        Some(message)
    })
}

fn acknowledgement(message: &NetlinkBuffer<&[u8]>) -> Result<(), Failure> {
    let payload = message.payload();
    match decode::error_code(payload) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure { errno: code.saturating_abs(), text: decode::kernel_words(message.flags(), payload) }),
        None => Err(Failure::new(Errno::EBADMSG, "an answer that cannot be read")),
    }
}

/// The end of a listing carries the errno of what went wrong in it.
fn done(payload: &[u8]) -> Result<(), Failure> {
    match decode::error_code(payload) {
        Some(code) if code < 0 => Err(Failure { errno: code.saturating_abs(), text: String::new() }),
        _ => Ok(()),
    }
}
