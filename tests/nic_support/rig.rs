//! A host with a NIC, Open vSwitch, etcd and an agent that can be cut off anywhere; and the process that stands by for it, started by hand.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use vnf_agent::external_node::stand_by::{ARGUMENT, Order};

use super::{BRIDGE, assert_reachable, digest, furnish, wait_digest};
use crate::support::etcd::PREFIX;
use crate::support::{Agent, Etcd, Host, LastWrite, Ovs, eventually, eventually_ok};

/// Everything around one NIC, `nic0`, and an agent that does not run yet.
pub struct Rig<'h> {
    pub host: &'h Host,
    pub ovs: Ovs<'h>,
    pub etcd: Etcd<'h>,
    pub agent: Agent<'h>,
    pub last_write: LastWrite,
    before: Value,
    settings: Vec<String>,
}

/// Where a NIC rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Plain,
    Attached,
}

impl<'h> Rig<'h> {
    pub fn new(host: &'h Host, arguments: &[&str]) -> Self {
        furnish(host);
        let (before, settings) = (digest(host, "nic0"), settings(host));
        let (ovs, etcd) = (host.start_ovs(), host.start_etcd());
        let agent = host.agent().on_etcd().with(&["--ovs-datapath", "netdev"]).with(arguments);
        Self { host, ovs, etcd, agent, last_write: LastWrite::new(host), before, settings }
    }

    pub fn wish(&self, wished: bool) {
        let key = format!("{PREFIX}external/config/v1/node/vpp1");
        match wished {
            true => self.wish_for(&["nic0"]),
            false => self.etcd.client(async |mut client| client.delete(key, None).await.map(drop)).expect("etcd takes it"),
        }
    }

    pub fn wish_for(&self, nics: &[&str]) {
        let key = format!("{PREFIX}external/config/v1/node/vpp1");
        let interfaces: Vec<Value> = nics.iter().map(|name| json!({"name": name})).collect();
        let value = json!({"name": "vpp1", "interfaces": interfaces}).to_string();
        self.etcd.client(async |mut client| client.put(key, value, None).await.map(drop)).expect("etcd takes it");
    }

    pub fn status(&self) -> Value {
        self.etcd.get(&format!("{PREFIX}external/status/v1/node/vpp1")).unwrap_or_default()
    }

    /// The journal as the agent sees it: its folder may be a mount of the host's own.
    pub fn journal_path(&self) -> std::path::PathBuf {
        self.host.outside(&self.agent.state_dir().join("nic/nic0.json").display().to_string())
    }

    pub fn journal(&self) -> Option<Value> {
        let text = fs::read(self.journal_path()).ok()?;
        Some(serde_json::from_slice(&text).expect("a journal is whole at every moment"))
    }

    /// Changes fields of the journal behind everybody's back, at once.
    pub fn change_journal(&self, fields: &Value) {
        let mut journal = self.journal().expect("a journal");
        for (key, value) in fields.as_object().expect("an object") {
            journal[key] = value.clone();
        }
        let beside = self.journal_path().with_extension("test");
        fs::write(&beside, journal.to_string()).expect("a file");
        fs::rename(beside, self.journal_path()).expect("a journal");
    }

    /// Where the NIC rests, if it rests.
    pub fn rest(&self) -> Option<Rest> {
        let uplink = self.host.link_names("").iter().any(|name| name == "nic0~");
        match self.journal() {
            None if !uplink => Some(Rest::Plain),
            Some(journal) if uplink && journal["intent"] == "ATTACHED" => Some(Rest::Attached),
            _ => None,
        }
    }

    /// Waits until the NIC is in one of these states.
    pub fn wait_rest(&self, good: &[Rest], what: &str) -> Rest {
        eventually_ok(&format!("{good:?}, {what}"), || {
            self.rest().filter(|rest| good.contains(rest)).ok_or_else(|| self.journal().map(|journal| journal["intent"].clone()))
        })
    }

    /// Waits until the NIC is attached and that is confirmed.
    pub fn wait_confirmed(&self, what: &str) {
        eventually_ok(&format!("confirmed, {what}"), || {
            let confirmed = || self.journal().is_some_and(|journal| journal["confirmed"] == true);
            if self.rest() == Some(Rest::Attached) && confirmed() { Ok(()) } else { Err(self.journal()) }
        });
    }

    /// Starts the agent, to be killed instead of its `n`-th write if there is one; whether it was, on its way to this rest. It does not run afterwards.
    pub fn go(&mut self, to: Rest, n: usize) -> bool {
        self.wish(to == Rest::Attached);
        self.agent.set_environment(if n == 0 { Vec::new() } else { self.last_write.of_agent(n) });
        self.agent.spawn();
        eventually_ok(&format!("killed instead of write {n}, or {to:?}"), || {
            let confirmed = || self.journal().is_some_and(|journal| journal["confirmed"] == true);
            let arrived = self.rest() == Some(to) && (to == Rest::Plain || confirmed());
            if self.agent.has_ended() || arrived { Ok(()) } else { Err((self.last_write.last(), self.journal())) }
        });
        let killed = self.agent.has_ended();
        if killed {
            self.agent.wait();
        } else {
            self.agent.kill();
            eventually("what is confirmed or plain needs nobody any more", || self.standing_by().is_empty());
        }
        self.agent.set_environment(Vec::new());
        killed
    }

    /// Starts the agent again without its store, and waits for one of these good states. It does not run afterwards.
    pub fn recover(&mut self, good: &[Rest], what: &str) -> Rest {
        self.etcd.freeze();
        assert_reachable(self.host, &format!("with neither agent nor store, {what}"));
        self.agent.spawn();
        let rest = self.wait_rest(good, what);
        assert_reachable(self.host, &format!("with the agent back, {what}"));
        self.agent.kill();
        self.etcd.thaw();
        rest
    }

    /// Waits until everything is as it was before the NIC was touched.
    pub fn assert_as_before(&self, what: &str) {
        wait_digest(self.host, &format!("everything is as it was, {what}"), &self.before);
        assert_eq!(settings(self.host), self.settings, "{what}");
    }

    /// Starts a process that stands by for the attachment of which the journal speaks; killed instead of its `n`-th write if there is one.
    pub fn stand_by(&self, n: usize) -> Child {
        let order = Order {
            nic: "nic0".into(),
            attachment: self.journal().expect("a journal")["attachment"].as_str().expect("a name").to_owned(),
            state_dir: self.agent.state_dir(),
            ovs_db: "unix:/run/openvswitch/db.sock".into(),
            bridge: BRIDGE.into(),
            label: "vpp1".into(),
            netdev: true,
            bypass_rules: Vec::new(),
        };
        let mut command = self.host.command("", env!("CARGO_BIN_EXE_vnf-agent"));
        command.arg(ARGUMENT).arg(serde_json::to_string(&order).expect("JSON")).envs(self.last_write.of_stand_by(n));
        let log = fs::File::options().append(true).create(true).open(self.host.path("stand-by.log")).expect("a log file");
        command.stdout(Stdio::null()).stderr(log).spawn().expect("nsenter starts")
    }

    /// The numbers of all processes that stand by for this host.
    pub fn standing_by(&self) -> Vec<i32> {
        let folder = self.agent.state_dir().display().to_string();
        let is_one = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<String> = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            words.get(1).is_some_and(|word| word == ARGUMENT) && words.iter().any(|word| word.contains(&folder))
        };
        fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_one)
            .collect()
    }

    /// What those have said that were started by hand.
    pub fn stand_by_log(&self) -> String {
        fs::read_to_string(self.host.path("stand-by.log")).unwrap_or_default()
    }

    /// The attachment was not confirmed, and its time is over.
    pub fn overdue(&self) {
        self.change_journal(&json!({"confirmed": false, "confirm_until": 0}));
    }
}

/// All settings of the link, as far as they can be read.
fn settings(host: &Host) -> Vec<String> {
    let read = || {
        let folders = ["ipv4", "ipv6"].map(|family| format!("/proc/sys/net/{family}/conf/nic0"));
        let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder")).flatten().map(|file| file.path());
        let text = |file: std::path::PathBuf| Some(format!("{}: {}", file.display(), fs::read_to_string(&file).ok()?));
        let mut lines: Vec<String> = files.filter_map(text).collect();
        lines.sort();
        lines
    };
    host.inside("", read)
}
