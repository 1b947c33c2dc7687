//! A connection to the database server or to the switch, over a unix socket or TCP, every operation of which ends in time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use serde_json::Value;

use crate::model::OvsdbTarget;

/// The connection. It is read by one thread and written to by many.
pub(super) struct Stream {
    socket: Socket,
    /// Held while a message is written, so that messages do not mix.
    writing: Mutex<()>,
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Connects within `limit`, which is also that of each writing; a reading returns after `silence` at the latest.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn connect(target: &OvsdbTarget, limit: Duration, silence: Duration) -> io::Result<Self> {
        let socket = match target {
            OvsdbTarget::Unix(path) => {
                let stream = connect_unix(path, limit)?;
                stream.set_read_timeout(Some(silence))?;
                Socket::Unix(stream)
            }
            OvsdbTarget::Tcp { host, port } => {
                let stream = connect_tcp(host, *port, limit)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(silence))?;
                stream.set_write_timeout(Some(limit))?;
                Socket::Tcp(stream)
            }
        };
        Ok(Self { socket, writing: Mutex::new(()) })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// What the system says; a part of the message may have been sent.
    pub(super) fn send(&self, message: &Value) -> io::Result<()> {
        self.send_bytes(message.to_string().as_bytes())
    }

    /// Sends these bytes, not mixed with those of others.
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub(super) fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).write_all(bytes),
            Socket::Tcp(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// For the one thread that reads.
    pub(super) fn reader(&self) -> impl Read + '_ {
        let reader: Box<dyn Read + '_> = match &self.socket {
            Socket::Unix(stream) => Box::new(stream),
            Socket::Tcp(stream) => Box::new(stream),
        };
        reader
    }

    /// Ends the connection; whoever reads from it wakes up.
    pub(super) fn close(&self) {
        // It fails only when the connection has ended already.
        let _ = match &self.socket {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Connects with a limit, which the standard library cannot: a server that hangs lets connections queue up, and then block.
fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let seconds = limit.as_secs().try_into().unwrap_or(i64::MAX);
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(seconds, limit.subsec_micros().into()))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn connect_tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
