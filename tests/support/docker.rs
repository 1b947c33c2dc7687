//! A real Docker on a test's host: its daemon, containerd, networks and containers live in the host's namespaces, everything that they write is in
//! the host's own `/run`, and all of it ends with the host.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Host, eventually, eventually_ok};

/// Docker's socket, on the host.
pub const SOCKET: &str = "/run/docker.sock";
/// The only image: a static busybox.
const IMAGE: &str = "busybox";
/// What the daemon is told. The rest are its defaults, above all the folder of its sandboxes. No rule, bridge or switch of the network is set.
const DAEMON: [&str; 14] = [
    "--data-root=/run/docker-data",
    "--storage-driver=vfs",
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
    "--userland-proxy=false",
    "--exec-opt=native.cgroupdriver=cgroupfs",
    "--shutdown-timeout=5",
    "--log-driver=none",
    "--pidfile=/run/docker.pid",
    "--host",
    "unix:///run/docker.sock",
];

/// A Docker daemon.
pub struct Docker<'h> {
    host: &'h Host,
    more: Vec<String>,
    child: Option<Child>,
}

impl Host {
    /// A Docker on this host (made by [`Host::contained`]) that has the image and serves.
    pub fn start_docker(&self) -> Docker<'_> {
        self.start_docker_with(&[])
    }

    /// The same with more arguments for the daemon.
    pub fn start_docker_with(&self, more: &[&str]) -> Docker<'_> {
        let mut docker = Docker { host: self, more: more.iter().map(ToString::to_string).collect(), child: None };
        docker.start();
        let image = self.path("image.tar");
        pack_image(&self.path("image"), &image);
        docker.ask(&["import", &image.display().to_string(), IMAGE]);
        docker
    }
}

/// A file system with nothing but busybox.
fn pack_image(folder: &Path, archive: &Path) {
    std::fs::create_dir_all(folder.join("bin")).expect("the host's folder");
    std::fs::copy("/bin/busybox", folder.join("bin/busybox")).expect("busybox (Debian: busybox-static)");
    for name in ["sh", "sleep", "true"] {
        std::os::unix::fs::symlink("busybox", folder.join("bin").join(name)).expect("the host's folder");
    }
    let packed = Command::new("tar").arg("-C").arg(folder).arg("-cf").arg(archive).arg(".").status();
    assert!(packed.is_ok_and(|status| status.success()), "tar");
}

impl Docker<'_> {
    /// Starts the daemon (again), and waits until it serves.
    pub fn start(&mut self) {
        self.spawn();
        eventually_ok("Docker serves", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("a child"));
            assert_eq!(ended, None, "Docker ended at its start");
            self.try_ask(&["version"])
        });
    }

    /// Starts the daemon (again), and does not wait.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "Docker runs already");
        let log = || File::options().append(true).create(true).open(self.log_path()).expect("a log file");
        let mut command = self.host.command("", "dockerd");
        // The machine's own configuration is not read.
        let configuration = self.host.path("dockerd.json");
        std::fs::write(&configuration, "{}").expect("the host's folder");
        command.args(DAEMON).arg(format!("--cgroup-parent={}", self.host.cgroup()));
        command.arg("--config-file").arg(configuration).args(&self.more);
        self.child = Some(command.stdout(log()).stderr(log()).spawn().expect("nsenter starts"));
    }

    fn log_path(&self) -> PathBuf {
        self.host.path("dockerd.log")
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.host.pid_of(self.child.as_ref().expect("Docker runs"));
        kill(Pid::from_raw(pid.try_into().expect("a process number")), signal).expect("Docker runs");
    }

    /// Asks the daemon to end, which ends its containers too unless it was told otherwise, and waits until it has.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.wait();
    }

    /// Kills the daemon. Containers go on.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    fn wait(&mut self) {
        let mut child = self.child.take().expect("Docker runs");
        eventually("Docker ends", || child.try_wait().expect("a child").is_some());
    }

    /// Calls the client; what it printed, or why it failed.
    pub fn try_ask(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.host.command("", "docker");
        command.env("DOCKER_CONFIG", self.host.path("docker")).arg(format!("--host=unix://{SOCKET}")).args(arguments);
        let output = command.output().expect("nsenter starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(format!("docker {arguments:?}: {}", text(&output.stderr))) }
    }

    /// Calls the client and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn ask(&self, arguments: &[&str]) -> String {
        self.try_ask(arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a container of this name that does nothing, without a network, as the microservice of this label; returns its id.
    pub fn run(&self, name: &str, label: &str) -> String {
        self.run_with(name, label, &["--network=none"], &["sleep", "infinity"])
    }

    /// Runs a container with a network and more options of one's own, and a command.
    pub fn run_with(&self, name: &str, label: &str, options: &[&str], command: &[&str]) -> String {
        self.bring("run", &["--detach"], name, label, options, command)
    }

    /// Makes a container as [`Docker::run`] does, and does not start it.
    pub fn create(&self, name: &str, label: &str, options: &[&str], command: &[&str]) -> String {
        self.bring("create", &[], name, label, options, command)
    }

    fn bring(&self, verb: &str, how: &[&str], name: &str, label: &str, options: &[&str], command: &[&str]) -> String {
        let (name, label) = (format!("--name={name}"), format!("--env=MICROSERVICE_LABEL={label}"));
        // Nobody in there would listen to a softer signal.
        self.ask(&[&[verb], how, &[&name, &label, "--stop-signal=KILL"], options, &[IMAGE], command].concat())
    }

    /// The number of a container's first process, on the host; 0 when it does not run.
    pub fn pid(&self, container: &str) -> u32 {
        self.ask(&["inspect", "--format={{.State.Pid}}", container]).parse().expect("a number")
    }

    /// The path of a running container's network namespace, on the host.
    pub fn netns(&self, container: &str) -> String {
        let pid = self.pid(container);
        assert_ne!(pid, 0, "{container} does not run");
        format!("/proc/{pid}/ns/net")
    }
}

#[allow(clippy::print_stderr, reason = "shown with the failed test")]
impl Drop for Docker<'_> {
    fn drop(&mut self) {
        // Containers and their keepers end with the host.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("---- end of the log of Docker ----\n{}\n----", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}
