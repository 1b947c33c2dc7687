//! A container runtime that is a script: it answers Docker's API on a unix socket with whatever the test wants told, when the test wants it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use vnf_agent::linux::netns_thread::cookie_of;
use vnf_agent::model::NetnsId;

/// So many events are remembered, as by Docker.
const MEMORY: usize = 256;

/// A process in a network namespace of its own. It ends with this value, and so do the control groups that it was in.
pub struct Process {
    child: Child,
    groups: PathBuf,
}

impl Process {
    pub fn start() -> Self {
        Self::spawn(&["--net"])
    }

    /// One in the test's own network namespace.
    pub fn start_in_own() -> Self {
        Self::spawn(&[])
    }

    fn spawn(unshared: &[&str]) -> Self {
        let child = Command::new("unshare").args(unshared).args(["sleep", "infinity"]).stdin(Stdio::null()).spawn().expect("unshare");
        let name = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&name).expect("a process").trim() != "sleep" {
            std::thread::sleep(Duration::from_millis(2));
        }
        let groups = group_root().join(format!("vnf-test-{}", child.id()));
        Self { child, groups }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Puts it into the control group of this container (or of several, as a path), as runtimes do with all its processes.
    pub fn belongs_to(&self, container: &str) {
        let group = self.groups.join(container);
        std::fs::create_dir_all(&group).expect("a control group");
        std::fs::write(group.join("cgroup.procs"), self.pid().to_string()).expect("the process is moved");
    }

    pub fn netns(&self) -> NetnsId {
        use std::os::fd::AsFd;
        cookie_of(std::fs::File::open(format!("/proc/{}/ns/net", self.pid())).expect("a process").as_fd()).expect("its namespace")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_groups(&self.groups);
    }
}

/// A group's files go with it; only groups in it must go first.
fn remove_groups(group: &Path) {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).for_each(|inner| remove_groups(&inner));
    let _ = std::fs::remove_dir(group);
}

/// Control groups of either version.
fn group_root() -> &'static Path {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"].map(Path::new);
    roots.into_iter().find(|root| root.join("cgroup.procs").exists()).expect("control groups")
}

/// A container as the runtime shows it.
#[derive(Clone, Debug)]
pub struct Shown {
    pub env: Vec<String>,
    pub pid: u32,
    /// RFC 3339.
    pub started: String,
    pub sandbox: String,
    pub running: bool,
}

impl Shown {
    pub fn running(label: &str, pid: u32) -> Self {
        Self { env: vec![format!("MICROSERVICE_LABEL={label}")], pid, started: stamp(now()), sandbox: String::new(), running: true }
    }
}

/// How a question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mood {
    Well,
    /// Never.
    Hang,
    /// With an error.
    Fail,
    /// With what is no answer.
    Rubbish,
}

type Hook = Box<dyn FnMut(&mut Script, &str) + Send>;

/// What the runtime shows.
#[derive(Default)]
pub struct Script {
    pub containers: BTreeMap<String, Shown>,
    pub api_version: String,
    /// Moods of `version`, `list`, `events`, and of `inspect` or `inspect ID`.
    pub moods: BTreeMap<String, Mood>,
    /// Called after each inspection with the container's id.
    pub after_inspection: Option<Hook>,
    /// Events that are told nobody, though remembered.
    pub mute: bool,
    events: Vec<(i64, Value)>,
    listeners: Vec<mpsc::UnboundedSender<Value>>,
    pub asked: Vec<String>,
}

impl Script {
    fn mood(&self, question: &str) -> Mood {
        let kind = question.split(' ').next().unwrap_or(question);
        self.moods.get(question).or_else(|| self.moods.get(kind)).copied().unwrap_or(Mood::Well)
    }

    /// Tells an event, now.
    pub fn event(&mut self, action: &str, id: &str) {
        self.event_at(action, id, now());
    }

    pub fn event_at(&mut self, action: &str, id: &str, at: i64) {
        let event = json!({"Type": "container", "Action": action, "Actor": {"ID": id, "Attributes": {}}, "scope": "local", "time": at / 1_000_000_000, "timeNano": at});
        self.events.push((at, event.clone()));
        if self.events.len() > MEMORY {
            self.events.remove(0);
        }
        if !self.mute {
            self.listeners.retain(|listener| listener.send(event.clone()).is_ok());
        }
    }

    /// Shows a container that runs, and tells so.
    pub fn start(&mut self, id: &str, label: &str, process: &Process) {
        process.belongs_to(id);
        self.containers.insert(id.to_owned(), Shown::running(label, process.pid()));
        self.event("start", id);
    }

    pub fn end(&mut self, id: &str) {
        let shown = self.containers.get_mut(id).expect("a container");
        (shown.running, shown.pid) = (false, 0);
        self.event("die", id);
    }

    /// Breaks off all streams of events.
    pub fn cut(&mut self) {
        self.listeners.clear();
    }

    /// How many ask for events at the moment.
    pub fn listeners(&self) -> usize {
        self.listeners.iter().filter(|listener| !listener.is_closed()).count()
    }
}

type Shared = Arc<Mutex<Script>>;

/// The runtime, serving on its socket.
pub struct Runtime {
    pub socket: PathBuf,
    script: Shared,
    serving: Option<JoinHandle<()>>,
}

impl Runtime {
    pub fn start(socket: &Path) -> Self {
        let script = Shared::new(Mutex::new(Script { api_version: "1.41".to_owned(), ..Script::default() }));
        let mut runtime = Self { socket: socket.to_owned(), script, serving: None };
        runtime.open();
        runtime
    }

    /// What it shows, to be changed.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no test panics with it")
    }

    /// Makes the socket and serves on it.
    pub fn open(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).expect("a socket");
        let routes = Router::new().fallback(answer).with_state(self.script.clone());
        self.serving = Some(tokio::spawn(async move { drop(axum::serve(listener, routes).await) }));
    }

    /// Takes the socket away, and breaks off what is open.
    pub fn close(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        self.script().cut();
    }
}

async fn answer(State(script): State<Shared>, uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    let path = if path.starts_with("v1.") { path.split_once('/').map_or("", |(_, rest)| rest) } else { path };
    let id = path.strip_prefix("containers/").and_then(|rest| rest.strip_suffix("/json"));
    let question = match (path, id) {
        ("version", _) => "version".to_owned(),
        ("containers/json", _) => "list".to_owned(),
        ("events", _) => "events".to_owned(),
        (_, Some(id)) => format!("inspect {id}"),
        _ => return (StatusCode::NOT_FOUND, path.to_owned()).into_response(),
    };
    let mood = {
        let mut script = script.lock().expect("no test panics with it");
        script.asked.push(question.clone());
        script.mood(&question)
    };
    match mood {
        Mood::Hang => std::future::pending().await,
        Mood::Fail => (StatusCode::INTERNAL_SERVER_ERROR, json!({"message": "it went wrong"}).to_string()).into_response(),
        Mood::Rubbish => "{\"Id\": [}\n".into_response(),
        Mood::Well => well(&script, &question, id, uri.query().unwrap_or_default()),
    }
}

fn well(script: &Shared, question: &str, id: Option<&str>, query: &str) -> Response {
    let mut script = script.lock().expect("no test panics with it");
    match (question, id) {
        ("version", _) => json!({"ApiVersion": script.api_version, "MinAPIVersion": "1.12"}).to_string().into_response(),
        ("list", _) => {
            let running = script.containers.iter().filter(|(_, shown)| shown.running);
            let list: Vec<Value> = running.map(|(id, _)| json!({"Id": id, "Names": [format!("/name-{id}")], "State": "running"})).collect();
            Value::from(list).to_string().into_response()
        }
        ("events", _) => {
            let since = query.split('&').find_map(|pair| pair.strip_prefix("since=")?.parse::<f64>().ok()).unwrap_or_default();
            let past: Vec<Value> =
                script.events.iter().filter(|(at, _)| *at as f64 / 1e9 >= since).map(|(_, event)| event.clone()).collect();
            let (sender, receiver) = mpsc::unbounded_channel();
            if !script.mute {
                past.into_iter().for_each(|event| drop(sender.send(event)));
            }
            script.listeners.push(sender);
            let lines = futures::stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|event| (event, receiver)) });
            Body::from_stream(lines.map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))))).into_response()
        }
        (_, Some(id)) => {
            let shown = script.containers.get(id).cloned();
            if let Some(mut hook) = script.after_inspection.take() {
                hook(&mut script, id);
                script.after_inspection = Some(hook);
            }
            match shown {
                Some(shown) => inspection(id, &shown).to_string().into_response(),
                None => (StatusCode::NOT_FOUND, json!({"message": "No such container"}).to_string()).into_response(),
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn inspection(id: &str, shown: &Shown) -> Value {
    json!({
        "Id": id,
        "Name": format!("/name-{id}"),
        "State": {"Status": if shown.running { "running" } else { "exited" }, "Running": shown.running, "Paused": false, "Pid": shown.pid, "StartedAt": shown.started},
        "Config": {"Env": shown.env},
        "NetworkSettings": {"SandboxKey": shown.sandbox},
    })
}

/// Nanoseconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos().try_into().expect("before 2262")
}

/// RFC 3339.
pub fn stamp(nanos: i64) -> String {
    let (seconds, nanos) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    prost_types::Timestamp { seconds, nanos: nanos.try_into().expect("less than a second") }.to_string()
}

/// Ids of everybody that was asked about.
pub fn inspected(asked: &[String]) -> BTreeSet<&str> {
    asked.iter().filter_map(|question| question.strip_prefix("inspect ")).collect()
}
