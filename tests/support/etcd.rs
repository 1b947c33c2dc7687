//! A real etcd on a test's host, with everything that may happen to one.

use std::fs::File;
use std::process::Child;

use etcd_client::{Client, DeleteOptions, GetOptions, Txn, TxnOp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Host, eventually, wish};

const ENDPOINT: &str = "http://127.0.0.1:2379";
const PEER: &str = "http://127.0.0.1:2380";
/// Most operations in one transaction that etcd takes.
const TXN_LIMIT: usize = 128;

/// The prefix of the keys of the agent with label `vpp1`.
pub const PREFIX: &str = "/vnf-agent/vpp1/";

/// An etcd with one member.
pub struct Etcd<'h> {
    host: &'h Host,
    child: Option<Child>,
}

impl Host {
    /// An etcd on this host, serving.
    pub fn start_etcd(&self) -> Etcd<'_> {
        let mut etcd = self.etcd();
        etcd.start();
        etcd
    }

    /// An etcd on this host, not yet started.
    pub fn etcd(&self) -> Etcd<'_> {
        Etcd { host: self, child: None }
    }
}

/// The whole key of an interface's wish.
pub fn config_key(name: &str) -> String {
    format!("{PREFIX}linux/config/v1/interface/{name}")
}

/// The whole key of an interface's status.
pub fn status_key(name: &str) -> String {
    format!("{PREFIX}linux/status/v1/interface/{name}")
}

impl Etcd<'_> {
    /// Starts it (again) on its data, and waits until it serves.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "etcd runs already");
        let log = || File::options().append(true).create(true).open(self.host.path("etcd.log")).expect("a log file");
        let mut command = self.host.command("", "etcd");
        command.arg("--data-dir").arg(self.host.path("etcd")).arg("--unsafe-no-fsync");
        command.args(["--listen-client-urls", ENDPOINT, "--advertise-client-urls", ENDPOINT]);
        command.args(["--listen-peer-urls", PEER, "--initial-advertise-peer-urls", PEER]);
        command.args(["--initial-cluster", &format!("default={PEER}")]);
        self.child = Some(command.stdout(log()).stderr(log()).spawn().expect("nsenter starts"));
        eventually("etcd serves", || self.client(async |mut client| client.get("x", None).await.is_ok()));
    }

    fn signal(&self, signal: Signal) {
        let pid = self.host.pid_of(self.child.as_ref().expect("etcd runs"));
        kill(Pid::from_raw(pid.try_into().expect("a process number")), signal).expect("etcd runs");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.take().expect("etcd runs").wait().expect("a child");
    }

    /// Kills it and forgets all its data. Its cluster id stays the same.
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.host.path("etcd")).expect("etcd's data");
    }

    /// Freezes it: connections stay, nobody answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Works with a client on a thread inside the host.
    pub fn client<T: Send>(&self, work: impl AsyncFnOnce(Client) -> T + Send) -> T {
        self.host.inside("", || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { work(Client::connect([ENDPOINT], None).await.expect("connecting is lazy")).await })
        })
    }

    /// Writes any bytes under an interface's key.
    pub fn put_raw(&self, name: &str, value: &[u8]) {
        self.put_key(&config_key(name), value);
    }

    /// Writes any bytes under any key.
    pub fn put_key(&self, key: &str, value: &[u8]) {
        self.client(async |mut client| client.put(key, value, None).await.map(drop)).expect("etcd takes the value");
    }

    /// Writes a wish under the key of its name.
    pub fn put(&self, wish: &Value) {
        self.put_raw(wish::name(wish), wish.to_string().as_bytes());
    }

    /// Writes wishes in as few transactions as possible.
    pub fn put_all<'w>(&self, wishes: impl IntoIterator<Item = &'w Value>) {
        let puts: Vec<TxnOp> = wishes.into_iter().map(|wish| TxnOp::put(config_key(wish::name(wish)), wish.to_string(), None)).collect();
        self.transact(puts);
    }

    /// Deletes the keys of these interfaces in as few transactions as possible.
    pub fn delete_all(&self, names: &[&str]) {
        self.transact(names.iter().map(|name| TxnOp::delete(config_key(name), None)).collect());
    }

    fn transact(&self, operations: Vec<TxnOp>) {
        self.client(async |mut client| {
            for part in operations.chunks(TXN_LIMIT) {
                client.txn(Txn::new().and_then(part)).await.expect("etcd takes the transaction");
            }
        });
    }

    /// Deletes an interface's key.
    pub fn delete(&self, name: &str) {
        self.client(async |mut client| client.delete(config_key(name), None).await.map(drop)).expect("etcd deletes");
    }

    /// Deletes everything below the agent's prefix.
    pub fn delete_everything(&self) {
        let all = Some(DeleteOptions::new().with_prefix());
        self.client(async |mut client| client.delete(PREFIX, all).await.map(drop)).expect("etcd deletes");
    }

    /// Writes an interface's key with a lease that nobody keeps alive; returns the lease.
    pub fn put_leased(&self, wish: &Value, seconds: i64) -> i64 {
        self.client(async |mut client| {
            let lease = client.lease_grant(seconds, None).await.expect("etcd grants").id();
            let options = Some(etcd_client::PutOptions::new().with_lease(lease));
            client.put(config_key(wish::name(wish)), wish.to_string(), options).await.expect("etcd takes the value");
            lease
        })
    }

    /// The value of a key, as JSON.
    pub fn get(&self, key: &str) -> Option<Value> {
        let answer = self.client(async |mut client| client.get(key, None).await).expect("etcd answers");
        answer.kvs().first().map(|kv| serde_json::from_slice(kv.value()).expect("JSON"))
    }

    /// The store's revision.
    pub fn revision(&self) -> i64 {
        let answer = self.client(async |mut client| client.get("x", None).await).expect("etcd answers");
        answer.header().expect("a header").revision()
    }

    /// What a key held at each revision from this one on, as JSON.
    pub fn history(&self, key: &str, from: i64) -> Vec<Value> {
        let held = |revision: i64| {
            let options = Some(GetOptions::new().with_revision(revision));
            let answer = self.client(async |mut client| client.get(key, options).await).expect("etcd answers");
            answer.kvs().first().map(|kv| serde_json::from_slice(kv.value()).expect("JSON"))
        };
        (from..=self.revision()).filter_map(held).collect()
    }

    /// The lease of a key; 0 for none.
    pub fn lease_of(&self, key: &str) -> i64 {
        let answer = self.client(async |mut client| client.get(key, None).await).expect("etcd answers");
        answer.kvs().first().map_or(0, etcd_client::KeyValue::lease)
    }

    /// The keys below a prefix.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let options = Some(GetOptions::new().with_prefix().with_keys_only());
        let answer = self.client(async |mut client| client.get(prefix, options).await).expect("etcd answers");
        answer.kvs().iter().map(|kv| kv.key_str().expect("text").to_owned()).collect()
    }

    /// The values below a prefix as JSON, each with its lease, in the order of the keys.
    pub fn values(&self, prefix: &str) -> Vec<(Value, i64)> {
        let answer = self.client(async |mut client| client.get(prefix, Some(GetOptions::new().with_prefix())).await).expect("etcd answers");
        answer.kvs().iter().map(|kv| (serde_json::from_slice(kv.value()).expect("JSON"), kv.lease())).collect()
    }

    /// Writes a key outside of the agent's prefix many times: so many revisions pass.
    pub fn pass_revisions(&self, count: usize) {
        self.client(async |mut client| {
            for n in 0..count {
                client.put("/unrelated", n.to_string(), None).await.expect("etcd takes the value");
            }
        });
    }

    /// Forgets all history up to now.
    pub fn compact(&self) {
        let now = self.revision();
        self.client(async |mut client| client.compact(now, None).await).expect("etcd compacts");
    }
}

impl Drop for Etcd<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
