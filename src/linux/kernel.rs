//! The real kernel: operations grouped by namespace, sent in batches, answered one by one.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;

use crate::linux::batch::Request;
use crate::linux::counters::Counters;
use crate::linux::indexes::Indexes;
use crate::linux::monitor::Monitor;
use crate::linux::nsids::NsIds;
use crate::linux::reaper::{self, Doomed, Reaper};
use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::sockets::Sockets;
use crate::linux::{
    Done, ExpectedMark, Kernel, KernelCounters, KernelError, KernelOp, LinkChange, LinkSink, NetnsReading, NewLink, NewTap, decode,
    describe, encode, ipv6, read, schedule, tap,
};
use crate::model::{IfIndex, LinkId, NetnsId, ObservedLink};
use crate::namespace::NetnsHandle;

/// The kernel of this host.
///
/// Owned by one thread, which it blocks while the kernel works. It runs one thread that listens to changes and a few that delete.
/// Dropping it stops them; deletions that were handed over are finished first.
pub struct LinuxKernel {
    sockets: Sockets,
    counters: Arc<Counters>,
    indexes: Indexes,
    reaper: Reaper,
    _monitor: Monitor,
}

/// Most creations that are prepared at a time: each may need a descriptor of another namespace, beside those that are open anyway.
const MOST_AT_ONCE: usize = 256;

/// A way to read links of one namespace.
type Read = fn(&mut RouteSocket, &[IfIndex]) -> Vec<Result<Option<ObservedLink>, Failure>>;

/// Answers by place.
type Answers = Vec<Option<Result<Done, KernelError>>>;

impl LinuxKernel {
    /// Starts to listen in the agent's own namespace. Changes that the kernel tells of go to `sink`, from here on until this is dropped.
    ///
    /// # Errors
    /// What the kernel says: `EPERM` where a capability is missing (the text names it).
    pub fn new(own: NetnsHandle, sink: Arc<dyn LinkSink>) -> Result<Self, KernelError> {
        let counters = Arc::new(Counters::default());
        let deletions = reaper::Shared::new(Arc::clone(&counters), sink);
        let sink: Arc<dyn LinkSink> = deletions.clone();
        let ids = Arc::new(NsIds::new(own.clone(), Arc::clone(&counters), Arc::clone(&sink)));
        let monitor = Monitor::start(&own, Arc::clone(&ids), Arc::clone(&sink)).map_err(|f| f.attempting("listen to changes of links"))?;
        let reaper = Reaper::start(deletions).map_err(|f| f.attempting("start the threads that delete links"))?;
        let mut sockets = Sockets::new(ids, Arc::clone(&counters));
        sockets.attach(own);
        Ok(Self { sockets, counters, indexes: Indexes::new(), reaper, _monitor: monitor })
    }

    fn run(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        for run in places.chunk_by(|a, b| Way::of(&ops[*a]) == Way::of(&ops[*b])) {
            match Way::of(&ops[run[0]]) {
                Way::Creation => run.chunks(MOST_AT_ONCE).for_each(|part| self.run_creations(ops, netns, part, answers)),
                Way::Requests => self.run_requests(ops, netns, run, answers),
                Way::Tap => run.chunks(MOST_AT_ONCE).for_each(|part| self.run_taps(ops, netns, part, answers)),
                Way::Move => run.iter().for_each(|place| answers[*place] = Some(self.run_move(&ops[*place]))),
                Way::Sysctl => self.run_sysctls(ops, netns, run, answers),
                Way::Deletion => self.run_deletions(ops, netns, run, answers),
            }
        }
    }

    fn run_creations(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        let peers = Peers::of(&mut self.sockets, ops, places);
        let mut sent: Vec<Creation<'_>> = Vec::with_capacity(places.len());
        for place in places {
            match Creation::of(*place, &ops[*place], &peers, &mut self.indexes) {
                Some(Ok(creation)) => sent.push(creation),
                Some(Err(failure)) => answers[*place] = Some(Err(failure.attempting(describe::op(&ops[*place], &self.sockets)))),
                None => {}
            }
        }
        let mut outcomes = self.create(netns, &sent);
        // Whether it was the index that is taken, or the name, the same creation without an index tells.
        let (taken, anew): (Vec<usize>, Vec<Creation<'_>>) = sent.iter().zip(&outcomes).enumerate().filter_map(without_index).unzip();
        if !anew.is_empty() {
            for (at, outcome) in taken.into_iter().zip(self.create(netns, &anew)) {
                outcomes[at] = outcome;
            }
        }
        for (creation, outcome) in sent.iter().zip(outcomes) {
            let done = outcome.and_then(|echo| self.done(&ops[creation.place], echo));
            answers[creation.place] = Some(self.judge(&ops[creation.place], done));
        }
    }

    /// Sends creations; what the kernel echoes of each.
    fn create(&mut self, netns: NetnsId, creations: &[Creation<'_>]) -> Vec<Result<Option<ObservedLink>, Failure>> {
        let requests: Vec<Request> = creations.iter().map(Creation::request).collect();
        let mut echoes: Vec<Option<ObservedLink>> = vec![None; requests.len()];
        let outcomes = match self.sockets.get(netns) {
            Ok(socket) => socket.perform(&requests, |at, kind, payload| {
                if kind == decode::RTM_NEWLINK {
                    echoes[at] = decode::link(payload);
                }
            }),
            Err(failure) => vec![Err(failure); requests.len()],
        };
        outcomes.into_iter().zip(echoes).map(|(outcome, echo)| outcome.map(|()| echo)).collect()
    }

    fn run_requests(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        let mut requests: Vec<Request> = Vec::with_capacity(places.len());
        let mut sent: Vec<usize> = Vec::with_capacity(places.len());
        for place in places {
            match request(&ops[*place]) {
                Some(request) => {
                    requests.push(request);
                    sent.push(*place);
                }
                None => answers[*place] = Some(Ok(Done::AlreadySo)),
            }
        }
        let outcomes = match self.sockets.get(netns) {
            Ok(socket) => socket.perform(&requests, |_, _, _| {}),
            Err(failure) => vec![Err(failure); sent.len()],
        };
        for (place, outcome) in sent.into_iter().zip(outcomes) {
            answers[place] = Some(self.judge(&ops[place], outcome.map(|()| Done::Ok)));
        }
    }

    fn done(&mut self, op: &KernelOp, echo: Option<ObservedLink>) -> Result<Done, Failure> {
        let KernelOp::CreateVeth { a, b, .. } = op else { return Ok(Done::Ok) };
        if let Some(echo) = echo
            && let Some(peer) = echo.peer
        {
            return Ok(Done::Created { a: echo.ifindex, b: peer.ifindex });
        }
        // A kernel that echoes nothing: both were made under these names a moment ago.
        let a = find(self.sockets.get(a.netns)?, a.name.as_str())?.ifindex;
        let b = find(self.sockets.get(b.netns)?, b.name.as_str())?.ifindex;
        Ok(Done::Created { a, b })
    }

    /// Some refusals say that it is so already.
    fn judge(&self, op: &KernelOp, outcome: Result<Done, Failure>) -> Result<Done, KernelError> {
        match (op, outcome) {
            (_, Ok(done)) => Ok(done),
            (KernelOp::RemoveAddress { .. }, Err(f)) if f.is(Errno::EADDRNOTAVAIL) || f.is(Errno::ENODEV) => Ok(Done::AlreadySo),
            (op, Err(failure)) => Err(failure.attempting(describe::op(op, &self.sockets))),
        }
    }

    fn run_sysctls(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        let links: Vec<(IfIndex, &str)> = places
            .iter()
            .filter_map(|place| match &ops[*place] {
                KernelOp::EnableIpv6 { link, name } => Some((link.ifindex, &**name)),
                _ => None,
            })
            .collect();
        self.counters.count_writes(links.len() as u64);
        let file = self.sockets.get(netns).and_then(|socket| Ok(socket.netns_file()?));
        let outcomes = file.and_then(|file| Ok(ipv6::enable(file.as_fd(), &links)?));
        let outcomes = outcomes.unwrap_or_else(|failure| vec![Err(failure); links.len()]);
        for (place, outcome) in places.iter().zip(outcomes) {
            answers[*place] = Some(self.judge(&ops[*place], outcome.map(|()| Done::Ok)));
        }
    }

    fn run_move(&mut self, op: &KernelOp) -> Result<Done, KernelError> {
        let KernelOp::MoveLink { link, to, change, alias } = op else { return self.judge(op, Ok(Done::AlreadySo)) };
        let outcome = self.move_link(*link, *to, change, alias.as_deref());
        self.judge(op, outcome.map(Done::Moved))
    }

    fn move_link(&mut self, link: LinkId, to: NetnsId, change: &LinkChange, alias: Option<&str>) -> Result<IfIndex, Failure> {
        let target = self.sockets.get(to)?.netns_file()?;
        let request = encode::move_link(link.ifindex, change, target.as_fd());
        let answers = self.sockets.get(link.netns)?.perform(&[request], |_, _, _| {});
        answers.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        self.counters.count_move();
        // Its index may be another one there.
        let name = change.name.as_ref().map_or("", |name| name.as_str());
        let found = find(self.sockets.get(to)?, name)?;
        if found.alias.as_deref() != alias {
            return Err(Failure::new(Errno::ENODEV, "another link has the name of the moved one by now"));
        }
        Ok(found.ifindex)
    }

    /// Makes TAPs on one visit of the namespace, marks them all in one send, and lets those stay that are complete.
    fn run_taps(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        let new: Vec<&NewTap> =
            places.iter().filter_map(|place| if let KernelOp::CreateTap(new) = &ops[*place] { Some(new) } else { None }).collect();
        self.counters.count_writes(new.len() as u64);
        let outcomes = match self.sockets.get(netns) {
            Ok(socket) => tap::create(socket, &new),
            Err(failure) => vec![Err(failure); new.len()],
        };
        for (place, outcome) in places.iter().zip(outcomes) {
            answers[*place] = Some(self.judge(&ops[*place], outcome.map(Done::CreatedTap)));
        }
    }

    fn read_by(&mut self, netns: NetnsId, links: &[IfIndex], read: Read) -> Vec<Result<Option<ObservedLink>, KernelError>> {
        let mut readings = match self.sockets.get(netns) {
            Ok(socket) => read(socket, links),
            Err(failure) => vec![Err(failure); links.len()],
        };
        self.sockets.find_peers(netns, readings.iter_mut().flatten().flatten());
        let attempted = |ifindex: &IfIndex| format!("read {}", describe::link_id(LinkId { netns, ifindex: *ifindex }, &self.sockets));
        readings.into_iter().zip(links).map(|(reading, ifindex)| reading.map_err(|f| f.attempting(attempted(ifindex)))).collect()
    }

    /// Hands links to the reaper, a few of them looked at and marked.
    fn run_deletions(&mut self, ops: &[KernelOp], netns: NetnsId, places: &[usize], answers: &mut Answers) {
        let doomed: Vec<Doomed> = places.iter().filter_map(|place| Doomed::of(&ops[*place])).collect();
        let outcomes = match self.sockets.handle(netns).cloned() {
            Some(handle) if doomed.len() > reaper::FEW => {
                self.reaper.hand_over(&handle, doomed);
                vec![Ok(Done::Ok); places.len()]
            }
            Some(handle) => match self.sockets.get(netns) {
                Ok(socket) => self.reaper.take(&handle, socket, doomed),
                Err(failure) => vec![Err(failure); places.len()],
            },
            None => vec![Err(Failure::new(Errno::ENOENT, "the namespace is not attached")); places.len()],
        };
        for (place, outcome) in places.iter().zip(outcomes) {
            answers[*place] = Some(self.judge(&ops[*place], outcome));
        }
    }
}

impl Kernel for LinuxKernel {
    fn attach(&mut self, netns: &NetnsHandle) {
        self.sockets.attach(netns.clone());
    }

    fn detach(&mut self, netns: NetnsId) {
        self.reaper.forget(netns);
        self.sockets.detach(netns);
    }

    fn read_netns(&mut self, netns: NetnsId) -> Result<NetnsReading, KernelError> {
        // So that the other ends of what is read here can be placed, wherever they are.
        self.sockets.meet_all();
        let reading = self.sockets.get(netns).and_then(read::netns).map(|mut reading| {
            self.sockets.find_peers(netns, &mut reading.links);
            reading
        });
        reading.map_err(|failure| failure.attempting(format!("read the links of namespace {}", self.sockets.inode(netns))))
    }

    fn read_link(&mut self, link: LinkId) -> Result<Option<ObservedLink>, KernelError> {
        self.read_links(link.netns, &[link.ifindex]).pop().unwrap_or(Ok(None))
    }

    fn read_links(&mut self, netns: NetnsId, links: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, KernelError>> {
        self.read_by(netns, links, read::links)
    }

    fn read_settings(&mut self, netns: NetnsId, links: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, KernelError>> {
        self.read_by(netns, links, read::bare_links)
    }

    fn execute(&mut self, ops: &[KernelOp]) -> Vec<Result<Done, KernelError>> {
        let mut answers: Answers = vec![None; ops.len()];
        if ops.iter().any(|op| !matches!(op, KernelOp::DeleteLink { .. })) {
            self.reaper.stand_back();
        }
        for wave in schedule::waves(ops) {
            for (netns, places) in wave {
                self.run(ops, netns, &places, &mut answers);
            }
        }
        let unanswered = || Err(Failure::new(Errno::EIO, "it was not answered").attempting("perform an operation"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    fn rest(&mut self) {
        self.reaper.go_on();
        self.sockets.close_idle();
    }

    fn counters(&self) -> KernelCounters {
        self.counters.snapshot()
    }
}

/// How an operation is performed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Creation,
    Requests,
    Tap,
    Move,
    Sysctl,
    Deletion,
}

impl Way {
    fn of(op: &KernelOp) -> Self {
        match op {
            KernelOp::CreateVeth { .. } => Self::Creation,
            KernelOp::SetLink { .. } | KernelOp::AddAddress { .. } | KernelOp::RemoveAddress { .. } => Self::Requests,
            KernelOp::CreateTap(_) => Self::Tap,
            KernelOp::MoveLink { .. } => Self::Move,
            KernelOp::EnableIpv6 { .. } => Self::Sysctl,
            KernelOp::DeleteLink { .. } => Self::Deletion,
        }
    }
}

impl Doomed {
    fn of(op: &KernelOp) -> Option<Self> {
        match op {
            KernelOp::DeleteLink { link, doomed_group, expected: ExpectedMark { group, alias } } => {
                Some(Self { link: *link, doomed_group: *doomed_group, expected: ExpectedMark { group: *group, alias: alias.clone() } })
            }
            _ => None,
        }
    }
}

/// The second ends' namespaces as files, open only while their creations are sent. Taken from sockets whose cookie is proved, so that a
/// name that leads elsewhere by now cannot send a link there.
struct Peers(HashMap<NetnsId, Result<OwnedFd, Failure>>);

impl Peers {
    fn of(sockets: &mut Sockets, ops: &[KernelOp], places: &[usize]) -> Self {
        let mut files = HashMap::new();
        for place in places {
            if let KernelOp::CreateVeth { a, b, .. } = &ops[*place]
                && a.netns != b.netns
            {
                files.entry(b.netns).or_insert_with(|| sockets.get(b.netns).and_then(|socket| Ok(socket.netns_file()?)));
            }
        }
        Self(files)
    }
}

/// A creation on its way.
#[derive(Clone, Copy)]
struct Creation<'a> {
    place: usize,
    ends: [&'a NewLink; 2],
    group: u32,
    a_up: bool,
    /// The second end's namespace, where it is another one.
    peer: Option<BorrowedFd<'a>>,
    /// The first end's index; the kernel's choice where there is none.
    index: Option<IfIndex>,
}

impl<'a> Creation<'a> {
    fn of(place: usize, op: &'a KernelOp, peers: &'a Peers, indexes: &mut Indexes) -> Option<Result<Self, Failure>> {
        let KernelOp::CreateVeth { a, b, group, a_up } = op else { return None };
        let (peer, index) = match peers.0.get(&b.netns) {
            Some(Ok(file)) => (Some(file.as_fd()), indexes.next()),
            Some(Err(failure)) => return Some(Err(failure.clone())),
            // In one namespace the indexes differ anyhow.
            None => (None, None),
        };
        Some(Ok(Self { place, ends: [a, b], group: *group, a_up: *a_up, peer, index }))
    }

    fn request(&self) -> Request {
        let [a, b] = self.ends;
        encode::create_veth(a, b, self.group, self.a_up, self.peer, self.index)
    }
}

/// A creation that was refused perhaps only for the index that we gave, and its place: the same one without an index.
fn without_index<'a>(
    (at, (creation, outcome)): (usize, (&Creation<'a>, &Result<Option<ObservedLink>, Failure>)),
) -> Option<(usize, Creation<'a>)> {
    let refused = outcome.as_ref().is_err_and(|failure| failure.is(Errno::EEXIST) || failure.is(Errno::EBUSY));
    (refused && creation.index.is_some()).then_some((at, Creation { index: None, ..*creation }))
}

/// The request for an operation on a link that is there; `None` when there is nothing to do.
fn request(op: &KernelOp) -> Option<Request> {
    match op {
        KernelOp::SetLink { link, change } => encode::set_link(link.ifindex, change),
        KernelOp::AddAddress { link, address } => Some(encode::add_address(link.ifindex, address)),
        KernelOp::RemoveAddress { link, address } => Some(encode::remove_address(link.ifindex, *address)),
        KernelOp::CreateVeth { .. }
        | KernelOp::CreateTap(_)
        | KernelOp::MoveLink { .. }
        | KernelOp::EnableIpv6 { .. }
        | KernelOp::DeleteLink { .. } => None,
    }
}

fn find(socket: &mut RouteSocket, name: &str) -> Result<ObservedLink, Failure> {
    let mut found = None;
    let answers = socket.perform(&[encode::get_link_by_name(name)], |_, kind, payload| {
        if kind == decode::RTM_NEWLINK {
            found = decode::link(payload);
        }
    });
    answers.into_iter().collect::<Result<Vec<()>, Failure>>()?;
    found.ok_or_else(|| Failure::new(Errno::ENODEV, "the new link is not there"))
}
