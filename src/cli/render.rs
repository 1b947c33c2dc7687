//! What people see of the agent's messages.

use std::fmt::Write;

use crate::cli::out::Out;
use crate::cli::table::{paint, table};
use crate::cli::text::{age, safe};
use crate::proto::agent as pb;

/// Columns that a narrow terminal does without, the least important first.
const SPARE: &[&str] = &["MAC", "REPLACED", "MTU", "PEER", "INODE", "CONTAINER", "ADMIN/OPER", "ADDRESSES", "AGE", "NAMESPACE"];

/// `microservice:ms1`, `named:red`, or nothing for the agent's own namespace.
fn namespace(n: Option<&pb::NamespaceStatus>) -> String {
    match n {
        Some(n) if !n.reference.is_empty() => format!("{}:{}", n.kind.to_lowercase(), n.reference),
        _ => String::new(),
    }
}

fn explanation(reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (true, _) => message.to_owned(),
        (false, true) => reason.to_owned(),
        (false, false) => format!("{reason}: {message}"),
    }
}

fn dash(left: &str, right: &str) -> String {
    if left.is_empty() && right.is_empty() { String::new() } else { format!("{left}/{right}") }
}

fn number(n: u32) -> String {
    if n == 0 { String::new() } else { n.to_string() }
}

/// Why an interface is as it is, in one line; how much more there is to say stands in `vnfctl status NAME`.
fn why(s: &pb::InterfaceStatus) -> String {
    let text = explanation(&s.reason, &s.message);
    match s.errors.len() {
        0 | 1 => text,
        errors => format!("{text} (and {} more)", errors - 1),
    }
}

/// All interfaces with everything that was read back.
pub fn interfaces(out: &Out, list: &[pb::InterfaceStatus], now: i64) -> String {
    let header = ["NAME", "STATE", "AGE", "HOST-IF", "NAMESPACE", "ADMIN/OPER", "MTU", "MAC", "ADDRESSES", "PEER", "MESSAGE"];
    let row = |s: &pb::InterfaceStatus| {
        vec![
            s.name.clone(),
            s.state().as_str_name().to_owned(),
            age(s.since.as_ref(), now),
            s.host_if_name.clone(),
            namespace(s.namespace.as_ref()),
            dash(&s.admin, &s.oper),
            number(s.mtu),
            s.phys_address.clone(),
            s.ip_addresses.join(" "),
            s.peer.clone(),
            why(s),
        ]
    };
    table(out, &header, SPARE, list.iter().map(row))
}

/// The agent, then its interfaces in short.
pub fn overview(out: &Out, agent: &pb::AgentStatus, list: &[pb::InterfaceStatus], now: i64) -> String {
    let mut text = self::agent(out, agent, now);
    if !list.is_empty() {
        let row = |s: &pb::InterfaceStatus| {
            let place = namespace(s.namespace.as_ref());
            let link = if place.is_empty() { s.host_if_name.clone() } else { format!("{} in {place}", s.host_if_name) };
            let state = s.state().as_str_name().to_owned();
            vec![s.name.clone(), state, age(s.since.as_ref(), now), link, s.ip_addresses.join(" "), why(s)]
        };
        text.push('\n');
        text += &table(out, &["NAME", "STATE", "AGE", "LINK", "ADDRESSES", "MESSAGE"], SPARE, list.iter().map(row));
    }
    text
}

fn agent(out: &Out, a: &pb::AgentStatus, now: i64) -> String {
    let mut lines = Lines::new(14);
    let state = a.state().as_str_name();
    let state = if out.colour { paint(state) } else { state.to_owned() };
    let since = age(Some(&prost_types::Timestamp { seconds: a.start_time, nanos: 0 }), now);
    lines.trusted("agent", &format!("{} {state}, version {}, running for {since}, pid {}", safe(&a.label), safe(&a.build_version), a.pid));
    if !a.ready {
        lines.add("not ready", &explanation(&a.reason, &a.message));
    }
    if let Some(store) = &a.store {
        let live = if store.live { "live" } else { "not live" };
        let heard = match &store.last_heard {
            Some(t) => format!(", last heard {} ago", age(Some(t), now)),
            None => String::new(),
        };
        lines.add("store", &format!("{} {live}, revision {} (applied {}){heard}", store.kind, store.revision, a.applied_revision));
        lines.add("", &store.message);
    }
    if !a.publishing_problem.is_empty() {
        lines.add("publishing", &a.publishing_problem);
    }
    if let Some(docker) = &a.docker {
        let state = if docker.connected { "connected" } else { "away" };
        let why = if docker.connected { String::new() } else { format!(", {}: {}", docker.endpoint, docker.message) };
        lines.add("docker", &format!("{state} for {}{why}", age(docker.since.as_ref(), now)));
    }
    if let Some(hold) = &a.hold {
        lines.add("hold", &format!("for {}: {}", age(hold.since.as_ref(), now), hold.why));
        lines.add("kept", &hold.kept.join(", "));
    }
    let counts: Vec<String> = a.interfaces.iter().map(|c| format!("{} {}", c.count, c.state().as_str_name())).collect();
    let joined = counts.join(", ");
    lines.add("interfaces", if counts.is_empty() { "none" } else { &joined });
    lines.add("namespaces", &a.namespaces.to_string());
    lines.text
}

/// One interface in full: what is empty is left out.
pub fn interface(out: &Out, s: &pb::InterfaceStatus, now: i64) -> String {
    let mut lines = Lines::new(16);
    let state = s.state().as_str_name();
    let state = if out.colour { paint(state) } else { state.to_owned() };
    lines.trusted("interface", &format!("{}  {state} for {}", safe(&s.name), age(s.since.as_ref(), now)));
    lines.add("reason", &explanation(&s.reason, &s.message));
    lines.add("waits for", &s.waits_for.join(", "));
    let index = if s.if_index == 0 { String::new() } else { format!(", index {}", s.if_index) };
    lines.add("link", &format!("{}{index}", s.host_if_name));
    if let Some(n) = &s.namespace {
        let inode = if n.inode == 0 { String::new() } else { format!(", inode {}", n.inode) };
        let place = namespace(Some(n));
        lines.add("namespace", &format!("{}{inode}", if place.is_empty() { "the agent's own" } else { &place }));
    }
    lines.add("admin/oper", &dash(&s.admin, &s.oper));
    lines.add("mtu", &number(s.mtu));
    lines.add("mac", &s.phys_address);
    lines.add("addresses", &s.ip_addresses.join(", "));
    lines.add("extra addresses", &s.extra_addresses.join(", "));
    lines.add("peer", &s.peer);
    for warning in &s.warnings {
        lines.add("warning", warning);
    }
    for e in &s.errors {
        let hint = if e.hint.is_empty() { String::new() } else { format!("; {}", e.hint) };
        lines.add("error", &format!("{} `{}`: {}{hint}", if e.field.is_empty() { "value" } else { &e.field }, e.value, e.rule));
    }
    if s.attempt > 0 {
        lines.add("attempt", &s.attempt.to_string());
    }
    if let Some(next) = &s.next_retry {
        lines.add("next retry", &format!("in {}s", (next.seconds - now).max(0)));
    }
    lines.add("revision", &s.revision.to_string());
    lines.text
}

/// A change, on one line.
pub fn change(out: &Out, name: &str, status: Option<&pb::InterfaceStatus>) -> String {
    let name = safe(name);
    let Some(s) = status else { return format!("{name} removed\n") };
    format!("{name} {}\n", state_line(out, s))
}

/// State, link and explanation, on one line without its end.
pub fn state_line(out: &Out, s: &pb::InterfaceStatus) -> String {
    let state = s.state().as_str_name();
    let mut line = if out.colour { paint(state) } else { state.to_owned() };
    let place = namespace(s.namespace.as_ref());
    let why = why(s);
    if !why.is_empty() {
        let _ = write!(line, " {}", safe(&why));
    } else if place.is_empty() {
        let _ = write!(line, " {}", safe(&s.host_if_name));
    } else {
        let _ = write!(line, " {} in {}", safe(&s.host_if_name), safe(&place));
    }
    line
}

/// A container by its name and the short form of its id.
fn container(n: &pb::NamespaceEntry) -> String {
    let id: String = n.container_id.chars().take(12).collect();
    if n.container_name.is_empty() { id } else { format!("{} ({id})", n.container_name) }
}

fn namespace_message(n: &pb::NamespaceEntry) -> String {
    match n.other_containers.len() {
        0 => n.message.clone(),
        1 => "another container runs with this label".to_owned(),
        others => format!("{others} other containers run with this label"),
    }
}

/// Namespaces.
pub fn namespaces(out: &Out, list: &[pb::NamespaceEntry], now: i64) -> String {
    let header = ["KIND", "REFERENCE", "STATE", "AGE", "INODE", "CONTAINER", "INTERFACES", "REPLACED", "MESSAGE"];
    let row = |n: &pb::NamespaceEntry| {
        let inode = if n.inode == 0 { String::new() } else { n.inode.to_string() };
        let counts = (n.interfaces.to_string(), n.replaced.to_string());
        let age = age(n.since.as_ref(), now);
        vec![n.kind.clone(), n.reference.clone(), n.state.clone(), age, inode, container(n), counts.0, counts.1, namespace_message(n)]
    };
    table(out, &header, SPARE, list.iter().map(row))
}

/// The index.
pub fn index(out: &Out, list: &[pb::IndexEntry]) -> String {
    let header = ["NAME", "INDEX", "HOST-IF", "NAMESPACE", "INODE", "TYPE", "PEER"];
    let row = |e: &pb::IndexEntry| {
        let inode = e.namespace.as_ref().map(|n| n.inode.to_string()).unwrap_or_default();
        let place = namespace(e.namespace.as_ref());
        vec![e.name.clone(), e.if_index.to_string(), e.host_if_name.clone(), place, inode, e.r#type.clone(), e.peer.clone()]
    };
    table(out, &header, SPARE, list.iter().map(row))
}

/// Passes, the newest last, each with what it found and did.
pub fn history(passes: &[pb::Pass], now: i64) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for pass in passes.iter().rev() {
        let millis = format!("{}.{:03}", pass.elapsed_us / 1000, pass.elapsed_us % 1000);
        let why = safe(&pass.triggers.join(", "));
        let what = if pass.sequence == 0 { "node".to_owned() } else { format!("pass {}", pass.sequence) };
        let _ = writeln!(text, "{what}  {} ago  {millis} ms  {why}", age(pass.started.as_ref(), now));
        for drift in &pass.drift {
            let _ = writeln!(text, "  found  {}", safe(drift));
        }
        for step in &pass.steps {
            let _ = writeln!(text, "  {}: {}", safe(&step.step), safe(&step.outcome));
        }
    }
    text
}

/// Lines of a name and a value.
struct Lines {
    text: String,
    width: usize,
}

impl Lines {
    fn new(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    /// A line, unless there is no value.
    fn add(&mut self, name: &str, value: &str) {
        self.trusted(name, &safe(value));
    }

    /// A line whose value is safe already.
    fn trusted(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            let _ = writeln!(self.text, "{name:<width$}  {value}", width = self.width);
        }
    }
}
