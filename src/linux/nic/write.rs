//! Putting a configuration onto a link, and taking one off.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use nix::errno::Errno;

use crate::linux::batch::{Body, Request};
use crate::linux::decode::{RTM_DELADDR, RTM_NEWADDR};
use crate::linux::nic::sysctl::ADDR_GEN_MODE;
use crate::linux::nic::{NicKernel, guard, order, read, sysctl};
use crate::linux::socket::Failure;
use crate::linux::{KernelError, LinkChange, encode};
use crate::model::nic::difference::{IPV6_MTU, STABLE_SECRET};
use crate::model::nic::{Difference, Message, NicAddress, NicConfig, NicLink, NicNexthop, NicRoute, difference};
use crate::model::{IfIndex, MacAddr};

const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWNEXTHOP: u16 = 104;
const NEIGHBOUR_INDEX: usize = 4;

/// How long addresses may take until they can be used; duplicate address detection takes one to two seconds.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(2);

const DISABLE_IPV6: &str = "ipv6/disable_ipv6";

/// Puts a configuration onto a link.
pub(super) fn put(kernel: &mut NicKernel, wish: &NicConfig, link: &NicLink, labels: bool) -> Result<(), KernelError> {
    let attempting = |what: &str| format!("{what} {}", link.name);
    let index = NicKernel::index(link).map_err(|failure| failure.attempting(attempting("put addresses onto")))?;
    let there = kernel.read(link)?;
    let differing = difference(wish, &there, labels);
    let duplicates = duplicates(kernel, &differing, link, labels)?;
    let age = read::uptime().saturating_sub(wish.taken_at);
    prepare(kernel, wish, link, &differing).map_err(|failure| failure.attempting(attempting("prepare")))?;
    let mut problems = Problems::default();
    // IPv4 labels are made anew, in the order of the wish: each goes to the end of its subnet's addresses.
    let relabelled = differing.mislabelled_addresses.iter().flat_map(|address| {
        [remove_address(&address.to_remove(index)), add_address(&address.to_add(index, age, true))].map(about(address))
    });
    let added = || differing.missing_addresses.iter().chain(&differing.changed_addresses).chain(duplicates);
    let added_at_once = added().map(|address| about(address)(add_address(&address.to_add(index, age, true))));
    let requests: Vec<Told> = relabelled.chain(added_at_once).collect();
    problems.take_each(kernel, &attempting("put addresses onto"), &requests);
    // As they were given, now that duplicate address detection was left out.
    let new_ipv6 = added().filter(|address| address.is_ipv6());
    let flags: Vec<Told> = new_ipv6.map(|address| about(address)(add_address(&address.to_add(index, age, false)))).collect();
    if !flags.is_empty() || differing.sysctls.iter().any(|(path, _)| [ADDR_GEN_MODE, STABLE_SECRET].contains(&path.as_str())) {
        let _kept_otherwise = sysctl::write(kernel, &link.name, &sysctl::generation(&wish.sysctls));
    }
    put_routes(kernel, wish, link, index, age, &mut problems)?;
    problems.take_each(kernel, &attempting("set the flags of addresses on"), &flags);
    if let Err(error) = settle(kernel, wish, link) {
        problems.note(error);
    }
    problems.into_result()
}

/// Of the addresses that another host has, those to be put onto a link: it must hear of that host again, and one that is not under its own name yet hears
/// nothing but what the switch leaves to it.
fn duplicates<'d>(
    kernel: &mut NicKernel,
    differing: &'d Difference,
    link: &NicLink,
    labels: bool,
) -> Result<&'d [NicAddress], KernelError> {
    let missing = &differing.missing_duplicates;
    let heard = !missing.is_empty() && labels && !guard::stands(kernel, link)?;
    Ok(if heard { missing } else { &[] })
}

/// What must stand before addresses can.
fn prepare(kernel: &mut NicKernel, wish: &NicConfig, link: &NicLink, differing: &Difference) -> Result<(), Failure> {
    // Before the settings: one of them is an MTU of IPv6 that must not be larger.
    set_link(kernel, link, differing.mtu, None)?;
    // No link-local by the kernel, from the moment when IPv6 is on: it would be tried on the network first, where the NIC itself would answer.
    let mut settings: Vec<(String, String)> = differing.sysctls.iter().filter(|(path, _)| path != ADDR_GEN_MODE).cloned().collect();
    if differing.missing_addresses.iter().any(NicAddress::is_ipv6) {
        settings.push(sysctl::no_link_local());
    }
    // The secret changes the mode.
    let first = [STABLE_SECRET, ADDR_GEN_MODE, DISABLE_IPV6];
    settings.sort_by_key(|(path, _)| first.iter().position(|one| one == path).unwrap_or(first.len()));
    let refused = sysctl::write(kernel, &link.name, &settings)?;
    for (path, error) in &refused {
        tracing::warn!(link = %link.name, setting = %path, %error, "a setting could not be carried over");
    }
    if let Some((_, error)) = refused.into_iter().find(|(path, _)| path == DISABLE_IPV6) {
        return Err(error.into());
    }
    set_link(kernel, link, None, differing.up)?;
    if differing.mtu.is_some() || differing.up.is_some() || !differing.sysctls.is_empty() {
        restrict_ipv6(kernel, wish, link)?;
    }
    Ok(())
}

/// Sets the MTU of IPv6, where it is smaller than the link's: it became that with each change of the link's own, and whenever the link or IPv6 on it came up.
pub(super) fn restrict_ipv6(kernel: &mut NicKernel, wish: &NicConfig, link: &NicLink) -> Result<(), Failure> {
    if let Some(mtu) = wish.sysctls.get(IPV6_MTU).filter(|mtu| **mtu != wish.link.mtu.to_string()) {
        let _told_as_a_difference = sysctl::write(kernel, &link.name, &[(IPV6_MTU.to_owned(), mtu.clone())])?;
    }
    Ok(())
}

/// Waits until every wished address can be used: the kernel takes even those that need no duplicate address detection into use a little later, and
/// until then nothing may be taken from where they stood before. Those that were not in use there are no reason to fail: what is found out about them now
/// may be that another host has them, or may take long.
fn settle(kernel: &mut NicKernel, wish: &NicConfig, link: &NicLink) -> Result<(), KernelError> {
    let wished = |usable: bool| -> HashSet<_> {
        wish.addresses.iter().filter(|a| a.is_unusable() != usable && !a.is_duplicate()).filter_map(NicAddress::address).collect()
    };
    let (usable, undecided) = (wished(true), wished(false));
    let deadline = Instant::now() + SETTLE_WITHIN;
    let attempted = || format!("take the addresses of {} into use", link.name);
    loop {
        // Nothing else is read: this is asked every few milliseconds.
        let there = kernel.socket().and_then(|socket| read::addresses(socket, link)).map_err(|failure| failure.attempting(attempted()))?;
        let unusable = |of: &HashSet<_>, duplicates: bool| {
            let found = there.iter().filter(|a| a.is_unusable() && (duplicates || !a.is_duplicate()));
            found.filter_map(NicAddress::address).find(|address| of.contains(address))
        };
        let (first, late) = (unusable(&usable, true), Instant::now() > deadline);
        if first.is_none() && (late || unusable(&undecided, false).is_none()) {
            return Ok(());
        }
        if let Some(first) = first.filter(|_| late) {
            let words = format!("{first} is still tentative, or another host has it");
            return Err(Failure::new(Errno::EADDRINUSE, words).attempting(attempted()));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Routes without a gateway, then nexthop objects, then all others. What is there is looked at again: addresses have brought routes along.
fn put_routes(
    kernel: &mut NicKernel,
    wish: &NicConfig,
    link: &NicLink,
    index: IfIndex,
    age: u64,
    problems: &mut Problems,
) -> Result<(), KernelError> {
    let attempted = format!("put routes onto {}", link.name);
    let differing = difference(wish, &kernel.read(link)?, false);
    let add = |route: &NicRoute| about(route)(add_route(&route.to_add(wish.link.ifindex, index, age)));
    let of_rank = |rank: u8| differing.missing_routes.iter().filter(move |route| route.rank() == rank).map(add);
    let missing = nexthops(kernel, &differing).map_err(|failure| failure.attempting(attempted.clone()))?;
    let objects = missing.iter().map(|object| about(object)(kept(RTM_NEWNEXTHOP, &object.to_add(index), NLM_F_CREATE | NLM_F_REPLACE)));
    let requests: Vec<Told> = of_rank(0).chain(objects).chain(of_rank(1)).collect();
    problems.take_each(kernel, &attempted, &requests);
    let neighbours = differing.missing_neighbours.iter().map(|entry| {
        let mut entry = entry.clone();
        entry.set_header_number(NEIGHBOUR_INDEX, index.get());
        kept(RTM_NEWNEIGH, &entry, NLM_F_CREATE | NLM_F_REPLACE)
    });
    let neighbours: Vec<Request> = neighbours.collect();
    problems.take(kernel, &format!("put neighbour entries onto {}", link.name), &neighbours);
    // Connected routes that the kernel made for the addresses and that the wish has otherwise (another metric) or not at all.
    let unwished: Vec<Request> =
        differing.unwished_routes().map(|route| kept(RTM_DELROUTE, &route.to_add(link.ifindex, index, 0), 0)).collect();
    problems.take(kernel, &attempted, &unwished);
    let first = order::put_first(kernel, wish, index).map_err(|failure| failure.attempting(attempted.clone()))?;
    problems.take(kernel, &attempted, &first);
    Ok(())
}

/// The nexthop objects to be made, groups after their members: each with those that there are, as others may have removed theirs meanwhile.
fn nexthops(kernel: &mut NicKernel, differing: &Difference) -> Result<Vec<NicNexthop>, Failure> {
    let missing = &differing.missing_nexthops;
    if missing.iter().all(|object| object.members().is_empty()) {
        return Ok(missing.clone());
    }
    let there = read::all_nexthops(kernel.socket()?)?;
    let known: HashSet<u32> = there.iter().chain(missing).map(NicNexthop::id).collect();
    let (single, groups): (Vec<&NicNexthop>, Vec<&NicNexthop>) = missing.iter().partition(|object| object.members().is_empty());
    Ok(single.into_iter().cloned().chain(groups.into_iter().map(|group| group.with_members(|id| known.contains(&id)))).collect())
}

/// Takes everything off a link.
pub(super) fn strip(kernel: &mut NicKernel, link: &NicLink) -> Result<(), KernelError> {
    let index = NicKernel::index(link).map_err(|failure| failure.attempting(format!("strip {}", link.name)))?;
    let there = kernel.read(link)?;
    let mut problems = Problems::default();
    let mut routes: Vec<&NicRoute> = there.routes.iter().filter(|route| route.nexthop().is_none()).collect();
    routes.sort_by_key(|route| std::cmp::Reverse(route.rank()));
    let removals: Vec<Request> = routes.into_iter().map(|route| kept(RTM_DELROUTE, &route.to_add(link.ifindex, index, 0), 0)).collect();
    problems.take(kernel, &format!("remove routes from {}", link.name), &removals);
    let removals: Vec<Request> = there.addresses.iter().rev().map(|address| remove_address(&address.to_remove(index))).collect();
    problems.take(kernel, &format!("remove addresses from {}", link.name), &removals);
    let off = [(DISABLE_IPV6.to_owned(), "1".to_owned())];
    if let Err(failure) = sysctl::write(kernel, &link.name, &off) {
        problems.note(failure.attempting(format!("switch IPv6 off on {}", link.name)));
    }
    problems.into_result()
}

/// Removes the routes of a configuration from a link.
pub(super) fn remove_routes(kernel: &mut NicKernel, gone: &NicConfig, link: &NicLink) -> Result<(), KernelError> {
    let attempted = format!("remove routes from {}", link.name);
    let index = NicKernel::index(link).map_err(|failure| failure.attempting(attempted.clone()))?;
    let removals: Vec<Request> =
        gone.routes.iter().map(|route| kept(RTM_DELROUTE, &route.to_add(gone.link.ifindex, index, 0), 0)).collect();
    let mut problems = Problems::default();
    problems.take(kernel, &attempted, &removals);
    problems.into_result()
}

/// Makes one request, whose answer says nothing but whether it was done.
pub(super) fn perform(kernel: &mut NicKernel, request: Request) -> Result<(), Failure> {
    kernel.socket()?.perform(&[request], |_, _, _| {}).into_iter().collect()
}

/// Changes MTU and state of a link, in one request.
pub(super) fn set_link(kernel: &mut NicKernel, link: &NicLink, mtu: Option<u32>, up: Option<bool>) -> Result<(), Failure> {
    let change = LinkChange { mtu, up, ..LinkChange::default() };
    let Some(request) = encode::set_link(NicKernel::index(link)?, &change) else { return Ok(()) };
    perform(kernel, request)
}

/// Changes the hardware address of a link.
pub(super) fn set_mac(kernel: &mut NicKernel, link: &NicLink, mac: MacAddr) -> Result<(), Failure> {
    let change = LinkChange { mac: Some(mac), ..LinkChange::default() };
    let Some(request) = encode::set_link(NicKernel::index(link)?, &change) else { return Ok(()) };
    perform(kernel, request)
}

/// Removes a link; one that is gone already is gone.
pub(super) fn remove_link(kernel: &mut NicKernel, link: &NicLink) -> Result<(), Failure> {
    let request = encode::delete_link(NicKernel::index(link)?);
    perform(kernel, request).or_else(|failure| if failure.is(Errno::ENODEV) { Ok(()) } else { Err(failure) })
}

pub(super) fn kept(kind: u16, message: &Message, flags: u16) -> Request {
    let mut payload = message.header.clone();
    payload.extend(message.attributes.iter().flat_map(|attribute| encode::attribute(attribute.0, &attribute.1)));
    Request::write(Body::Kept(kind, payload), flags)
}

fn add_address(message: &Message) -> Request {
    kept(RTM_NEWADDR, message, NLM_F_CREATE | NLM_F_REPLACE)
}

fn remove_address(message: &Message) -> Request {
    kept(RTM_DELADDR, message, 0)
}

/// Appended, since the same route may still stand on the other link: plainly added it would be refused, and replacing could hit somebody else's.
fn add_route(message: &Message) -> Request {
    kept(RTM_NEWROUTE, message, NLM_F_CREATE | NLM_F_APPEND)
}

/// A request, and what it is about.
type Told = (Request, String);

/// Says of requests what they are about.
fn about(what: &impl fmt::Display) -> impl Fn(Request) -> Told {
    let what = what.to_string();
    move |request| (request, what.clone())
}

/// What went wrong on the way: everything is tried, the first failure is told.
#[derive(Default)]
struct Problems(Option<KernelError>);

impl Problems {
    fn note(&mut self, error: KernelError) {
        tracing::warn!(%error, "a part of a NIC's configuration could not be carried over");
        self.0.get_or_insert(error);
    }

    /// As [`Problems::take`], and names what was refused.
    fn take_each(&mut self, kernel: &mut NicKernel, attempted: &str, requests: &[Told]) {
        let (requests, about): (Vec<Request>, Vec<&str>) =
            requests.iter().map(|(request, about)| (request.clone(), about.as_str())).unzip();
        self.perform(kernel, attempted, &requests, &about);
    }

    fn take(&mut self, kernel: &mut NicKernel, attempted: &str, requests: &[Request]) {
        self.perform(kernel, attempted, requests, &[]);
    }

    /// Performs requests; what is there already, or gone already, is no failure.
    fn perform(&mut self, kernel: &mut NicKernel, attempted: &str, requests: &[Request], about: &[&str]) {
        let answers = match kernel.socket() {
            Ok(socket) => socket.perform(requests, |_, _, _| {}),
            Err(failure) => vec![Err(failure)],
        };
        for (at, failure) in answers.into_iter().enumerate().filter_map(|(at, answer)| Some((at, answer.err()?))) {
            let so_already = [Errno::EEXIST, Errno::ESRCH, Errno::EADDRNOTAVAIL].iter().any(|errno| failure.is(*errno));
            if !so_already {
                self.note(failure.attempting(about.get(at).map_or_else(|| attempted.to_owned(), |about| format!("{attempted} ({about})"))));
            }
        }
    }

    fn into_result(self) -> Result<(), KernelError> {
        self.0.map_or(Ok(()), Err)
    }
}
