//! etcd processes, in the network namespace of the thread that starts them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One member with its data.
pub struct Etcd {
    child: Option<Child>,
    dir: tempfile::TempDir,
    name: String,
    client_url: String,
    args: Vec<String>,
    /// Runs as this user, so that its packets can be told from the others'.
    user: Option<u32>,
    /// How etcdctl gets in.
    pub ctl_args: Vec<String>,
}

impl Etcd {
    /// A single member on the usual ports of this namespace.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A single member with more arguments.
    pub fn start_with(args: &[&str]) -> Self {
        let mut etcd = Self::member("m0", 2379, "m0=http://127.0.0.1:2380", args);
        etcd.up();
        etcd
    }

    /// A member that is not started yet.
    pub fn member(name: &str, port: u16, cluster: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let scheme = if args.contains(&"--cert-file") { "https" } else { "http" };
        let client_url = format!("{scheme}://127.0.0.1:{port}");
        let args = args.iter().map(|&arg| arg.to_owned()).chain(["--initial-cluster".to_owned(), cluster.to_owned()]).collect();
        Self { child: None, dir, name: name.to_owned(), client_url, args, user: None, ctl_args: Vec::new() }
    }

    /// Runs it as a user of its own.
    pub fn run_as(mut self, user: u32) -> Self {
        std::os::unix::fs::chown(self.dir.path(), Some(user), Some(user)).expect("chown");
        self.user = Some(user);
        self
    }

    /// Loses all packets between it and the other members; clients still reach it.
    pub fn cut_off(&self) {
        let (user, own) = (self.user.expect("a user of its own"), self.port() + 1);
        let rules = format!(
            "table inet cut {{ chain output {{ type filter hook output priority 0;
             tcp dport {own} drop; tcp sport {own} drop; meta skuid {user} tcp dport {{ 2380, 2480, 2580 }} drop; }}; }}"
        );
        assert!(Command::new("nft").arg(rules).status().expect("run nft").success());
        // On connections that it made, the others could still speak to it: those between the others come back, its own cannot.
        let ports = [2380, 2480, 2580].map(|port| format!("sport = :{port} or dport = :{port}")).join(" or ");
        let killed = Command::new("ss").args(["-K", "-H", "-t", &ports]).stdout(Stdio::null()).status().expect("run ss");
        assert!(killed.success());
    }

    fn port(&self) -> u16 {
        self.client_url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> String {
        self.client_url.clone()
    }

    /// Starts the process without waiting.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "{} is running", self.name);
        let peer = format!("http://127.0.0.1:{}", self.port() + 1);
        let log = std::fs::File::options().append(true).create(true).open(self.log()).expect("a log file");
        // Ends with the thread of the test, however that ends.
        let user = self.user.map(|user| ["--reuid".to_owned(), user.to_string(), "--clear-groups".to_owned()]);
        let child = Command::new("setpriv")
            .args(user.iter().flatten())
            .args(["--pdeathsig", "KILL", "--", "etcd", "--name", &self.name, "--unsafe-no-fsync", "--logger", "zap"])
            .args(["--data-dir".as_ref(), self.data().as_os_str()])
            .args(["--listen-client-urls", &self.client_url, "--advertise-client-urls", &self.client_url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(&self.args)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start etcd");
        self.child = Some(child);
    }

    /// Starts the process and waits until it answers linearizably.
    pub fn up(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Waits until it takes connections and has a leader.
    pub fn wait_ready(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.try_ctl(&["get", "--consistency=l", "ready?"]).0 {
            assert!(Instant::now() < end, "etcd does not answer:\n{}", std::fs::read_to_string(self.log()).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it without warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill etcd");
            child.wait().expect("etcd is gone");
        }
    }

    /// Ends it in good order.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.child.take().expect("running").wait().expect("etcd is gone");
        assert!(status.signal().is_none_or(|signal| signal == Signal::SIGTERM as i32), "{status}");
    }

    /// Freezes it.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Thaws it.
    pub fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Throws its data away; it must not be running.
    pub fn wipe(&self) {
        assert!(self.child.is_none());
        std::fs::remove_dir_all(self.data()).expect("remove the data");
    }

    /// Runs etcdctl and returns what it printed; panics when it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        let (ok, text) = self.try_ctl(args);
        assert!(ok, "etcdctl {args:?}: {text}");
        text
    }

    /// Runs etcdctl; says whether it succeeded, and what it printed.
    pub fn try_ctl(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.client_url, "--dial-timeout=1s", "--command-timeout=3s"])
            .args(&self.ctl_args)
            .args(args)
            .output()
            .expect("run etcdctl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }

    /// Writes one key.
    pub fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", "--", key, value]);
    }

    /// Removes one key.
    pub fn del(&self, key: &str) {
        self.ctl(&["del", "--", key]);
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().expect("running").id();
        kill(Pid::from_raw(i32::try_from(id).expect("a process id")), signal).expect("signal etcd");
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Certificates of one authority, made by openssl.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes an authority in this directory.
    pub fn new(dir: &Path) -> Self {
        let made = Self(dir.to_owned());
        made.run(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &format!("/CN=authority {}", dir.file_name().and_then(|name| name.to_str()).expect("a name")),
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
        ]);
        made
    }

    /// Makes `<name>.pem` and `<name>.key`, good for 127.0.0.1.
    pub fn issue(&self, name: &str) {
        std::fs::write(self.path("san"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n").expect("write");
        let (key, request, cert) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        self.run(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        self.run(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "san",
            "-out",
            &cert,
        ]);
    }

    /// A file of this authority.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn run(&self, args: &[&str]) {
        let output = Command::new("openssl").current_dir(&self.0).args(args).output().expect("run openssl");
        assert!(output.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
