//! The agent's binary and its client, as users run them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::host::Process;
use super::{Host, eventually, eventually_ok, wish};

/// Where the agent answers HTTP, inside its host.
const HTTP: &str = "127.0.0.1:9191";

/// An agent on a host. Dropped, it is killed; its log is printed if the test failed.
pub struct Agent<'h> {
    host: &'h Host,
    label: String,
    http: bool,
    arguments: Vec<String>,
    trace: Option<(PathBuf, String)>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

impl Host {
    /// An agent with label `vpp1` on the embedded store, not yet started.
    pub fn agent(&self) -> Agent<'_> {
        Agent { host: self, label: "vpp1".to_owned(), http: true, arguments: Vec::new(), trace: None, environment: Vec::new(), child: None }
    }

    /// An agent with label `vpp1` on the embedded store, ready.
    pub fn start_agent(&self) -> Agent<'_> {
        self.agent().started()
    }
}

/// How a call of `vnfctl` ended.
pub struct Answer {
    /// Its exit status.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Agent<'_> {
    /// With another label. Only `vpp1` serves HTTP.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self.http = label == "vpp1";
        self
    }

    /// Serving HTTP whatever its label.
    #[must_use]
    pub fn with_http(mut self) -> Self {
        self.http = true;
        self
    }

    /// On the etcd of its host.
    #[must_use]
    pub fn on_etcd(self) -> Self {
        self.with(&["--etcd-endpoints", "http://127.0.0.1:2379"])
    }

    /// Following the Docker of its host.
    #[must_use]
    pub fn on_docker(self) -> Self {
        self.with(&["--docker-host", &format!("unix://{}", super::docker::SOCKET)])
    }

    /// With further arguments.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Records every message that it sends, from the next start on (`strace`).
    pub fn trace_messages(&mut self) {
        self.trace_calls("sendto,sendmsg,sendmmsg");
    }

    /// Records these system calls, from the next start on (`strace`).
    pub fn trace_calls(&mut self, calls: &str) {
        self.trace = Some((self.file("strace"), calls.to_owned()));
    }

    /// With these variables in its environment, and no others of this kind, from the next start on.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.environment = environment;
    }

    /// Starts it and waits until it answers on its socket.
    #[must_use]
    pub fn started(mut self) -> Self {
        self.start();
        self
    }

    /// Starts it (again), and waits until it answers on its socket.
    pub fn start(&mut self) {
        self.spawn();
        eventually("the agent answers", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("a child"));
            assert_eq!(ended, None, "the agent ended at its start");
            self.vnfctl(&["namespaces"]).code == 0
        });
    }

    /// Starts it (again), and does not wait.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the agent runs already");
        let log = || File::options().append(true).create(true).open(self.log_path()).expect("a log file");
        let binary = env!("CARGO_BIN_EXE_vnf-agent");
        let mut command = match &self.trace {
            // -D keeps the agent our child: strace is the one that is put aside.
            Some((file, calls)) => {
                let mut command = self.host.command("", "strace");
                command.args(["-D", "-f", "-qq", "-e", &format!("trace={calls}"), "-o"]).arg(file).arg(binary);
                command
            }
            None => self.host.command("", binary),
        };
        let http = if self.http { HTTP } else { "off" };
        command.args(["--label", &self.label, "--grpc-listen", "off", "--http-listen", http]);
        if !self.arguments.iter().any(|argument| argument == "--docker-host") {
            command.args(["--docker-host", "off"]);
        }
        command.arg("--state-dir").arg(self.state_dir()).arg("--socket").arg(self.socket());
        command.args(&self.arguments).envs(self.environment.iter().cloned()).stdout(log()).stderr(log());
        for name in ["RUST_LOG", "ETCD_ENDPOINTS", "ETCDV3_ENDPOINTS", "MICROSERVICE_LABEL"] {
            command.env_remove(name);
        }
        self.child = Some(command.spawn().expect("nsenter starts"));
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.host.path(&format!("{}.{ending}", self.label))
    }

    /// Its state folder.
    pub fn state_dir(&self) -> PathBuf {
        self.file("state")
    }

    /// Its gRPC socket.
    pub fn socket(&self) -> PathBuf {
        self.file("sock")
    }

    fn log_path(&self) -> PathBuf {
        self.file("log")
    }

    /// Its log, of all its starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// What it sent to the kernel and others since its last start with [`Agent::trace_messages`], one message a line.
    pub fn trace(&self) -> String {
        std::fs::read_to_string(self.file("strace")).expect("tracing was asked for")
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.host.pid_of(self.child.as_ref().expect("the agent runs"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().try_into().expect("a process number"));
        kill(pid, signal).expect("the agent runs");
    }

    /// Whether it has ended, by itself or killed. [`Agent::wait`] is still to be called before it is started again.
    pub fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("the agent was started");
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        // Its sockets are closed before its end can be waited for: who was told of one must not find it alive.
        let dying = is_dying(child.id());
        if dying {
            child.wait().expect("a child");
        }
        dying
    }

    /// Asks it to end and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the agent runs");
        let ended = eventually_ok("the agent ends", || child.try_wait().expect("a child").ok_or("it runs"));
        drop(std::fs::remove_file(self.socket()));
        ended
    }

    /// Stops it and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Runs `vnfctl` against it.
    pub fn vnfctl(&self, arguments: &[&str]) -> Answer {
        self.vnfctl_with(arguments, b"")
    }

    /// Runs `vnfctl` against it, with this as its standard input.
    pub fn vnfctl_with(&self, arguments: &[&str], input: &[u8]) -> Answer {
        let mut command = self.host.command("", env!("CARGO_BIN_EXE_vnfctl"));
        command.arg("--agent").arg(format!("unix:{}", self.socket().display())).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter starts");
        // A command that does not read its input may have ended already.
        drop(child.stdin.take().expect("piped").write_all(input));
        let Output { status, stdout, stderr } = child.wait_with_output().expect("a child");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Answer { code: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Runs `vnfctl` against it and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ask(&self, arguments: &[&str]) -> String {
        self.vnfctl(arguments).expect_done(arguments)
    }

    /// Runs a command of `vnfctl` that does not end by itself; it ends when the process is dropped. What it prints goes to the file.
    pub fn watch(&self, arguments: &[&str]) -> (Process, PathBuf) {
        let path = self.file("watch");
        let mut command = self.host.command("", env!("CARGO_BIN_EXE_vnfctl"));
        command.arg("--agent").arg(format!("unix:{}", self.socket().display())).args(arguments);
        let child = command.stdout(File::create(&path).expect("a file")).spawn().expect("nsenter starts");
        (Process(child), path)
    }

    /// Writes one wish under the key of its name.
    pub fn put(&self, wish: &Value) {
        self.put_raw(wish::name(wish), wish.to_string().as_bytes());
    }

    /// Writes any bytes under an interface's key.
    pub fn put_raw(&self, name: &str, value: &[u8]) {
        let key = format!("linux/config/v1/interface/{name}");
        self.vnfctl_with(&["put", &key, "-"], value).expect_done(&["put", &key]);
    }

    /// Deletes an interface's key.
    pub fn del(&self, name: &str) {
        self.ask(&["del", &format!("linux/config/v1/interface/{name}")]);
    }

    /// Writes many wishes at once and waits until they have settled.
    ///
    /// # Panics
    /// When one of them is INVALID, FAILED or RETRYING then.
    pub fn apply<'w>(&self, wishes: impl IntoIterator<Item = &'w Value>) {
        self.write(wishes, &["--wait"]);
    }

    /// Writes many wishes at once and waits for nothing.
    pub fn put_all<'w>(&self, wishes: impl IntoIterator<Item = &'w Value>) {
        self.write(wishes, &[]);
    }

    fn write<'w>(&self, wishes: impl IntoIterator<Item = &'w Value>, more: &[&str]) {
        let folder = tempfile::tempdir_in(self.host.path("")).expect("a temporary folder");
        for (n, wish) in wishes.into_iter().enumerate() {
            write_file(&folder.path().join(format!("{n:05}.json")), wish.to_string().as_bytes());
        }
        self.ask(&[&["apply", "-f", &folder.path().display().to_string()], more].concat());
    }

    /// The statuses of all interfaces.
    pub fn statuses(&self) -> Vec<Value> {
        listed(&self.ask(&["-o", "json", "interfaces"]))
    }

    /// The status of one interface, by the last part of its key.
    pub fn status(&self, name: &str) -> Option<Value> {
        self.statuses().into_iter().find(|status| status["name"] == name)
    }

    /// Waits until an interface is in this state, and for this reason if that is not empty; returns its status.
    pub fn wait_for(&self, name: &str, state: &str, reason: &str) -> Value {
        eventually_ok(&format!("{name} is {state} {reason}"), || {
            let status = self.status(name).unwrap_or_default();
            let as_wished = status["state"] == state && (reason.is_empty() || status["reason"] == reason);
            if as_wished { Ok(status) } else { Err(status) }
        })
    }

    /// Waits until all these interfaces are configured.
    pub fn wait_configured(&self, names: &[&str]) {
        eventually_ok(&format!("{names:?} are configured"), || {
            let all = self.statuses();
            let configured = |name: &str| all.iter().any(|status| status["name"] == name && status["state"] == "CONFIGURED");
            let missing: Vec<_> = names.iter().filter(|name| !configured(name)).collect();
            let Some(first) = missing.first() else { return Ok(()) };
            Err((missing.len(), all.iter().find(|status| status["name"] == ***first).cloned()))
        });
    }

    /// Waits until nothing is known of an interface.
    pub fn wait_forgotten(&self, name: &str) {
        eventually_ok(&format!("{name} is forgotten"), || self.status(name).map_or(Ok(()), Err));
    }

    /// The passes that it remembers, the newest first.
    pub fn history(&self) -> Vec<Value> {
        listed(&self.ask(&["-o", "json", "history", "--limit", "1000"]))
    }

    /// The sum of all its metrics whose names contain a word.
    ///
    /// # Panics
    /// When there is none.
    pub fn metric(&self, word: &str) -> f64 {
        let (_, text) = self.http("/metrics");
        let samples =
            text.lines().filter(|line| !line.starts_with('#') && line.split(['{', ' ']).next().is_some_and(|name| name.contains(word)));
        let values: Vec<f64> = samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        assert!(!values.is_empty(), "no metric `{word}` in: {text}");
        values.iter().sum()
    }

    /// Gets a path over HTTP: status code and body.
    pub fn http(&self, path: &str) -> (u16, String) {
        let answer = self.host.inside("", || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(HTTP)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        let answer = answer.unwrap_or_default();
        let code = answer.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (code, body.to_owned())
    }

    /// Waits until it says that it is ready.
    pub fn wait_ready(&self) {
        eventually_ok("the agent is ready", || match self.http("/readiness") {
            (200, _) => Ok(()),
            other => Err(other),
        });
    }

    /// Waits until it says that it is not ready, and returns the reason.
    pub fn wait_unready(&self) -> String {
        eventually_ok("the agent is not ready", || match self.http("/readiness") {
            (503, reason) => Ok(reason),
            other => Err(other),
        })
    }
}

impl Answer {
    /// What was printed.
    ///
    /// # Panics
    /// When the command failed.
    pub fn expect_done(self, arguments: &[&str]) -> String {
        assert_eq!(self.code, 0, "vnfctl {arguments:?} failed: {}{}", self.stdout, self.stderr);
        self.stdout
    }
}

/// The objects in an answer of `vnfctl -o json`.
fn listed(text: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("vnfctl printed no JSON ({error}): {text}"));
    let Value::Array(all) = value else { panic!("vnfctl printed no list: {text}") };
    all
}

fn write_file(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file in the host's folder");
}

#[allow(clippy::print_stderr, reason = "shown with the failed test")]
impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("---- log of agent {} ----\n{}---- end of log ----", self.label, self.log());
        }
    }
}

/// Whether a process was killed and is on its way out (`PF_EXITING` of proc_pid_stat(5), or SIGKILL that is pending).
fn is_dying(pid: u32) -> bool {
    const EXITING: u64 = 4;
    const KILLED: u64 = 1 << (Signal::SIGKILL as u64 - 1);
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let flags = read("stat").rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    let pending = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    let is_pending = |line: &str| {
        ["SigPnd:", "ShdPnd:"].iter().any(|word| line.starts_with(word)) && pending(line).is_some_and(|mask| mask & KILLED != 0)
    };
    flags.is_some_and(|flags| flags & EXITING != 0) || read("status").lines().any(is_pending)
}
