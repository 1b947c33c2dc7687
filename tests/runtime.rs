//! Following a container runtime that tells too late, twice, in another order, nothing, or nonsense: what a label leads to is right in the end, and
//! never to a namespace that no container with that label has.

mod runtime_support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use runtime_support::{Mood, Process, Runtime, Shown, now, stamp};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use vnf_agent::model::{NetnsId, NetnsRef, NetnsSlot, Reason};
use vnf_agent::namespace::docker::{Follower, RuntimeHealth, Timing, endpoint};
use vnf_agent::namespace::{NetnsEvent, NetnsSink, NetnsTracker, Tracker, TrackerOptions};

/// How long anything may take on a machine that does a lot besides.
const PATIENCE: Duration = Duration::from_secs(60);

struct Sink(Mutex<mpsc::Sender<NetnsEvent>>);

impl NetnsSink for Sink {
    fn netns_event(&self, event: NetnsEvent) {
        let _ = self.0.lock().expect("no test panics with it").send(event);
    }
}

/// A tracker and a follower, on a runtime of the test's own.
struct Watch {
    runtime: Runtime,
    dir: TempDir,
    tracker: Arc<Tracker>,
    events: Receiver<NetnsEvent>,
    health: watch::Receiver<RuntimeHealth>,
    stop: CancellationToken,
    /// Namespaces that were told, ever.
    told: BTreeSet<NetnsId>,
}

fn slot(label: &str) -> NetnsSlot {
    NetnsSlot::new(NetnsRef::Microservice(label.to_owned()), 0)
}

fn timing(listing: u64) -> Timing {
    Timing { listing: Duration::from_millis(listing), doubt: Duration::from_millis(200) }
}

/// Listings so rare that none comes in the test after the first.
const NEVER: u64 = 3_600_000;

impl Watch {
    fn start(listing: u64, prepare: impl FnOnce(&Runtime)) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = Runtime::start(&dir.path().join("runtime.sock"));
        prepare(&runtime);
        Self::on(runtime, dir, listing)
    }

    fn on(runtime: Runtime, dir: TempDir, listing: u64) -> Self {
        let (sender, events) = mpsc::channel();
        let options = TrackerOptions {
            state_dir: Some(dir.path().to_owned()),
            runtime: Some(endpoint(&runtime.socket)),
            runtime_dirs: Vec::new(),
            ..TrackerOptions::default()
        };
        let tracker = Tracker::start(options, Arc::new(Sink(Mutex::new(sender)))).expect("the tracker starts");
        let (sender, health) = watch::channel(RuntimeHealth::starting(endpoint(&runtime.socket)));
        let stop = CancellationToken::new();
        let follower = Follower::new(runtime.socket.clone(), tracker.runtime_port(), timing(listing), sender);
        tokio::spawn(follower.run(stop.clone()));
        tracker.watch(&slot("ms1"), false);
        Self { runtime, dir, tracker, events, health, stop, told: BTreeSet::new() }
    }

    /// The agent ends, and another one starts.
    fn restart(self, listing: u64) -> Self {
        self.stop.cancel();
        self.tracker.shutdown();
        Self::on(self.runtime, self.dir, listing)
    }

    async fn next(&mut self) -> NetnsEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(event) = self.events.try_recv() {
                if let NetnsEvent::Bound { netns, .. } = &event {
                    self.told.insert(netns.id);
                }
                return event;
            }
            assert!(Instant::now() < deadline, "nothing was told; {:?}", self.health.borrow());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the label leads there.
    async fn wait_bound(&mut self, netns: NetnsId) {
        loop {
            match self.next().await {
                NetnsEvent::Bound { netns: told, .. } if told.id == netns => return,
                _ => {}
            }
        }
    }

    /// Waits until the label leads nowhere for a reason that holds this text.
    async fn wait_unbound(&mut self, text: &str) {
        loop {
            match self.next().await {
                NetnsEvent::Unbound { reason: Reason::MicroserviceMissing, message, .. }
                | NetnsEvent::Unknown { reason: Reason::MicroserviceMissing, message, .. }
                    if message.contains(text) =>
                {
                    return;
                }
                _ => {}
            }
        }
    }

    async fn wait_connected(&mut self, connected: bool) -> String {
        let turned = self.health.wait_for(|health| health.connected == connected);
        let health = tokio::time::timeout(PATIENCE, turned).await.expect("in time").expect("the follower runs");
        health.message.clone()
    }

    /// Nothing is told, whatever is looked at, until a question to the runtime of this kind was answered once more.
    async fn quiet(&mut self) {
        self.tracker.recheck();
        self.tracker.watch(&slot("nobody"), false);
        match self.next().await {
            NetnsEvent::Unbound { slot: asked, .. } | NetnsEvent::Unknown { slot: asked, .. } if asked == slot("nobody") => {}
            other => panic!("expected nothing, got {other:?}"),
        }
    }
}

async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_ends_and_restarts_are_told_by_events() {
    let mut watch = Watch::start(NEVER, |_| {});
    watch.wait_unbound("no running container has MICROSERVICE_LABEL=ms1").await;
    for _ in 0..5 {
        let process = Process::start();
        watch.runtime.script().start("c1", "ms1", &process);
        watch.wait_bound(process.netns()).await;
        watch.runtime.script().end("c1");
        watch.wait_unbound("no running container").await;
    }
    let message = watch.wait_connected(true).await;
    assert!(message.contains("runtime.sock"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_tells_of_an_end_before_the_runtime_does() {
    let (process, other) = (Process::start(), Process::start());
    let mut watch = Watch::start(NEVER, |runtime| runtime.script().start("c1", "ms1", &process));
    watch.wait_bound(process.netns()).await;
    drop(process);
    watch.wait_unbound("no running container").await;
    // The runtime still shows what is gone.
    watch.runtime.script().event("start", "c1");
    watch.runtime.script().start("c2", "ms1", &other);
    watch.wait_bound(other.netns()).await;
}

/// C45: the number of the process belongs to somebody else by the time it is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_used_again_leads_nowhere() {
    let (stranger, real) = (Process::start(), Process::start());
    let mut watch = Watch::start(NEVER, |_| {});
    watch.wait_unbound("no running container").await;
    let strangers = stranger.netns();
    for round in 0..10 {
        let (id, pid) = (format!("c{round}"), real.pid());
        {
            let mut script = watch.runtime.script();
            let started = stamp(now());
            real.belongs_to(&id);
            script.start(&id, "ms1", &stranger);
            script.after_inspection = Some(Box::new(move |script, id| {
                // Restarted between the two questions; in every other round it is gone.
                if let Some(shown) = script.containers.get_mut(id) {
                    (shown.pid, shown.started, shown.running) = (pid, started.clone(), round % 2 == 0);
                }
            }));
        }
        let asked =
            |watch: &Watch| watch.runtime.script().asked.iter().filter(|question| **question == format!("inspect c{round}")).count();
        eventually("it was asked twice", || asked(&watch) >= 2).await;
        if round % 2 == 0 {
            watch.wait_bound(real.netns()).await;
        }
        watch.runtime.script().end(&id);
        if round % 2 == 0 {
            watch.wait_unbound("no running container").await;
        }
    }
    assert!(!watch.told.contains(&strangers), "led to a stranger");
}

/// Without a sandbox file only the number is left. It may be somebody else's: used again while the runtime still says "running", or of another set of
/// numbers, as that of a runtime in a container. Whoever has it must be one of the container's processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_alone_does_not_lead_to_a_stranger() {
    let (stranger, other, real) = (Process::start(), Process::start(), Process::start());
    other.belongs_to("c2");
    let mut watch = Watch::start(300, |runtime| {
        let mut script = runtime.script();
        script.containers.insert("c1".to_owned(), Shown::running("ms1", stranger.pid()));
    });
    watch.wait_unbound("in no control group of this container").await;
    watch.runtime.script().containers.insert("c1".to_owned(), Shown::running("ms1", other.pid()));
    watch.wait_unbound(&format!("process {} is here", other.pid())).await;
    // The test's own process: the label does not lead to the agent's namespace either.
    watch.runtime.script().containers.insert("c1".to_owned(), Shown::running("ms1", std::process::id()));
    watch.wait_unbound(&format!("process {} is here", std::process::id())).await;
    watch.runtime.script().start("c1", "ms1", &real);
    watch.wait_bound(real.netns()).await;
    assert_eq!(watch.told, BTreeSet::from([real.netns()]));
}

/// F34: an end before its start, and everything twice.
#[tokio::test(flavor = "multi_thread")]
async fn events_in_another_order_and_twice() {
    let mut watch = Watch::start(NEVER, |_| {});
    watch.wait_unbound("no running container").await;
    let mut processes = Vec::new();
    for round in 0..20 {
        let process = Process::start();
        {
            let mut script = watch.runtime.script();
            let (before, after) = (now() - 2_000, now());
            process.belongs_to("c1");
            script.containers.insert("c1".to_owned(), Shown { started: stamp(now()), ..Shown::running("ms1", process.pid()) });
            // The end of the run before comes after this start, twice.
            let mut told = [("start", now()), ("die", before), ("start", after), ("die", before), ("start", now())];
            told.rotate_left(round % 5);
            for (action, at) in told {
                script.event_at(action, "c1", at);
            }
        }
        watch.wait_bound(process.netns()).await;
        processes.push(process);
    }
    watch.quiet().await;
}

/// F29, K32, and a stream that stalls without a word: the listing finds what no event told.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_event_told_is_listed() {
    let mut watch = Watch::start(300, |runtime| runtime.script().mute = true);
    watch.wait_unbound("no running container").await;
    for _ in 0..3 {
        let process = Process::start();
        watch.runtime.script().start("c1", "ms1", &process);
        watch.wait_bound(process.netns()).await;
        {
            let mut script = watch.runtime.script();
            script.end("c1");
            (0..300).for_each(|n| script.event("start", &format!("flood{n}")));
        }
        watch.wait_unbound("no running container").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_cut_are_taken_up_where_they_broke() {
    let mut watch = Watch::start(NEVER, |_| {});
    watch.wait_unbound("no running container").await;
    for _ in 0..3 {
        let process = Process::start();
        {
            let mut script = watch.runtime.script();
            script.cut();
            script.start("c1", "ms1", &process);
        }
        watch.wait_bound(process.netns()).await;
        eventually("it listens again", || watch.runtime.script().listeners() > 0).await;
    }
}

/// F28, C41: away, hanging or broken in whatever it is asked; it is told, nothing is taken down, and it is found when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_down_while_the_runtime_cannot_be_asked() {
    let process = Process::start();
    let mut watch = Watch::start(300, |runtime| runtime.script().start("c1", "ms1", &process));
    watch.wait_bound(process.netns()).await;
    for (question, mood, words) in [
        ("list", Mood::Hang, "list containers: no answer within 3 s"),
        ("list", Mood::Fail, "list containers: HTTP 500: it went wrong"),
        ("list", Mood::Rubbish, "list containers: an answer that cannot be read"),
    ] {
        watch.runtime.script().moods.insert(question.to_owned(), mood);
        let message = watch.wait_connected(false).await;
        assert!(message.contains(words), "{message}");
        watch.runtime.script().moods.clear();
        watch.wait_connected(true).await;
    }
    watch.runtime.close();
    watch.wait_connected(false).await;
    // The first that is told may be that the stream of events has ended.
    eventually("it is told why", || watch.health.borrow().message.contains("No such file or directory")).await;
    let since = watch.health.borrow().since;
    watch.quiet().await;
    eventually("it is tried again", || watch.health.borrow().counters.failures.load(std::sync::atomic::Ordering::Relaxed) > 6).await;
    assert_eq!(watch.health.borrow().since, since, "since then, not since the last attempt");
    // One that ends meanwhile is noticed, and who waits is told why nobody knows better.
    drop(process);
    watch.wait_unbound("as far as is known: the container runtime has not been reachable at unix://").await;
    let process = Process::start();
    watch.runtime.script().start("c1", "ms1", &process);
    watch.runtime.open();
    watch.wait_bound(process.netns()).await;
}

/// A runtime that tells no events is listed more often; one container that cannot be inspected does not hide another.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_hides_nothing_else() {
    let mut watch = Watch::start(1000, |runtime| {
        let mut script = runtime.script();
        script.moods.insert("events".to_owned(), Mood::Fail);
        script.moods.insert("inspect bad".to_owned(), Mood::Rubbish);
        script.containers.insert("bad".to_owned(), Shown::running("ms1", 1));
    });
    watch.wait_unbound("unless it is one that could not be inspected yet; what stands is kept").await;
    let process = Process::start();
    watch.runtime.script().start("c1", "ms1", &process);
    watch.wait_bound(process.netns()).await;
    let message = watch.wait_connected(true).await;
    assert!(message.contains("follow containers: HTTP 500"), "{message}");
    watch.runtime.script().moods.clear();
    watch.runtime.script().containers.remove("bad");
    eventually("it listens", || !watch.health.borrow().message.contains("HTTP 500")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_that_do_not_go_together_are_told() {
    let mut watch = Watch::start(NEVER, |runtime| runtime.script().api_version = "one".to_owned());
    watch.wait_unbound("agree on an API version with the container runtime: it does not tell its API version").await;
    watch.runtime.script().api_version = "1.24".to_owned();
    watch.wait_connected(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_all_kinds() {
    let (first, second, own) = (Process::start(), Process::start(), Process::start_in_own());
    own.belongs_to("own");
    // The kernel can tell two processes apart by their start; so it is one here.
    second.belongs_to("a/b");
    let same = stamp(now() - 5_000_000_000);
    let mut watch = Watch::start(NEVER, |runtime| {
        let mut script = runtime.script();
        script.containers.insert("own".to_owned(), Shown::running("ms1", own.pid()));
        let env = ["MICROSERVICE_LABEL=ms2\u{7}", "MICROSERVICE_LABEL="].map(|env| vec![env.to_owned()]);
        for (n, env) in env.into_iter().enumerate() {
            script.containers.insert(format!("none{n}"), Shown { env, ..Shown::running("", first.pid()) });
        }
    });
    match watch.next().await {
        NetnsEvent::Refused { reason: Reason::OwnNamespace, message, .. } => assert!(message.contains("name-own (own)"), "{message}"),
        other => panic!("{other:?}"),
    }
    // One that can be used has it, however late.
    let started = |process: &Process, at: &str| Shown { started: at.to_owned(), ..Shown::running("ms1", process.pid()) };
    watch.runtime.script().containers.insert("b".to_owned(), started(&second, &same));
    watch.runtime.script().event("start", "b");
    watch.wait_bound(second.netns()).await;
    // Of two that were started at once nobody can tell which was first.
    watch.runtime.script().containers.insert("a".to_owned(), started(&second, &same));
    watch.runtime.script().event("start", "a");
    loop {
        match watch.next().await {
            NetnsEvent::Unbound { reason: Reason::DuplicateLabel, message, .. } => {
                assert!(message.contains("name-a (a) and name-b (b)"), "{message}");
                break;
            }
            NetnsEvent::Bound { netns, .. } if netns.id == second.netns() => {}
            other => panic!("{other:?}"),
        }
    }
    watch.runtime.script().end("a");
    watch.wait_bound(second.netns()).await;
}

/// What was never heard of is not missing: neither while the runtime is away, nor before it has told of every container after that.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missing_before_the_runtime_was_heard() {
    let process = Process::start();
    let mut watch = Watch::start(NEVER, |runtime| {
        let mut script = runtime.script();
        script.start("c1", "ms1", &process);
        script.moods.insert("list".to_owned(), Mood::Hang);
    });
    for mood in [("inspect", Mood::Hang), ("list", Mood::Fail)] {
        match watch.next().await {
            NetnsEvent::Unknown { reason: Reason::MicroserviceMissing, message, .. } => {
                assert!(message.contains("no answer within 3 s; what stands is kept"), "{message}");
            }
            other => panic!("{other:?}"),
        }
        watch.runtime.script().moods = [(mood.0.to_owned(), mood.1)].into();
        eventually("it fails otherwise", || {
            let failures = watch.health.borrow().counters.failures.load(std::sync::atomic::Ordering::Relaxed);
            failures > if mood.0 == "inspect" { 1 } else { 2 }
        })
        .await;
        watch.tracker.watch(&slot("ms1"), false);
    }
    watch.runtime.script().moods.clear();
    loop {
        match watch.next().await {
            NetnsEvent::Bound { netns, .. } if netns.id == process.netns() => break,
            NetnsEvent::Unknown { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // From now on its silence says nothing new.
    watch.runtime.close();
    drop(process);
    match watch.next().await {
        NetnsEvent::Unbound { message, .. } => assert!(!message.contains("kept"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// An agent that starts while the runtime is away finds what it knew, if it is still there.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_known_is_found_again_without_the_runtime() {
    let process = Process::start();
    let mut watch = Watch::start(NEVER, |runtime| runtime.script().start("c1", "ms1", &process));
    watch.wait_bound(process.netns()).await;
    let file: PathBuf = watch.dir.path().join("microservices.json");
    eventually("it is remembered", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("c1"))).await;
    watch.runtime.close();
    watch = watch.restart(NEVER);
    watch.wait_bound(process.netns()).await;
    watch.wait_connected(false).await;
    watch.quiet().await;
    watch.runtime.open();
    watch.wait_connected(true).await;
    watch.quiet().await;
    watch.runtime.close();
    drop(process);
    watch = watch.restart(NEVER);
    watch.wait_unbound("as far as is known").await;
}
