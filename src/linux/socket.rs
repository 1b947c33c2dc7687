//! One netlink socket inside one namespace, proved to be there by the namespace's cookie.
//!
//! A socket that timed out or lost an answer is `broken`: what was sent may or may not have been done, and a late answer could be taken for
//! another one's. It is thrown away, never used again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::linux::counters::Counters;
use crate::linux::{KernelError, netns_thread, sys};
use crate::namespace::NetnsHandle;

/// The kernel sizes its answers to a dump by the largest read it has ever seen on a socket, so every read has this one size (bytes).
const READ_SIZE: usize = 128 * 1024;
/// Room for all answers to the largest batch (bytes); beyond it the kernel drops acknowledgements silently.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// How long all answers to one send may take. The kernel works inside `send`, so they have normally come before we look.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why a request failed, before it is said what was attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Positive errno.
    pub(super) errno: i32,
    /// The kernel's own words, or ours.
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno: errno as i32, text: text.into() }
    }

    pub(super) fn is(&self, errno: Errno) -> bool {
        self.errno == errno as i32
    }

    pub(super) fn attempting(self, attempted: impl Into<String>) -> KernelError {
        KernelError { errno: self.errno, text: self.text, attempted: attempted.into() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self { errno, text: String::new() },
            None => Self { errno: Errno::EIO as i32, text: error.to_string() },
        }
    }
}

/// A request socket inside a namespace.
#[derive(Debug)]
pub(super) struct RouteSocket {
    socket: Socket,
    pub(super) sequence: u32,
    buffer: Vec<u8>,
    deadline: Instant,
    broken: bool,
    pub(super) counters: Arc<Counters>,
}

impl RouteSocket {
    /// Opens a socket inside a namespace.
    ///
    /// # Errors
    /// What the opener says (`ENOENT`, `ESRCH` when the owner is gone); `ESTALE` when the way leads to another namespace by now.
    pub(super) fn open(netns: &NetnsHandle, counters: &Arc<Counters>) -> Result<Self, Failure> {
        let file = netns.opener.open()?;
        let socket = netns_thread::in_netns(file.as_fd(), request_socket)?;
        let found = sys::netns_of(&socket)?;
        if found != netns.id {
            return Err(Failure::new(Errno::ESTALE, "another namespace stands there now"));
        }
        let (buffer, counters) = (Vec::with_capacity(READ_SIZE), Arc::clone(counters));
        Ok(Self { socket, sequence: 0, buffer, deadline: Instant::now(), broken: false, counters })
    }

    /// The namespace as a file, for attributes that name a namespace.
    pub(super) fn netns_file(&self) -> io::Result<OwnedFd> {
        sys::netns_file(&self.socket)
    }

    /// Whether answers may have been lost: the socket must not be used again.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends one buffer of messages. The kernel performs them before this returns.
    pub(super) fn send(&mut self, messages: &[u8]) -> Result<(), Failure> {
        self.counters.count_send();
        loop {
            match self.socket.send_to(messages, &SocketAddr::new(0, 0), 0) {
                Ok(_) => {
                    // Not before: this may have waited long for the kernel's lock.
                    self.deadline = Instant::now() + DEADLINE;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads one datagram of answers to what was sent last.
    pub(super) fn receive(&mut self) -> Result<&[u8], Failure> {
        match self.read() {
            Ok(()) => Ok(&self.buffer),
            Err(failure) => {
                self.broken = true;
                Err(failure)
            }
        }
    }

    fn read(&mut self) -> Result<(), Failure> {
        let late = || Failure::new(Errno::ETIMEDOUT, format!("the kernel did not answer within {} s", DEADLINE.as_secs()));
        loop {
            self.buffer.clear();
            let length = match self.socket.recv(&mut self.buffer, MsgFlags::MSG_TRUNC.bits()) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error.into()),
            };
            return match length {
                _ if Instant::now() > self.deadline => Err(late()),
                length if length > self.buffer.len() => Err(Failure::new(Errno::EMSGSIZE, "an answer was longer than the read buffer")),
                _ => Ok(()),
            };
        }
    }
}

fn request_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // Errors come with the kernel's words and without a copy of the request.
    socket.set_cap_ack(true)?;
    socket.set_ext_ack(true)?;
    // Without it the filters of a dump are ignored.
    socket.set_netlink_get_strict_chk(true)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        // Allowed only with CAP_NET_ADMIN; then what the system's limit grants.
        setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(i64::try_from(DEADLINE.as_millis()).unwrap_or(i64::MAX)))?;
    socket.bind(&SocketAddr::new(0, 0))?;
    // Only the kernel may answer: whoever is root inside of the namespace could send forged answers to our port otherwise.
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}
