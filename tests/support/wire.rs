//! Kills an agent at a chosen system call: `strace` follows its threads and sends SIGKILL as one of them enters its n-th call of a kind. The
//! call itself is not performed any more.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::eventually;

/// A kind of place where a process may die.
#[derive(Clone, Debug)]
pub struct Point {
    /// Names of the threads that are followed begin so; all threads, also those begun later, when this is empty.
    pub threads: &'static str,
    /// The system call.
    pub call: &'static str,
    /// Only calls on these files, if any are named.
    pub paths: Vec<PathBuf>,
}

impl Point {
    /// The calls of threads with this name.
    pub fn of(threads: &'static str, call: &'static str) -> Self {
        Self { threads, call, paths: Vec::new() }
    }

    /// The calls of any thread on these files.
    pub fn on(call: &'static str, paths: &[PathBuf]) -> Self {
        Self { threads: "", call, paths: paths.to_vec() }
    }
}

/// A trip wire across a running process. Dropped, it is taken away, and the process goes on.
pub struct Wire(Child);

impl Wire {
    /// Lays it across a process that runs; `n` counts from one, from now on, for each thread by itself. It lies when this returns.
    pub fn lay(pid: u32, point: &Point, n: usize) -> Self {
        let threads = threads(pid, point.threads);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "strace", "-qqq", "-o", "/dev/null"]);
        command.args(["-e", &format!("trace={}", point.call)]);
        command.args(["-e", &format!("inject={}:signal=SIGKILL:when={n}", point.call)]);
        for path in &point.paths {
            command.arg("-P").arg(path);
        }
        if point.threads.is_empty() {
            command.args(["-f", "-p", &pid.to_string()]);
        } else {
            command.args(threads.iter().flat_map(|thread| ["-p".to_owned(), thread.to_string()]));
        }
        let strace = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv starts");
        eventually("the wire lies", || threads.iter().all(|thread| is_traced(pid, *thread)));
        Self(strace)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // On this signal it lets go of the process. It may wait for ever for a thread that died while it was being attached.
        let pid = Pid::from_raw(self.0.id().try_into().expect("a process number"));
        let _ = kill(pid, Signal::SIGTERM);
        let patience = Instant::now() + Duration::from_millis(500);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The threads of a process whose names begin so.
pub fn threads(pid: u32, name: &str) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    numbers.filter(|thread| thread_name(pid, *thread).starts_with(name)).collect()
}

/// The name of a thread; empty when there is none.
pub fn thread_name(pid: u32, thread: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default().trim().to_owned()
}

/// Whether a thread is followed. One that has ended needs not be.
fn is_traced(pid: u32, thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("TracerPid:")).all(|tracer| tracer.trim() != "0")
}

/// Whether a line of `strace` shows a request that modifies links or addresses. Of a socket in another namespace `strace` does not find out the
/// protocol, and shows the bare number.
pub fn modifies(line: &str) -> bool {
    let requests = [("NEWLINK", "0x10"), ("DELLINK", "0x11"), ("SETLINK", "0x13"), ("NEWADDR", "0x14"), ("DELADDR", "0x15")];
    let shows =
        |(name, number): &(&str, &str)| line.contains(&format!("nlmsg_type=RTM_{name}")) || line.contains(&format!("nlmsg_type={number} "));
    requests.iter().any(shows)
}
