//! Metrics, read at each scrape from where they are counted. Label sets are small and fixed; no name of an interface is ever one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::api::context::{Context, now};
use crate::model::{Phase, State};

/// The text of all metrics.
///
/// # Errors
/// When a text cannot be written.
pub fn render(context: Arc<Context>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("vnf_agent");
    registry.register_collector(Box::new(Metrics(context)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Metrics(Arc<Context>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(&mut encoder);
        self.passes(&mut page)?;
        self.kernel(&mut page)?;
        self.objects(&mut page)?;
        self.nodes(&mut page)?;
        self.store(&mut page)?;
        self.docker(&mut page)?;
        process(&mut page)
    }
}

impl Metrics {
    fn passes(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let c = &self.0.published.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.counter("passes", "Passes of the configurator", get(&c.passes))?;
        page.seconds("pass", "Time spent in passes", seconds(get(&c.pass_micros), 1_000_000))?;
        let steps = [("done", get(&c.steps_done)), ("failed", get(&c.steps_failed))];
        page.counters("steps", "Steps of plans by outcome", "outcome", &steps)?;
        page.counter("drift_repaired", "Objects found different from what had been configured, and repaired", get(&c.drift_repaired))?;
        page.counter("namespace_reads", "Complete readings of a namespace", get(&c.namespace_reads))?;
        page.counter("kernel_event_overruns", "Overruns of the kernel's event queue", get(&c.overruns))?;
        page.counter("interrupted_dumps", "Listings that the kernel interrupted", get(&c.interrupted_dumps))
    }

    fn kernel(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let k = *self.0.published.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        page.counter("kernel_writes", "Requests to the kernel that modify something", k.writes)?;
        page.counter("kernel_reads", "Requests to the kernel that read", k.reads)?;
        page.counter("kernel_sends", "Calls of send to the kernel", k.sends)?;
        page.counter("link_moves", "Links moved between namespaces", k.moves)
    }

    fn objects(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let counts = self.0.states();
        // All states, also those at zero: a series that appears only when something fails cannot be alerted on.
        let states = State::ALL.map(|s| (s.word(), counts.get(&s).copied().unwrap_or(0)));
        page.gauges("interfaces", "Configured interfaces by state", "state", &states)?;
        page.gauge("namespaces", "Namespaces that wishes refer to", self.0.published.namespaces.len() as f64)
    }

    fn nodes(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let (view, c) = (self.0.nodes.published.view(), &self.0.nodes.published.counters);
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let interfaces = || view.nodes.values().flat_map(|node| &node.interfaces);
        let count = |phase| interfaces().filter(|interface| interface.phase == phase).count() as u64;
        page.gauges("node_nics", "NICs of external nodes by phase", "phase", &Phase::ALL.map(|phase| (phase.word(), count(phase))))?;
        page.counter("node_attached", "NICs put behind the bridge", get(&c.attached))?;
        page.counter("node_detached", "NICs given back, for whatever reason", get(&c.detached))?;
        page.counter("node_rollbacks", "Attachments undone because they failed or were not confirmed", get(&c.rolled_back))?;
        let help = "Attachments undone by the process that stands by, as far as the agent lived to see it";
        page.counter("node_takeovers", help, get(&c.taken_over))?;
        page.counter("node_drift_repaired", "Attachments found different from what had been read back, and repaired", get(&c.drift))?;
        page.counter("node_failures", "Attempts to attach, repair or give back that did not get to their end", get(&c.retries))
    }

    fn store(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let store = self.0.store.borrow().clone();
        let age = store.last_heard.map_or(f64::INFINITY, |heard| seconds_between(heard.0, now().0));
        page.gauge("store_live", "1 while the store is connected, listed and watched", f64::from(u8::from(store.live)))?;
        page.gauge("store_revision", "Revision up to which the store has been read", store.revision as f64)?;
        page.gauge("store_last_heard_age_seconds", "Time since the store last answered; infinite when it never did", age)?;
        let applied = *self.0.published.applied_revision.borrow();
        page.gauge("applied_revision", "Revision up to which the store's changes have been worked on", applied as f64)?;
        let hold = self.0.published.hold.borrow().is_some();
        page.gauge("hold", "1 while removals are held back", f64::from(u8::from(hold)))?;
        let ready = self.0.readiness(now()).is_ok();
        page.gauge("ready", "1 while the agent is ready", f64::from(u8::from(ready)))
    }
}

impl Metrics {
    fn docker(&self, page: &mut Page<'_, '_>) -> fmt::Result {
        let docker = self.0.docker.borrow().clone();
        if !docker.watched() {
            return Ok(());
        }
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &docker.counters;
        page.gauge("docker_connected", "1 while the container runtime is listed and followed", f64::from(u8::from(docker.connected)))?;
        page.counter("docker_listings", "Complete listings of containers", get(&c.listings))?;
        page.counter("docker_events", "Events about containers", get(&c.events))?;
        page.counter("docker_inspections", "Containers inspected", get(&c.inspections))?;
        page.counter("docker_failures", "Connections to the container runtime that failed or were lost", get(&c.failures))
    }
}

/// What the kernel says of this process; what cannot be read is left out.
fn process(page: &mut Page<'_, '_>) -> fmt::Result {
    page.counter("log_lines_dropped", "Log lines that standard error did not take in time", crate::telemetry::dropped_lines())?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if let Some(kib) = field("VmRSS:") {
        page.gauge("process_resident_memory_bytes", "Resident memory", kib * 1024.0)?;
    }
    if let Some(threads) = field("Threads:") {
        page.gauge("process_threads", "Threads", threads)?;
    }
    match std::fs::read_dir("/proc/self/fd") {
        Ok(files) => page.gauge("process_open_fds", "Open file descriptors", files.count() as f64),
        Err(_) => Ok(()),
    }
}

fn seconds(count: u64, per_second: u64) -> f64 {
    count as f64 / per_second as f64
}

fn seconds_between(from_millis: i64, to_millis: i64) -> f64 {
    (to_millis - from_millis).max(0) as f64 / 1000.0
}

/// Writes metrics of the few forms that we have.
struct Page<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Page<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, Some(&Unit::Seconds), metric.metric_type())?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = ConstGauge::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn counters(&mut self, name: &str, help: &str, label: &'static str, values: &[(&'static str, u64)]) -> fmt::Result {
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (word, value) in values {
            ConstCounter::new(*value).encode(family.encode_family(&[(label, *word)])?)?;
        }
        Ok(())
    }

    fn gauges(&mut self, name: &str, help: &str, label: &'static str, values: &[(&'static str, u64)]) -> fmt::Result {
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (word, value) in values {
            ConstGauge::new(*value as f64).encode(family.encode_family(&[(label, *word)])?)?;
        }
        Ok(())
    }
}
