//! What is said about one interface, from its wish, the plan's verdict and the kernel's look.

use std::collections::HashSet;

use crate::configurator::desired::Wish;
use crate::configurator::places::Resolution;
use crate::configurator::plan::{Verdict, World};
use crate::linux::KernelError;
use crate::model::owner::{ADDRESS_PROTO, Mark};
use crate::model::validate::outline_of;
use crate::model::{
    FieldError, InterfaceAddress, InterfaceKind, InterfaceSpec, InterfaceStatus, LinkId, LinkKind, NamespaceStatus, NetnsSlot,
    ObservedLink, Reason, State, Timestamp, TunInfo,
};

/// A failed try of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// KERNEL_REFUSED, TIMEOUT or CONTENDED.
    pub reason: Reason,
    /// What was attempted and why not, in one sentence.
    pub message: String,
    /// How often in a row.
    pub attempt: u32,
    /// When it is tried again.
    pub next_retry: Option<Timestamp>,
}

impl Failure {
    /// Classifies what the kernel said.
    #[must_use]
    pub fn of_kernel(step: &str, error: &KernelError) -> Self {
        let timeout = error.is(nix::errno::Errno::ETIMEDOUT);
        let reason = if timeout { Reason::Timeout } else { Reason::KernelRefused };
        let words = if error.text.is_empty() { String::new() } else { format!(", \"{}\"", error.text.escape_debug()) };
        Self { reason, message: format!("{step}: {}{words}", error.errno_name()), attempt: 0, next_retry: None }
    }
}

/// The status of a wish; `None` while nothing can be said yet.
#[must_use]
pub fn status(world: World<'_>, wish: &Wish, verdict: &Verdict, failure: Option<&Failure>, now: Timestamp) -> Option<InterfaceStatus> {
    let link = link_of(world, wish, verdict);
    let mut status = outline(world, wish, now);
    if let Some(link) = link {
        show(&mut status, wish, link);
        status.warnings.extend(wish.spec.as_ref().ok().and_then(|spec| opened_otherwise(&spec.kind, &link.kind)));
        status.warnings.extend(another_tap(world, wish, link));
        status.warnings.extend(bare(wish, link));
    }
    match verdict {
        Verdict::Resolving | Verdict::Finishing(_) => return None,
        Verdict::Settled(_) => status.state = State::Configured,
        Verdict::Invalid(errors) => invalid(&mut status, errors, link.is_some()),
        Verdict::Pending(waiting) => {
            (status.state, status.reason) = (State::Pending, waiting.reason);
            (status.message, status.waits_for) = (waiting.message.clone(), waiting.waits_for.clone());
        }
        Verdict::Failed(reason, message) => {
            (status.state, status.reason, status.message) = (State::Failed, Some(*reason), message.clone());
        }
        Verdict::InWork(_) => {
            let failure = failure?;
            (status.state, status.reason, status.message) = (State::Retrying, Some(failure.reason), failure.message.clone());
            (status.attempt, status.next_retry) = (failure.attempt, failure.next_retry);
        }
    }
    Some(status)
}

/// The status of an object whose key is gone while its link is not yet.
#[must_use]
pub fn removing(before: &InterfaceStatus, now: Timestamp) -> InterfaceStatus {
    InterfaceStatus {
        state: State::Removed,
        reason: None,
        message: "its key is gone; the link is being removed".to_owned(),
        waits_for: Vec::new(),
        errors: Vec::new(),
        warnings: Vec::new(),
        attempt: 0,
        next_retry: None,
        since: now,
        ..before.clone()
    }
}

fn link_of<'a>(world: World<'a>, wish: &Wish, verdict: &Verdict) -> Option<&'a ObservedLink> {
    let known = |id: LinkId| world.observed.get(id).map(|seen| &seen.link);
    match verdict {
        Verdict::Settled(id) | Verdict::InWork(Some(id)) => known(*id),
        _ => world.observed.named(&wish.key).next().map(|(_, seen)| &seen.link),
    }
}

fn outline(world: World<'_>, wish: &Wish, now: Timestamp) -> InterfaceStatus {
    let outline = match &wish.spec {
        Ok(spec) => outline_of(spec),
        Err(_) => wish.outline.as_deref().cloned().unwrap_or_default(),
    };
    let namespace = NamespaceStatus {
        kind: outline.namespace_kind,
        reference: outline.namespace_reference,
        inode: wish.slot().and_then(|slot| world.places.bound(&slot)).map_or(0, |netns| netns.inode),
    };
    InterfaceStatus {
        name: wish.key.to_string(),
        state: State::Nonexistent,
        reason: None,
        message: String::new(),
        host_if_name: outline.host_if_name,
        if_index: 0,
        namespace,
        admin: "",
        oper: "",
        mtu: 0,
        phys_address: String::new(),
        ip_addresses: Vec::new(),
        peer: outline.peer,
        extra_addresses: Vec::new(),
        waits_for: Vec::new(),
        warnings: warnings(world, wish),
        errors: Vec::new(),
        attempt: 0,
        next_retry: None,
        revision: wish.mod_revision,
        since: now,
    }
}

fn show(status: &mut InterfaceStatus, wish: &Wish, link: &ObservedLink) {
    status.host_if_name = link.name.to_string();
    status.if_index = link.ifindex.get();
    status.admin = if link.admin_up { "UP" } else { "DOWN" };
    status.oper = link.oper.word();
    status.mtu = link.mtu;
    status.phys_address = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let shown = || link.addresses.iter().filter(|have| !have.kernel_made);
    status.ip_addresses = shown().map(|have| have.address).collect();
    // Kept for as long as the link stands, in thousands.
    status.ip_addresses.shrink_to_fit();
    status.phys_address.shrink_to_fit();
    // A set, because a link may have thousands of addresses.
    let wished: HashSet<InterfaceAddress> = wish.spec.iter().flat_map(|spec| &spec.addresses).copied().collect();
    status.extra_addresses =
        shown().filter(|have| have.proto != ADDRESS_PROTO && !wished.contains(&have.address)).map(|have| have.address).collect();
}

fn invalid(status: &mut InterfaceStatus, errors: &[FieldError], stands: bool) {
    status.state = State::Invalid;
    status.reason = errors.first().map(|error| error.reason);
    status.message = errors.first().map(ToString::to_string).unwrap_or_default();
    if stands {
        status.message.push_str("; what was applied before stays as it is");
    }
    status.errors = errors.to_vec();
}

/// What is odd though it works: the value's own oddities, and those between wishes.
fn warnings(world: World<'_>, wish: &Wish) -> Vec<String> {
    let mut warnings = wish.warnings.clone();
    let (Ok(spec), Some(slot)) = (&wish.spec, wish.slot()) else { return warnings };
    if let Some(peer) = spec.peer().and_then(|peer| world.desired.get(peer.as_str()))
        && let Ok(other) = &peer.spec
        && other.peer() == Some(&spec.name)
    {
        warnings.extend(differing_ends(spec, other));
    }
    if let Some(Resolution::Bound { netns, created, container }) = world.places.get(&slot).map(|place| &place.resolution) {
        warnings.extend(container.iter().filter(|container| !container.others.is_empty()).map(|container| {
            let others: Vec<String> = container.others.iter().take(3).map(|(id, name)| shown(id, name)).collect();
            let holder = shown(&container.id, &container.name);
            format!("several containers run as {}: {holder} was there first and has it; not used: {}", spec.netns, others.join(", "))
        }));
        if *created {
            warnings.push(format!("{} was missing and has been created by the agent", spec.netns));
        }
        let slots: Vec<&NetnsSlot> = world.places.leading_to(netns.id).collect();
        for address in &spec.addresses {
            let also = slots.iter().flat_map(|slot| world.desired.with_ip(slot, address.ip())).filter(|key| **key != wish.key);
            // Three tell enough; a thousand of them would only fill the store.
            warnings
                .extend(also.take(3).map(|other| format!("address {} is also wished for `{other}` in the same namespace", address.ip())));
        }
    }
    if wish.kept {
        warnings.push("its key is not in the store any more; kept because removals are held back".to_owned());
    }
    warnings
}

/// A container as people know it: name and short id.
fn shown(id: &str, name: &str) -> String {
    let id: String = id.chars().take(12).collect();
    format!("{} ({id})", name.escape_debug())
}

/// Only when it is there it is known that it is a TUN.
fn bare(wish: &Wish, link: &ObservedLink) -> Option<String> {
    let mac = wish.spec.as_ref().ok()?.mac?;
    let tun = matches!(link.kind, LinkKind::Tun(TunInfo { tap: false, .. }));
    tun.then(|| format!("hardware address {mac} is ignored: the link is a TUN, which has none"))
}

/// The TAP that serves the wish stands, and another one appeared under its name.
fn another_tap(world: World<'_>, wish: &Wish, link: &ObservedLink) -> Option<String> {
    let temporary = wish.temporary()?;
    let (id, seen) = world.observed.at(world.own?, temporary.as_str())?;
    let other = seen.mark == Mark::Foreign && matches!(seen.link.kind, LinkKind::Tun(_)) && world.owner.temporary(link).is_some();
    other.then(|| {
        format!("another TAP `{temporary}` (index {}) is in the agent's own namespace; it is left alone while this one stands", id.ifindex)
    })
}

/// Whoever opens a TAP chooses its header.
fn opened_otherwise(wished: &InterfaceKind, kind: &LinkKind) -> Option<String> {
    let (InterfaceKind::Tap(tap), LinkKind::Tun(info)) = (wished, kind) else { return None };
    let word = |on: bool| if on { "on" } else { "off" };
    let (is, wished) = (word(info.vnet_hdr), word(tap.vnet_hdr));
    (is != wished).then(|| format!("vnet_hdr is {is}, wished {wished}: so the program chose that opened the TAP last"))
}

fn differing_ends(spec: &InterfaceSpec, other: &InterfaceSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(mac) = spec.mac.filter(|mac| other.mac == Some(*mac)) {
        warnings.push(format!("hardware address {mac} is also that of the other end `{}`", other.name));
    }
    if spec.mtu != other.mtu {
        warnings.push(format!("mtu {} differs from {} of the other end `{}`", spec.mtu, other.mtu, other.name));
    }
    warnings
}
