//! What is to be deleted, in which portions, and whose turn it is at the kernel's one lock for links (RTNL). Decides, and does nothing.
//!
//! The kernel serves whoever waits for the lock in the order of their coming, and hands it on after every message. Who makes a pair with five messages
//! would so wait five times for as many groups as there are threads that delete. So one portion is deleted at a time, and none is begun while something
//! is made. A portion's turn is over when its links are gone from the kernel's tables: its thread still waits for the kernel's clean-up then, but the
//! lock is free.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::Doomed;
use crate::linux::socket::RouteSocket;
use crate::model::{LinkId, NetnsId};
use crate::namespace::NetnsHandle;

/// Most links of a namespace that one request deletes: 16 hold the kernel's lock for some 5 ms.
const MOST_AT_ONCE: usize = 16;
/// The same while others are at work.
const MOST_BESIDE_OTHERS: usize = 4;
/// Who has made something makes more, most likely.
const BESIDE_OTHERS: Duration = Duration::from_millis(200);

/// One namespace and the group of one agent in it.
pub(super) type Queued = (NetnsId, u32);

/// All that is to be done.
#[derive(Default)]
pub(super) struct Agenda {
    queues: HashMap<Queued, Queue>,
    ready: VecDeque<Queued>,
    making: bool,
    made: Option<Instant>,
    /// Those that last: one, but where someone's patience came to its end.
    turns: Vec<Turn>,
    last_turn: u64,
}

struct Queue {
    netns: NetnsHandle,
    /// In the doomed group already.
    marked: Vec<Doomed>,
    /// Not yet.
    waiting: VecDeque<Doomed>,
    /// In the hands of a thread, and still there.
    working: Vec<Doomed>,
    /// A thread has it, or it is among the ready ones.
    busy: bool,
    /// Open in the namespace for as long as there is something to do.
    sockets: Vec<RouteSocket>,
}

/// What a thread does next in a namespace.
pub(super) struct Portion {
    pub(super) netns: NetnsHandle,
    pub(super) links: Vec<Doomed>,
    /// Whether they are in the doomed group already.
    pub(super) marked: bool,
    pub(super) socket: Option<RouteSocket>,
}

/// A deletion that has the lock, or is the next to get it.
struct Turn {
    number: u64,
    queued: Queued,
    left: HashSet<LinkId>,
}

impl Queue {
    fn all(&self) -> impl Iterator<Item = &Doomed> {
        self.marked.iter().chain(&self.waiting).chain(&self.working)
    }
}

impl Agenda {
    /// The links of a namespace that are on the list.
    pub(super) fn pending(&self, netns: NetnsId) -> HashSet<LinkId> {
        let here = self.queues.iter().filter(|((id, _), _)| *id == netns);
        here.flat_map(|(_, queue)| queue.all()).map(|doomed| doomed.link).collect()
    }

    /// How many more links may be put into the doomed group at once.
    pub(super) fn room(&self, queued: Queued) -> usize {
        self.queues.get(&queued).map_or(MOST_AT_ONCE, |queue| {
            if queue.waiting.is_empty() { MOST_AT_ONCE.saturating_sub(queue.marked.len() + queue.working.len()) } else { 0 }
        })
    }

    /// Puts links on the list; true when a thread is needed.
    pub(super) fn add(&mut self, netns: &NetnsHandle, group: u32, marked: Vec<Doomed>, later: impl Iterator<Item = Doomed>) -> bool {
        let queued = (netns.id, group);
        let queue = self.queues.entry(queued).or_insert_with(|| Queue {
            netns: netns.clone(),
            marked: Vec::new(),
            waiting: VecDeque::new(),
            working: Vec::new(),
            busy: false,
            sockets: Vec::new(),
        });
        queue.netns = netns.clone();
        queue.marked.extend(marked);
        queue.waiting.extend(later);
        !queue.busy && self.go_on(queued)
    }

    /// Drops what is left to do in a namespace.
    pub(super) fn forget(&mut self, netns: NetnsId) {
        for (_, queue) in self.queues.iter_mut().filter(|((id, _), _)| *id == netns) {
            queue.marked.clear();
            queue.waiting.clear();
            queue.sockets.clear();
        }
    }

    /// Where there is something to do.
    pub(super) fn next(&mut self) -> Option<Queued> {
        self.ready.pop_front()
    }

    /// What is to be done there; `None` when that is nothing any more.
    pub(super) fn portion(&mut self, queued: Queued, now: Instant) -> Option<Portion> {
        let beside_others = self.making || self.made.is_some_and(|made| now.duration_since(made) < BESIDE_OTHERS);
        let queue = self.queues.get_mut(&queued)?;
        let marked = !queue.marked.is_empty();
        queue.working = if marked {
            std::mem::take(&mut queue.marked)
        } else {
            let most = if beside_others { MOST_BESIDE_OTHERS } else { MOST_AT_ONCE };
            let count = queue.waiting.len().min(most);
            queue.waiting.drain(..count).collect()
        };
        if queue.working.is_empty() {
            self.queues.remove(&queued);
            return None;
        }
        Some(Portion { netns: queue.netns.clone(), links: queue.working.clone(), marked, socket: queue.sockets.pop() })
    }

    /// Takes a socket back, for the next portion.
    pub(super) fn keep(&mut self, queued: Queued, socket: RouteSocket) {
        if let Some(queue) = self.queues.get_mut(&queued) {
            queue.sockets.push(socket);
        }
    }

    /// A portion is dealt with; true when there is another one, for which a thread is needed.
    pub(super) fn portion_is_over(&mut self, queued: Queued) -> bool {
        if let Some(queue) = self.queues.get_mut(&queued) {
            queue.busy = false;
            queue.working.clear();
        }
        self.go_on(queued)
    }

    fn go_on(&mut self, queued: Queued) -> bool {
        let Some(queue) = self.queues.get_mut(&queued) else { return false };
        if queue.marked.is_empty() && queue.waiting.is_empty() {
            self.queues.remove(&queued);
            return false;
        }
        queue.busy = true;
        self.ready.push_back(queued);
        true
    }

    /// From here on no turn begins.
    pub(super) fn begin_making(&mut self) {
        self.making = true;
    }

    /// Turns may begin again; true if that was not so before.
    pub(super) fn end_making(&mut self, now: Instant) -> bool {
        if self.making {
            self.made = Some(now);
        }
        std::mem::take(&mut self.making)
    }

    /// Whether something is made.
    pub(super) fn is_making(&self) -> bool {
        self.making
    }

    /// Whether whoever wants to delete must wait.
    pub(super) fn must_wait(&self) -> bool {
        self.making || !self.turns.is_empty()
    }

    /// Begins the turn in which these links are deleted; returns its number.
    pub(super) fn begin_turn(&mut self, queued: Queued, links: impl Iterator<Item = LinkId>) -> u64 {
        self.last_turn += 1;
        self.turns.push(Turn { number: self.last_turn, queued, left: links.collect() });
        self.last_turn
    }

    /// The kernel told that a link is gone. If the turn is over with it, returns where it was.
    pub(super) fn gone(&mut self, link: LinkId) -> Option<Queued> {
        let over = self.turns.iter_mut().position(|turn| turn.left.remove(&link) && turn.left.is_empty())?;
        Some(self.turns.swap_remove(over).queued)
    }

    /// The request has been answered. If that is the end of its turn, returns where it was.
    pub(super) fn answered(&mut self, number: u64) -> Option<Queued> {
        let lasts = self.turns.iter().position(|turn| turn.number == number)?;
        Some(self.turns.swap_remove(lasts).queued)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::linux::ExpectedMark;
    use crate::model::IfIndex;
    use crate::namespace::OpenNetns;

    const GROUP: u32 = 7;

    struct NoWay;

    impl OpenNetns for NoWay {
        fn open(&self) -> std::io::Result<std::os::fd::OwnedFd> {
            Err(nix::errno::Errno::ENOENT.into())
        }
    }

    fn netns(n: u64) -> NetnsHandle {
        NetnsHandle { id: NetnsId::new(n).unwrap(), inode: 0, own: false, opener: Arc::new(NoWay) }
    }

    fn doomed(netns: &NetnsHandle, links: std::ops::Range<u32>) -> Vec<Doomed> {
        let link = |n| LinkId { netns: netns.id, ifindex: IfIndex::new(n + 1).unwrap() };
        links.map(|n| Doomed { link: link(n), doomed_group: GROUP, expected: ExpectedMark { group: 1, alias: None } }).collect()
    }

    fn links(portion: &Portion) -> Vec<LinkId> {
        portion.links.iter().map(|doomed| doomed.link).collect()
    }

    #[test]
    fn one_deletes_at_a_time_and_the_next_begins_when_the_links_are_gone() {
        let (mut agenda, now, red) = (Agenda::default(), Instant::now(), netns(1));
        let count = u32::try_from(MOST_AT_ONCE).unwrap() + 1;
        assert!(agenda.add(&red, GROUP, Vec::new(), doomed(&red, 0..count).into_iter()));
        let queued = agenda.next().unwrap();
        let first = agenda.portion(queued, now).unwrap();
        assert_eq!((first.links.len(), first.marked), (MOST_AT_ONCE, false));
        assert!(!agenda.add(&red, GROUP, Vec::new(), doomed(&red, count..count + 1).into_iter()), "a thread is there already");
        let number = agenda.begin_turn(queued, links(&first).into_iter());
        assert!(agenda.must_wait());
        let (last, others) = (links(&first)[0], links(&first)[1..].to_vec());
        assert!(others.into_iter().all(|link| agenda.gone(link).is_none()));
        assert_eq!(agenda.gone(last), Some(queued));
        assert!(!agenda.must_wait() && agenda.portion_is_over(queued));
        let queued = agenda.next().unwrap();
        assert_eq!(agenda.portion(queued, now).unwrap().links.len(), 2);
        assert_eq!(agenda.answered(number), None, "its turn was over before");
        assert!(!agenda.portion_is_over(queued));
        assert!(agenda.queues.is_empty() && agenda.pending(red.id).is_empty());
    }

    #[test]
    fn nobody_begins_while_something_is_made_and_portions_are_small_after_that() {
        let (mut agenda, now, red) = (Agenda::default(), Instant::now(), netns(1));
        agenda.begin_making();
        assert!(agenda.must_wait() && agenda.end_making(now) && !agenda.must_wait() && !agenda.end_making(now));
        agenda.add(&red, GROUP, Vec::new(), doomed(&red, 0..40).into_iter());
        let queued = agenda.next().unwrap();
        assert_eq!(agenda.portion(queued, now).unwrap().links.len(), MOST_BESIDE_OTHERS);
        assert!(agenda.portion_is_over(queued));
        assert_eq!(agenda.portion(queued, now + BESIDE_OTHERS).unwrap().links.len(), MOST_AT_ONCE);
    }

    #[test]
    fn a_turn_that_lost_its_notes_ends_with_the_answer() {
        let (mut agenda, red, blue) = (Agenda::default(), netns(1), netns(2));
        let first = agenda.begin_turn((red.id, GROUP), doomed(&red, 0..1).into_iter().map(|d| d.link));
        // Somebody lost his patience.
        let second = agenda.begin_turn((blue.id, GROUP), doomed(&blue, 0..1).into_iter().map(|d| d.link));
        assert_eq!(agenda.answered(second), Some((blue.id, GROUP)));
        assert!(agenda.must_wait());
        assert_eq!(agenda.answered(first), Some((red.id, GROUP)));
        assert!(!agenda.must_wait());
    }

    #[test]
    fn what_is_forgotten_is_not_begun() {
        let (mut agenda, red) = (Agenda::default(), netns(1));
        agenda.add(&red, GROUP, doomed(&red, 0..2), doomed(&red, 2..4).into_iter());
        assert_eq!((agenda.pending(red.id).len(), agenda.room((red.id, GROUP))), (4, 0));
        agenda.forget(red.id);
        let queued = agenda.next().unwrap();
        assert!(agenda.portion(queued, Instant::now()).is_none() && agenda.queues.is_empty());
    }
}
