//! What went wrong with a call to etcd: classified here once, and told in the words of the real cause.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use etcd_client::Error;
use tonic::Code;

use crate::store::StoreError;

/// How etcd begins the messages that are its own; everything else comes from the transport.
const SERVERS_WORDS: &str = "etcdserver:";

/// What a failure asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No answer, or none that counts: try elsewhere, later. The outcome of a write is unknown.
    Unreachable,
    /// Nothing came within the deadline; otherwise as unreachable.
    Silent,
    /// etcd said no.
    Refused,
    /// The token is not accepted (any more).
    Token,
    /// The history that was asked for is gone, or not there yet: list again.
    Compacted,
    /// The answer is larger than we decode: ask for less.
    TooLarge,
    /// Nothing failed: the connection is to be made anew with other files.
    Renew,
    /// There is no such lease (any more).
    LeaseGone,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What was attempted: `list /vnf-agent/vpp1/linux/config/v1/interface/`.
    pub(super) attempted: String,
    /// Why not, in the words of etcd, TLS or the kernel.
    pub(super) cause: String,
    /// What it asks for.
    pub(super) kind: Kind,
}

impl Failure {
    /// Classifies an error of the client.
    pub(super) fn new(attempted: &str, error: &Error) -> Self {
        Self { attempted: attempted.to_owned(), cause: cause(error), kind: kind(error) }
    }

    /// A failure that no call reported.
    pub(super) fn unreachable(attempted: &str, cause: impl Into<String>) -> Self {
        Self { attempted: attempted.to_owned(), cause: cause.into(), kind: Kind::Unreachable }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.attempted, self.cause)
    }
}

impl From<Failure> for StoreError {
    fn from(Failure { attempted, cause, kind }: Failure) -> Self {
        match kind {
            Kind::Unreachable | Kind::Silent => Self::Unreachable { attempted, cause },
            Kind::Refused | Kind::Token | Kind::Compacted | Kind::TooLarge | Kind::Renew | Kind::LeaseGone => {
                Self::Refused { attempted, cause }
            }
        }
    }
}

/// Waits for a call, but not for ever: the client has no deadlines of its own.
pub(super) async fn within<T>(limit: Duration, attempted: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| Failure::new(attempted, &error)),
        Err(_) => {
            Err(Failure { kind: Kind::Silent, ..Failure::unreachable(attempted, format!("no answer within {} s", limit.as_secs_f32())) })
        }
    }
}

/// Whether the reason of a cancelled watch is the token; a cancelled watch carries no code, only text.
pub(super) fn is_token(reason: &str) -> bool {
    reason.contains("invalid auth token") || reason.contains("auth token is not provided")
}

fn kind(error: &Error) -> Kind {
    let status = match error {
        Error::GRpcStatus(status) => status,
        // The client reports a keep-alive that came back with no time to live in this way only.
        Error::LeaseKeepAliveError(_) => return Kind::LeaseGone,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => return Kind::Refused,
        _ => return Kind::Unreachable,
    };
    match status.code() {
        Code::OutOfRange if status.message().starts_with(SERVERS_WORDS) => Kind::Compacted,
        Code::OutOfRange => Kind::TooLarge,
        Code::Unauthenticated => Kind::Token,
        Code::NotFound if status.message().contains("lease not found") => Kind::LeaseGone,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Unimplemented => Kind::Refused,
        _ => Kind::Unreachable,
    }
}

/// The innermost cause says most (`Connection refused`, `invalid peer certificate: UnknownIssuer`); what etcd itself says stands alone.
fn cause(error: &Error) -> String {
    let status = match error {
        Error::GRpcStatus(status) => status,
        other => return other.to_string(),
    };
    let mut innermost = status.message().to_owned();
    let mut source = status.source();
    while let Some(inner) = source {
        innermost = inner.to_string();
        source = inner.source();
    }
    if innermost.is_empty() { format!("{:?}", status.code()) } else { innermost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    fn kind_of(code: Code, message: &str) -> Kind {
        kind(&Error::GRpcStatus(Status::new(code, message)))
    }

    #[test]
    fn statuses_are_classified() {
        assert_eq!(kind_of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"), Kind::Compacted);
        assert_eq!(kind_of(Code::OutOfRange, "decoded message length too large: found 6189026 bytes"), Kind::TooLarge);
        assert_eq!(kind_of(Code::Unauthenticated, "etcdserver: invalid auth token"), Kind::Token);
        assert_eq!(kind_of(Code::NotFound, "etcdserver: requested lease not found"), Kind::LeaseGone);
        assert_eq!(kind_of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), Kind::Refused);
        assert_eq!(kind_of(Code::PermissionDenied, "etcdserver: permission denied"), Kind::Refused);
        assert_eq!(kind_of(Code::Unavailable, "etcdserver: no leader"), Kind::Unreachable);
        assert_eq!(kind_of(Code::Unknown, "h2 protocol error: error reading a body from connection"), Kind::Unreachable);
        assert_eq!(kind(&Error::LeaseKeepAliveError("lease not found".to_owned())), Kind::LeaseGone);
    }

    #[test]
    fn the_reason_of_a_cancelled_watch_names_the_token() {
        assert!(is_token("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"));
        assert!(!is_token("rpc error: code = PermissionDenied desc = etcdserver: permission denied"));
    }
}
