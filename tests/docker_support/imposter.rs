//! A process with the number of one that has ended.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Host;
use crate::support::eventually;
use crate::support::host::{Process, inode};

/// A process that has a number of one's choice and sits in a named namespace, until it is dropped.
pub struct Imposter<'h> {
    host: &'h Host,
    pid: u32,
    _shell: Process,
}

impl<'h> Imposter<'h> {
    /// Makes one, by telling the kernel which number it gave last in the host's PID namespace.
    ///
    /// # Panics
    /// When others take the number a thousand times.
    pub fn new(host: &'h Host, pid: u32, netns: &str) -> Self {
        let before = pid - 1;
        let script = format!(
            "for round in $(seq 1000); do
                 echo {before} >/proc/sys/kernel/ns_last_pid
                 nsenter --net=/run/netns/{netns} sleep infinity &
                 if [ $! = {pid} ]; then echo taken; wait; exit; fi
                 kill -9 $!
             done"
        );
        let mut shell = host.command("", "sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("nsenter starts");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line).expect("the shell speaks");
        assert_eq!(line.trim(), "taken", "the number {pid} was not to be had");
        let imposter = Self { host, pid, _shell: Process(shell) };
        let (file, wanted) = (host.outside(&format!("/proc/{pid}/ns/net")), inode(&host.netns_file(netns)));
        eventually("the imposter is in its namespace", || inode(&file) == wanted);
        imposter
    }
}

impl Drop for Imposter<'_> {
    fn drop(&mut self) {
        let _ = self.host.try_run(&format!("kill -9 {}", self.pid));
    }
}
