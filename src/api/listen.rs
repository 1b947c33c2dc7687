//! Where the API listens: a unix socket that only its group may open, TCP with a limit on connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, Stream};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

/// Connections at a time on one listener.
const CONNECTION_LIMIT: usize = 100;
/// Whoever does not even take a connection within this time is taken to be alive but busy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection on which nothing arrives for this long is closed, so that silent ones cannot use up the limit. gRPC asks for a sign of life more often.
const IDLE_LIMIT: Duration = Duration::from_secs(100);
const DIRECTORY_MODE: u32 = 0o750;
const SOCKET_MODE: u32 = 0o660;

/// Why a listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something that is no socket stands at the path.
    #[error("cannot listen on {0}: something that is no socket stands there; remove it or choose another path with --socket")]
    NoSocket(PathBuf),
    /// Someone answers there.
    #[error("cannot listen on {0}: another process answers there; stop it or choose another path with --socket")]
    InUse(PathBuf),
    /// The system says no.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    System {
        /// Path or address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The settings would expose the agent.
    #[error("{0}")]
    Exposed(String),
}

/// What to do about it.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "; choose another address with --grpc-listen or --http-listen, or `off`",
        _ => "",
    }
}

impl ListenError {
    fn system(address: impl ToString, source: impl Into<io::Error>) -> Self {
        Self::System { address: address.to_string(), source: source.into() }
    }
}

/// Listens on a unix socket: its directory is made (0750) when missing, a socket that nobody answers on is replaced, and the mode (0660) is set before
/// the first connection can be made.
pub async fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    let failed = |e: io::Error| ListenError::system(path.display(), e);
    make_directory(path).map_err(failed)?;
    remove_stale(path).await?;
    bind_with_mode(path).map_err(failed)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
            std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(parent)?;
            // The umask may have taken more away than meant.
            std::fs::set_permissions(parent, std::fs::Permissions::from_mode(DIRECTORY_MODE))
        }
        _ => Ok(()),
    }
}

async fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |e: io::Error| ListenError::system(path.display(), e);
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Ok(Err(e)) => Err(failed(e)),
        Ok(Ok(_)) | Err(_) => Err(ListenError::InUse(path.to_owned())),
    }
}

/// Between `bind` and `listen` nobody can connect: that is when the mode is set. (The umask would do too, but belongs to all threads.)
fn bind_with_mode(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    listen(&fd, Backlog::MAXCONN)?;
    UnixListener::from_std(fd.into())
}

/// Listens on TCP.
pub async fn tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|e| ListenError::system(address, e))
}

/// A connection that counts against its listener's limit for as long as it lives.
pub struct Counted<S> {
    io: S,
    idle_limit: Duration,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

/// Who is at the other end, for the log. Authorises nobody: a process may have handed its connection on.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A process of this host, as it was when it connected.
    Local {
        /// Its user.
        uid: u32,
        /// Its number.
        pid: Option<i32>,
    },
    /// An address.
    Remote(SocketAddr),
    /// The kernel does not say.
    Unknown,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, pid {pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Remote(address) => address.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// A connection that tells who is at its other end.
pub trait Known {
    /// Who.
    fn peer(&self) -> Peer;
}

impl Known for UnixStream {
    fn peer(&self) -> Peer {
        self.peer_cred().map_or(Peer::Unknown, |cred| Peer::Local { uid: cred.uid(), pid: cred.pid() })
    }
}

impl Known for TcpStream {
    fn peer(&self) -> Peer {
        self.peer_addr().map_or(Peer::Unknown, Peer::Remote)
    }
}

/// Something that connections come from.
pub trait Accept: Send + Sync + 'static {
    /// The connection.
    type Io: AsyncRead + AsyncWrite + Known + Unpin + Send + 'static;
    /// Waits for the next one.
    fn next(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Accept for UnixListener {
    type Io = UnixStream;
    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Accept for TcpListener {
    type Io = TcpStream;
    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Answers are small; waiting to fill a packet only delays them.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// A listener with a limit: at the limit, further connections wait in the kernel's queue.
pub struct Limited<L> {
    listener: L,
    slots: Arc<Semaphore>,
    idle_limit: Duration,
}

impl<L: Accept> Limited<L> {
    /// Puts the limit on a listener.
    pub fn new(listener: L) -> Self {
        Self { listener, slots: Arc::new(Semaphore::new(CONNECTION_LIMIT)), idle_limit: IDLE_LIMIT }
    }

    /// The next connection. Errors of one connection, and a process short of descriptors, only delay the next.
    async fn connection(&self) -> Counted<L::Io> {
        loop {
            let Ok(permit) = self.slots.clone().acquire_owned().await else { continue };
            match self.listener.next().await {
                Ok(io) => {
                    let idle = Box::pin(tokio::time::sleep(self.idle_limit));
                    return Counted { io, idle_limit: self.idle_limit, idle, _permit: permit };
                }
                Err(e) => {
                    tracing::debug!(error = %e, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// All connections, for ever.
    pub fn stream(self) -> impl Stream<Item = io::Result<Counted<L::Io>>> + Send {
        stream::unfold(self, |limited| async move { Some((Ok(limited.connection().await), limited)) })
    }
}

impl axum::serve::Listener for Limited<TcpListener> {
    type Io = Counted<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let connection = self.connection().await;
            if let Ok(peer) = connection.io.peer_addr() {
                return (connection, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            let next = Instant::now() + self.idle_limit;
            self.idle.as_mut().reset(next);
            return read;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<S: Known> Connected for Counted<S> {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.io.peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn silent_connections_are_closed() {
        let listener = tcp(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limited = Limited { idle_limit: Duration::from_millis(100), ..Limited::new(listener) };
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut served = limited.connection().await;
        let mut byte = [0];
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            client.write_all(b"x").await.unwrap();
            served.read_exact(&mut byte).await.unwrap();
        }
        let error = served.read(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
