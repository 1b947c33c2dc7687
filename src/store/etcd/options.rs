//! Where etcd is and how to be let in. Files are read at every connection, so rotated certificates and passwords are taken up.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tonic::transport::Uri;

use super::error::{Failure, Kind, within};
use crate::store::StoreError;

/// How long one endpoint may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long any single call may take.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// HTTP/2 pings. etcd closes connections that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(7);
const PING_LIMIT: Duration = Duration::from_secs(3);

/// Where etcd is and how to be let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdOptions {
    /// `http://host:port`, `https://host:port` or `host:port` (TLS when `ca` is given). At least one.
    pub endpoints: Vec<String>,
    /// PEM file with the authorities that etcd's certificate must come from.
    pub ca: Option<PathBuf>,
    /// PEM file with our certificate; together with `key`.
    pub cert: Option<PathBuf>,
    /// PEM file with the key of our certificate.
    pub key: Option<PathBuf>,
    /// etcd user; together with `password_file`.
    pub user: Option<String>,
    /// File that holds the user's password; a line end after it does not count.
    pub password_file: Option<PathBuf>,
}

impl EtcdOptions {
    /// Completes the endpoints with their scheme, and refuses what can never work.
    pub(super) fn checked(mut self) -> Result<Self, StoreError> {
        let refuse = |cause: String| StoreError::Refused { attempted: "read the etcd options".to_owned(), cause };
        if self.endpoints.is_empty() {
            return Err(refuse("no endpoint is given".to_owned()));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err(refuse("a certificate and its key must be given together".to_owned()));
        }
        if self.user.is_some() != self.password_file.is_some() {
            return Err(refuse("a user and a password file must be given together".to_owned()));
        }
        if self.cert.is_some() && self.ca.is_none() {
            return Err(refuse("a certificate needs the certificate authority (ca) of etcd beside it".to_owned()));
        }
        let tls = self.ca.is_some();
        for endpoint in &mut self.endpoints {
            let given = endpoint.trim();
            let complete =
                if given.contains("://") { given.to_owned() } else { format!("{}://{given}", if tls { "https" } else { "http" }) };
            let uri: Uri = complete.parse().map_err(|error| refuse(format!("endpoint `{given}`: {error}")))?;
            match uri.scheme_str() {
                _ if uri.host().is_none_or(str::is_empty) => return Err(refuse(format!("endpoint `{given}` names no host"))),
                _ if uri.port_u16().is_none() => return Err(refuse(format!("endpoint `{given}` names no port"))),
                Some("http") if tls => return Err(refuse(format!("endpoint `{given}` is http, but a certificate authority is given"))),
                Some("https") if !tls => return Err(refuse(format!("endpoint `{given}` is https, but no certificate authority is given"))),
                Some("http" | "https") => *endpoint = complete.trim_end_matches('/').to_owned(),
                _ => return Err(refuse(format!("endpoint `{given}` is neither http nor https"))),
            }
        }
        Ok(self)
    }

    /// Opens a connection to one endpoint. Without a user this asks nothing of etcd yet.
    pub(super) async fn connect(&self, endpoint: &str) -> Result<Client, Failure> {
        let attempted = "connect to etcd";
        let mut options = ConnectOptions::new()
            .with_keep_alive(PING_EVERY, PING_LIMIT)
            .with_keep_alive_while_idle(true)
            .with_connect_timeout(CONNECT_LIMIT)
            .with_auto_token_refresh(true)
            // Else a member that is cut off from the others answers with silence instead of an error.
            .with_require_leader(true);
        if let Some(ca) = &self.ca {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(attempted, ca).await?));
            if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
                tls = tls.identity(Identity::from_pem(read(attempted, cert).await?, read(attempted, key).await?));
            }
            options = options.with_tls(tls);
        }
        if let (Some(user), Some(file)) = (&self.user, &self.password_file) {
            let password = String::from_utf8(read(attempted, file).await?)
                .map_err(|_| refused(attempted, format!("{} is not UTF-8", file.display())))?;
            options = options.with_user(user, password.trim_end_matches(['\r', '\n']));
        }
        within(CALL_LIMIT, attempted, Client::connect([endpoint], Some(options))).await
    }

    /// Adds what the transport does not tell: with TLS 1.3 a server refuses our certificate only after the handshake, and whether its
    /// words arrive before the connection is closed is a matter of luck.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        if self.ca.is_none() || failure.cause != "connection closed" {
            return failure;
        }
        let hint = if self.cert.is_some() { "it may not accept our certificate" } else { "it may ask for a client certificate" };
        Failure { cause: format!("etcd closed the connection at once; {hint}"), ..failure }
    }

    /// What the files are now; another value means that they must be read again.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let files = [&self.ca, &self.cert, &self.key, &self.password_file];
        Fingerprint(files.into_iter().flatten().map(|file| stamp(file)).collect())
    }
}

/// Modification times and sizes of the files; `None` for one that cannot be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<Option<(SystemTime, u64)>>);

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

async fn read(attempted: &str, file: &Path) -> Result<Vec<u8>, Failure> {
    tokio::fs::read(file).await.map_err(|error| refused(attempted, format!("read {}: {error}", file.display())))
}

fn refused(attempted: &str, cause: String) -> Failure {
    Failure { attempted: attempted.to_owned(), cause, kind: Kind::Refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(endpoints: &[&str]) -> EtcdOptions {
        EtcdOptions { endpoints: endpoints.iter().map(|&e| e.to_owned()).collect(), ..EtcdOptions::default() }
    }

    #[test]
    fn endpoints_get_their_scheme() {
        assert_eq!(at(&["a:2379", "http://b:1/"]).checked().unwrap().endpoints, ["http://a:2379", "http://b:1"]);
        let tls = EtcdOptions { ca: Some("ca.pem".into()), ..at(&["a:2379", "https://b:1"]) };
        assert_eq!(tls.checked().unwrap().endpoints, ["https://a:2379", "https://b:1"]);
    }

    #[test]
    fn what_can_never_work_is_refused_at_once() {
        let ca = Some(PathBuf::from("ca.pem"));
        for (bad, words) in [
            (at(&[]), "no endpoint"),
            (at(&["ftp://a:1"]), "neither http nor https"),
            (at(&["https://a:1"]), "no certificate authority"),
            (at(&["http://"]), "endpoint"),
            (at(&["a b"]), "endpoint"),
            (at(&["http://a"]), "no port"),
            (EtcdOptions { ca: ca.clone(), ..at(&["http://a:1"]) }, "is http"),
            (EtcdOptions { ca: ca.clone(), cert: ca.clone(), ..at(&["a:1"]) }, "its key"),
            (EtcdOptions { cert: ca.clone(), key: ca.clone(), ..at(&["a:1"]) }, "authority"),
            (EtcdOptions { user: Some("u".to_owned()), ..at(&["a:1"]) }, "password file"),
        ] {
            let error = bad.clone().checked().unwrap_err().to_string();
            assert!(error.contains(words), "{bad:?}: {error}");
        }
    }
}
