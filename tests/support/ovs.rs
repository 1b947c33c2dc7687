//! A real Open vSwitch of a test's own: `ovsdb-server` and `ovs-vswitchd` in its host, with their usual paths there, on the user space datapath.
//!
//! What that datapath does otherwise than the kernel's, and a test must know ([`Nic`] sees to it): a NIC behind the bridge is only listened to, so
//! the host's own stack goes on answering under it until it is deafened, and checksums that a veth leaves to hardware reach the other side
//! undone. Without both, a test of flows passes although no flow works, or fails although all do.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vnf_agent::model::OvsdbTarget;

use super::{Host, eventually};

const RUN: &str = "/run/openvswitch";

/// Open vSwitch on one host.
pub struct Ovs<'h> {
    pub host: &'h Host,
    database: Option<Child>,
    switch: Option<Child>,
}

impl Host {
    /// Open vSwitch on this host, serving, without any bridge.
    pub fn start_ovs(&self) -> Ovs<'_> {
        let mut ovs = Ovs { host: self, database: None, switch: None };
        std::fs::create_dir_all(self.outside(RUN)).expect("a folder");
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        self.run(&format!("ovsdb-tool create {} {schema}", self.path("ovs.db").display()));
        ovs.start_database();
        ovs.vsctl("--no-wait init");
        ovs.start_switch();
        ovs
    }
}

impl Ovs<'_> {
    fn program(&self, name: &str) -> Command {
        let mut command = self.host.command("", name);
        let log = || File::options().append(true).create(true).open(self.host.path(&format!("{name}.log"))).expect("a log file");
        command.env("OVS_RUNDIR", RUN).stdout(log()).stderr(log());
        command.args(["--no-chdir", "-vconsole:info"]);
        command.arg(format!("--pidfile={RUN}/{name}.pid")).arg(format!("--unixctl={RUN}/{name}.ctl"));
        command
    }

    /// Starts the database server (again) on its data, and waits until it serves.
    pub fn start_database(&mut self) {
        assert!(self.database.is_none(), "the database server runs already");
        let mut command = self.program("ovsdb-server");
        command.arg(format!("--remote=punix:{RUN}/db.sock")).arg(self.host.path("ovs.db"));
        self.database = Some(command.spawn().expect("nsenter starts"));
        eventually("the database serves", || self.host.try_run("ovsdb-client --timeout=5 list-dbs").is_ok());
    }

    /// Starts the switch (again), and waits until it works.
    pub fn start_switch(&mut self) {
        assert!(self.switch.is_none(), "the switch runs already");
        let mut command = self.program("ovs-vswitchd");
        command.arg(format!("unix:{RUN}/db.sock"));
        self.switch = Some(command.spawn().expect("nsenter starts"));
        eventually("the switch works", || self.host.try_run(&format!("ovs-appctl --timeout=10 -t {RUN}/ovs-vswitchd.ctl version")).is_ok());
    }

    /// Kills the database server.
    pub fn kill_database(&mut self) {
        self.signal_database(Signal::SIGKILL);
        self.database.take().expect("it runs").wait().expect("a child");
    }

    /// Kills the switch.
    pub fn kill_switch(&mut self) {
        self.signal_switch(Signal::SIGKILL);
        self.switch.take().expect("it runs").wait().expect("a child");
    }

    /// Ends the switch so that it removes its devices.
    pub fn exit_switch_with_cleanup(&mut self) {
        self.host.run(&format!("ovs-appctl --timeout=10 -t {RUN}/ovs-vswitchd.ctl exit --cleanup"));
        self.switch.take().expect("it runs").wait().expect("a child");
    }

    /// Sends the database server a signal: SIGSTOP freezes it, SIGCONT lets it go on.
    pub fn signal_database(&self, signal: Signal) {
        send(self.database.as_ref(), signal);
    }

    /// Sends the switch a signal.
    pub fn signal_switch(&self, signal: Signal) {
        send(self.switch.as_ref(), signal);
    }

    /// Runs `ovs-vsctl` with these words and returns what it prints.
    pub fn vsctl(&self, line: &str) -> String {
        self.host.run(&format!("ovs-vsctl --timeout=60 {line}")).trim().to_owned()
    }

    /// One column of one row, as `ovs-vsctl` reads it.
    pub fn column(&self, table: &str, row: &str, column: &str) -> String {
        self.vsctl(&format!("get {table} {row} {column}"))
    }

    /// All rows of a table as JSON objects by column, read by `ovsdb-client`.
    pub fn rows(&self, table: &str) -> Vec<Value> {
        let text = self.host.run(&format!("ovsdb-client --timeout=60 -f json dump Open_vSwitch {table}"));
        let dump: Value = serde_json::from_str(&text).expect("JSON");
        let texts = |value: &Value| value.as_array().expect("a list").clone();
        let names: Vec<String> = texts(&dump["headings"]).iter().map(|name| name.as_str().expect("a text").to_owned()).collect();
        texts(&dump["data"]).iter().map(|row| Value::Object(names.iter().cloned().zip(texts(row)).collect())).collect()
    }

    /// Runs `ovs-ofctl` with these words and returns what it prints.
    pub fn ofctl(&self, line: &str) -> String {
        self.host.run(&format!("ovs-ofctl --timeout=60 -O OpenFlow15 {line}"))
    }

    /// Makes a bridge on the user space datapath.
    pub fn add_bridge(&self, name: &str) {
        self.vsctl(&format!("add-br {name} -- set bridge {name} datapath_type=netdev"));
    }

    /// Where the database listens, seen from the test process.
    pub fn socket(&self) -> PathBuf {
        self.host.outside(&format!("{RUN}/db.sock"))
    }

    /// The folder of the sockets, seen from the test process.
    pub fn run_dir(&self) -> PathBuf {
        self.host.outside(RUN)
    }

    /// The database, seen from the test process.
    pub fn target(&self) -> OvsdbTarget {
        OvsdbTarget::Unix(self.socket())
    }
}

fn send(child: Option<&Child>, signal: Signal) {
    let pid = child.expect("it runs").id();
    kill(Pid::from_raw(pid.try_into().expect("a process number")), signal).expect("it runs");
}

impl Drop for Ovs<'_> {
    fn drop(&mut self) {
        for child in [&mut self.switch, &mut self.database].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
