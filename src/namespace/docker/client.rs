//! Three questions to a container runtime that speaks Docker's API on a unix socket: what runs, what is this container, what happens.
//!
//! Nothing here can change anything: there is no other question. Each has a deadline, for a runtime that hangs takes connections all the same.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, EventMessage};
use bollard::query_parameters::{EventsOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::{Stream, StreamExt};

use super::book::{Facts, Run};
use super::env::{self, Label};

/// How long an answer may take.
const CALL_LIMIT: Duration = Duration::from_secs(3);
/// States in which a container has a process.
const RUNNING: [&str; 2] = ["running", "paused"];

/// A question that was not answered: what was asked, and why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    attempted: &'static str,
    cause: String,
    /// The runtime is there and said no: the connection is not to blame.
    pub(super) refused: bool,
}

impl Failure {
    /// The stream of events ended.
    pub(super) fn closed() -> Self {
        Self { attempted: "follow containers", cause: "the container runtime closed the stream of events".to_owned(), refused: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempted, self.cause)
    }
}

/// What happened to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something that inspecting tells.
    Touched(String),
    /// A run ended, at this moment.
    Ended(String, i64),
    /// Nothing that matters here.
    Other,
}

/// Events as they come, each with its moment in nanoseconds since 1970.
pub type Events = Pin<Box<dyn Stream<Item = Result<(Event, i64), Failure>> + Send>>;

/// A connection to one runtime.
#[derive(Clone)]
pub struct Client(Docker);

impl Client {
    /// Finds the runtime, and the version of the API that both speak.
    ///
    /// # Errors
    /// Nobody answers, or the versions do not go together.
    pub async fn connect(socket: &Path) -> Result<Self, Failure> {
        let attempted = "connect to the container runtime";
        // Tried by hand first: the kernel's own words tell a missing right from a missing runtime.
        within(attempted, async { tokio::net::UnixStream::connect(socket).await.map_err(Error::from) }).await?;
        let path = socket.to_string_lossy();
        let docker = Docker::connect_with_unix(&path, CALL_LIMIT.as_secs(), API_DEFAULT_VERSION).map_err(|e| fail(attempted, &e))?;
        within("agree on an API version with the container runtime", docker.negotiate_version()).await.map(Self)
    }

    /// Ids of all containers that have a process.
    ///
    /// # Errors
    /// No answer, or none that can be read.
    pub async fn list(&self) -> Result<BTreeSet<String>, Failure> {
        // By state, and not by what the runtime takes for the default: not every one counts paused containers.
        let filters = HashMap::from([("status", RUNNING.to_vec())]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listing = within("list containers", self.0.list_containers(Some(options))).await?;
        Ok(listing.into_iter().filter_map(|container| container.id).collect())
    }

    /// One container; `None`: it does not exist (any more).
    ///
    /// # Errors
    /// No answer, or none that can be read.
    pub async fn inspect(&self, id: &str) -> Result<Option<Facts>, Failure> {
        let call = async {
            match self.0.inspect_container(id, None::<InspectContainerOptions>).await {
                Ok(container) => Ok(Some(facts(container))),
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        within("inspect a container", call).await
    }

    /// Events about containers from a moment on, in seconds since 1970 with a fraction. Nothing is asked for until the stream is read.
    pub fn events(&self, since: &str) -> Events {
        let filters = HashMap::from([("type", vec!["container"])]);
        let options = EventsOptionsBuilder::default().since(since).filters(&filters).build();
        let events = self.0.events(Some(options));
        Box::pin(events.map(|event| event.map(|event| read(&event)).map_err(|error| fail("follow containers", &error))))
    }
}

async fn within<T>(attempted: &'static str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(answer) => answer.map_err(|error| fail(attempted, &error)),
        Err(_) => Err(Failure { attempted, cause: format!("no answer within {} s", CALL_LIMIT.as_secs()), refused: false }),
    }
}

/// An error of the client in the words of its innermost cause.
fn fail(attempted: &'static str, error: &Error) -> Failure {
    let (cause, refused) = match error {
        Error::DockerResponseServerError { status_code, message } => (format!("HTTP {status_code}: {}", message.trim()), true),
        Error::JsonDataError { .. } | Error::JsonSerdeError { .. } => (format!("an answer that cannot be read: {error}"), true),
        Error::APIVersionParseError {} => ("it does not tell its API version".to_owned(), false),
        Error::RequestTimeoutError => (format!("no answer within {} s", CALL_LIMIT.as_secs()), false),
        error => {
            let mut innermost: &dyn std::error::Error = error;
            while let Some(source) = innermost.source() {
                innermost = source;
            }
            (innermost.to_string(), false)
        }
    };
    Failure { attempted, cause, refused }
}

fn facts(container: ContainerInspectResponse) -> Facts {
    let id = container.id.unwrap_or_default();
    let name = container.name.unwrap_or_default().trim_start_matches('/').to_owned();
    let label = match env::label(&container.config.and_then(|config| config.env).unwrap_or_default()) {
        Label::Some(label) => Some(label),
        Label::None => None,
        Label::Unusable(text) => {
            let text: String = text.chars().take(80).flat_map(char::escape_debug).collect();
            tracing::warn!(container = %id, name = %name.escape_debug(), label = text, "this MICROSERVICE_LABEL can be no reference (1 to 253 bytes, no control characters); the container is ignored");
            None
        }
    };
    let run = container.state.and_then(|state| {
        let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
        let running = state.running.unwrap_or_default() || state.paused.unwrap_or_default();
        running.then(|| Run { started: state.started_at.as_deref().and_then(nanoseconds), pid })
    });
    let sandbox = container.network_settings.and_then(|network| network.sandbox_key).filter(|key| !key.is_empty()).map(PathBuf::from);
    Facts { name, label, run, sandbox }
}

/// An RFC 3339 time in nanoseconds since 1970.
fn nanoseconds(text: &str) -> Option<i64> {
    let time: prost_types::Timestamp = text.parse().ok()?;
    (time.seconds > 0).then(|| time.seconds.checked_mul(1_000_000_000)?.checked_add(i64::from(time.nanos)))?
}

fn read(event: &EventMessage) -> (Event, i64) {
    let at = event.time_nano.or_else(|| event.time.and_then(|seconds| seconds.checked_mul(1_000_000_000))).unwrap_or_default();
    let id = event.actor.as_ref().and_then(|actor| actor.id.clone()).unwrap_or_default();
    let event = match event.action.as_deref().unwrap_or_default() {
        _ if id.is_empty() => Event::Other,
        // A restart is told as `die` and `start`; Podman has words of its own.
        "die" | "died" | "destroy" | "remove" | "cleanup" => Event::Ended(id, at),
        "start" | "stop" | "kill" | "oom" | "restart" | "rename" | "init" | "sync" => Event::Touched(id),
        // `exec_…`, `health_status…`, `attach` and the like come by the thousand.
        _ => Event::Other,
    };
    (event, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_runtimes() {
        assert_eq!(nanoseconds("2026-01-01T00:00:00.000000001Z"), Some(1_767_225_600_000_000_001));
        assert_eq!(nanoseconds("2026-01-01T02:00:00.5+02:00"), Some(1_767_225_600_500_000_000));
        assert_eq!(nanoseconds("0001-01-01T00:00:00Z"), None);
        assert_eq!(nanoseconds("soon"), None);
    }
}
