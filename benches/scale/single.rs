//! One pair at a time: from the put of both keys to both ends usable, and on to the statuses; beside the store's own delay and the kernel's own time.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use etcd_client::{Client, Txn, TxnOp, WatchOptions};
use tokio::runtime::Runtime;

use crate::bed::{self, LIMIT, note};
use crate::floor::Floor;
use crate::hear::{ADDRESSES, Ears, LINKS, Usable};
use crate::report::Report;
use crate::run::Run;
use crate::support::{Etcd, Host};
use crate::verify::{Eyes, Wanted};
use crate::work::{MTU, Pair};

pub const USABLE: &str = "single pair: put of both keys, both ends usable";
pub const WATCH: &str = "the store's watch delay: put of two such keys, a plain watcher hears";
const CONFIGURED: &str = "single pair: put of both keys, both statuses CONFIGURED in etcd";
const LAG: &str = "single pair: both ends usable, both statuses CONFIGURED in etcd";
const FLOOR: &str = "single pair: the kernel alone, to the last answer";
/// The first ones open connections and sockets.
const WARM: usize = 5;
/// Namespaces.
const SPACES: usize = 10;
/// What the plain watcher watches: nobody's configuration.
const ASIDE: &str = "/aside/";

/// Something became so.
pub enum Heard {
    /// A link can be used.
    Usable(String),
    /// A status key says CONFIGURED.
    Configured(String),
    /// The plain watcher has heard of a key.
    Aside(String),
}

/// All that is heard, by the moment.
pub type Telling = (Instant, Heard);

/// Listens in all namespaces for links that become usable.
pub fn hear_usable(host: &Host, spaces: usize, tell: &Sender<Telling>) -> Ears {
    let (tell, mut usable) = (tell.clone(), Usable::default());
    Ears::open(host, spaces, &[LINKS, ADDRESSES], move |at, id, news| {
        if let Some(name) = usable.hear(id, news) {
            let _ = tell.send((at, Heard::Usable(name)));
        }
    })
}

/// A client of a host's etcd.
pub struct Writer {
    client: Client,
    runtime: Runtime,
}

impl Writer {
    pub fn connect(host: &Host) -> Self {
        host.inside("", || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut client = runtime.block_on(Client::connect(["http://127.0.0.1:2379"], None)).unwrap();
            // The connection is made by the first request; from then on it works from any thread.
            runtime.block_on(client.get("x", None)).unwrap();
            Self { client, runtime }
        })
    }

    /// Performs operations in one transaction; returns the moment before.
    pub fn transact(&mut self, operations: Vec<TxnOp>) -> Instant {
        let start = Instant::now();
        self.runtime.block_on(self.client.txn(Txn::new().and_then(operations))).unwrap();
        start
    }
}

/// Tells of the keys below a prefix, as a plain watcher hears of them, until nobody listens any more.
fn watch(host: &Host, prefix: &str, tell: &Sender<Telling>, hear: impl Fn(&str, &[u8]) -> Option<Heard>) {
    let mut writer = Writer::connect(host);
    writer.runtime.block_on(async {
        let mut watch = writer.client.watch(prefix, Some(WatchOptions::new().with_prefix())).await.unwrap();
        while let Ok(Some(message)) = watch.message().await {
            let at = Instant::now();
            for event in message.events() {
                let kv = event.kv().unwrap();
                let name = kv.key_str().unwrap().strip_prefix(prefix).unwrap();
                if let Some(heard) = hear(name, kv.value())
                    && tell.send((at, heard)).is_err()
                {
                    return;
                }
            }
        }
    });
}

fn configured(name: &str, value: &[u8]) -> Option<Heard> {
    let status: serde_json::Value = serde_json::from_slice(value).ok()?;
    (status["state"] == "CONFIGURED").then(|| Heard::Configured(name.to_owned()))
}

/// The link that can be used.
pub fn usable(heard: Heard) -> Option<String> {
    if let Heard::Usable(name) = heard { Some(name) } else { None }
}

/// Waits until both ends of a pair are heard of so; returns when the second one was.
pub fn until_both(heard: &Receiver<Telling>, pair: &Pair, so: impl Fn(Heard) -> Option<String>) -> Instant {
    let names = pair.ends.each_ref().map(|end| end.name.clone());
    let mut left = names.len();
    loop {
        let (at, what) = heard.recv_timeout(LIMIT).expect("it is heard of in time");
        left -= usize::from(so(what).is_some_and(|name| names.contains(&name)));
        if left == 0 {
            return at;
        }
    }
}

/// Measures so many pairs, the agent, the plain watcher and the kernel alone by turns.
pub fn measure(report: &mut Report, count: usize) {
    note("single pairs");
    let host = bed::host(SPACES, true);
    let etcd = host.start_etcd();
    let mut run = Run::new(&host, &etcd);
    run.agent.start();
    let mut samples = Samples::default();
    turns(&host, &etcd, &run, count + WARM, &mut samples);
    for (what, mut all) in samples {
        all.drain(..WARM);
        report.latency(what, all);
    }
}

type Samples = HashMap<&'static str, Vec<Duration>>;

fn turns(host: &Host, etcd: &Etcd<'_>, run: &Run<'_>, count: usize, samples: &mut Samples) {
    let mut floor = Floor::new(host, SPACES);
    let mut eyes = Eyes::new(host, SPACES);
    let (tell, heard) = channel();
    let _ears = hear_usable(host, SPACES, &tell);
    let (aside, aside_heard) = channel();
    let prefix = bed::status_prefix(&run.label);
    std::thread::scope(|scope| {
        scope.spawn(|| watch(host, &prefix, &tell, configured));
        scope.spawn(|| watch(host, ASIDE, &aside, |name, _| Some(Heard::Aside(name.to_owned()))));
        // The watches are open soon.
        std::thread::sleep(Duration::from_millis(500));
        let mut writer = Writer::connect(host);
        for n in 0..count {
            let pair = Pair::new(n, SPACES);
            let puts = puts_aside(&pair);
            let start = writer.transact(puts);
            let told = until_both(&aside_heard, &pair, |heard| if let Heard::Aside(name) = heard { Some(name) } else { None });
            samples.entry(WATCH).or_default().push(told.duration_since(start));

            turn(&mut writer, &heard, run, &pair, samples);
            eyes.until(Wanted::pairs(std::slice::from_ref(&pair), MTU, &run.label), Instant::now());
            remove(&mut writer, &mut eyes, run, &pair);

            let start = Instant::now();
            floor.create(std::slice::from_ref(&pair), 1);
            samples.entry(FLOOR).or_default().push(start.elapsed());
            floor.clear();
            while heard.try_recv().is_ok() {}
        }
        // Its watchers end when their next event finds nobody.
        drop((heard, aside_heard));
        wake(etcd, &prefix);
    });
}

fn puts_aside(pair: &Pair) -> Vec<TxnOp> {
    pair.wishes(MTU).iter().zip(&pair.ends).map(|(wish, end)| TxnOp::put(format!("{ASIDE}{}", end.name), wish.to_string(), None)).collect()
}

fn turn(writer: &mut Writer, heard: &Receiver<Telling>, run: &Run<'_>, pair: &Pair, samples: &mut Samples) {
    let start = writer.transact(bed::puts(&run.label, &pair.wishes(MTU)));
    let (mut usable, mut configured) = (Vec::new(), Vec::new());
    while usable.len() < 2 || configured.len() < 2 {
        let (at, what) = heard.recv_timeout(LIMIT).expect("the pair is made in time");
        let ours = |name: &String| pair.ends.iter().any(|end| end.name == *name);
        match what {
            Heard::Usable(name) if ours(&name) => usable.push(at),
            Heard::Configured(name) if ours(&name) => configured.push(at),
            _ => {}
        }
    }
    let (usable, configured) = (usable[1], configured[1]);
    samples.entry(USABLE).or_default().push(usable.duration_since(start));
    samples.entry(CONFIGURED).or_default().push(configured.duration_since(start));
    samples.entry(LAG).or_default().push(configured.saturating_duration_since(usable));
}

fn remove(writer: &mut Writer, eyes: &mut Eyes, run: &Run<'_>, pair: &Pair) {
    writer.transact(pair.ends.iter().map(|end| TxnOp::delete(bed::config_key(&run.label, &end.name), None)).collect());
    eyes.until(Wanted::NOTHING, Instant::now());
    run.forgotten();
}

/// An event for each watcher.
fn wake(etcd: &Etcd<'_>, prefix: &str) {
    let status = format!("{prefix}end");
    etcd.client(async |mut client| {
        client.put(format!("{ASIDE}end"), "", None).await.unwrap();
        client.put(status, r#"{"state":"CONFIGURED"}"#, None).await.unwrap();
    });
}
