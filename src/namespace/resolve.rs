//! From a slot to an answer: where it leads now, or why nowhere. Looks when it is asked; knows nothing of time and events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::stat::fstat;

use super::bindings::{Bindings, ProcessMark, Writing};
use super::docker::Roster;
use super::place::{Place, Sight};
use super::process::{self, Found, Process};
use super::{Container, NetnsHandle, OpenNetns, sys};
use crate::linux::netns_thread::{cookie_of, own_cookie};
use crate::model::{NetnsId, NetnsRef, NetnsSlot, Reason};

/// Where a slot leads.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To this namespace, of this container where a label was asked for.
    Bound(NetnsHandle, Option<Arc<Container>>),
    /// Nowhere for now.
    Unbound(Reason, String),
    /// That cannot be told: whoever knows cannot be asked, and could not since our start.
    Unknown(Reason, String),
    /// To something that can never be used.
    Refused(Reason, String),
}

impl Answer {
    /// Whether both say the same to who listens.
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bound(a, in_a), Self::Bound(b, in_b)) => a.id == b.id && in_a == in_b,
            (Self::Unbound(a, x), Self::Unbound(b, y))
            | (Self::Unknown(a, x), Self::Unknown(b, y))
            | (Self::Refused(a, x), Self::Refused(b, y)) => a == b && x == y,
            _ => false,
        }
    }
}

/// How a slot is looked at.
pub enum Target {
    /// Always the same answer.
    Fixed(Answer),
    /// A path. With the mount that answered last, where the kernel tells it.
    Place(Arc<Place>, Option<u64>),
    /// A process.
    Process(i32, Writing, Fate),
    /// A label: the roster of microservices answers.
    Label(String),
}

/// What became of the process of a slot.
pub enum Fate {
    /// Not seen yet.
    Awaited,
    /// It is this one, and runs.
    Bound(Arc<Process>),
    /// It has ended; no other one takes its place.
    Ended,
}

/// What is needed to resolve slots.
pub struct Resolver {
    /// The agent's own namespace.
    pub own: NetnsHandle,
    /// Folder of the named namespaces.
    pub folder: PathBuf,
    /// Folders of the container runtimes.
    pub runtime_dirs: Vec<PathBuf>,
    /// Folders below which namespace files are accepted.
    pub roots: Vec<PathBuf>,
    /// Which process each written PID means.
    pub bindings: Bindings,
    boot: String,
    /// The kernel tells a namespace's cookie without entering it.
    quick_ids: bool,
}

impl Resolver {
    /// Learns the agent's own namespace: that of the calling thread.
    ///
    /// # Errors
    /// What was attempted, and why it failed.
    pub fn new(folder: PathBuf, runtime_dirs: Vec<PathBuf>, roots: Vec<PathBuf>, bindings: Bindings) -> io::Result<Self> {
        let own = own_netns()?;
        let quick_ids = sys::namespace_id(own.opener.open()?.as_fd()).is_ok_and(|number| number == own.id.0.get());
        Ok(Self { own, folder, runtime_dirs, roots, bindings, boot: process::boot_id()?, quick_ids })
    }

    /// How this slot is to be looked at.
    pub fn target(&self, slot: &NetnsSlot) -> Target {
        let bad = |what: String| Target::Fixed(Answer::Refused(Reason::BadNamespace, format!("{} {what}", slot.reference)));
        let place = |place: Result<Place, String>| place.map_or_else(bad, |place| Target::Place(Arc::new(place), None));
        if let Some(writing) = Writing::of(slot) {
            return match i32::try_from(writing.pid) {
                Ok(number) if number > 0 => Target::Process(number, writing, Fate::Awaited),
                _ => bad(format!("cannot be: {} is no process number", writing.pid)),
            };
        }
        match &slot.reference {
            NetnsRef::Default => Target::Fixed(Answer::Bound(self.own.clone(), None)),
            NetnsRef::Named(name) => place(Place::named(&self.folder, name)),
            NetnsRef::Pid(pid) => bad(format!("cannot be: {pid} is no process number")),
            NetnsRef::File(path) => place(self.file(path)),
            NetnsRef::Microservice(label) => Target::Label(label.clone()),
        }
    }

    /// The place of a namespace file.
    pub fn file(&self, path: &std::path::Path) -> Result<Place, String> {
        let folders: Vec<PathBuf> = std::iter::once(&self.folder).chain(&self.runtime_dirs).cloned().collect();
        Place::file(path, &folders, &self.roots)
    }

    /// Looks where the target leads. `None`: still where it led before, or nothing can be said yet.
    ///
    /// # Errors
    /// It cannot be told at the moment; what was known stays true until it can.
    pub fn look(&mut self, roster: &Roster, slot: &NetnsSlot, target: &mut Target) -> io::Result<Option<Answer>> {
        match target {
            Target::Fixed(answer) => Ok(Some(answer.clone())),
            Target::Label(label) => Ok(roster.answer(label)),
            Target::Place(place, mount) => {
                if mount.is_some_and(|mount| place.still_shows(mount)) {
                    return Ok(None);
                }
                let (answer, now) = self.look_at_place(slot, place)?;
                *mount = now;
                Ok(Some(answer))
            }
            Target::Process(pid, writing, fate) => self.look_at_process(slot, *pid, *writing, fate).map(Some),
        }
    }

    /// Who this namespace is.
    ///
    /// # Errors
    /// What the system says.
    pub fn handle(&self, ns: BorrowedFd<'_>, opener: Arc<dyn OpenNetns>) -> io::Result<NetnsHandle> {
        let quick = if self.quick_ids { NetnsId::new(sys::namespace_id(ns)?) } else { None };
        let id = quick.map_or_else(|| cookie_of(ns), Ok)?;
        if id == self.own.id {
            return Ok(self.own.clone());
        }
        Ok(NetnsHandle { id, inode: fstat(ns)?.st_ino, own: false, opener })
    }

    /// What tells a process from every other one.
    pub fn mark(&self, process: &Process) -> ProcessMark {
        process.mark(&self.boot)
    }

    fn look_at_place(&self, slot: &NetnsSlot, place: &Arc<Place>) -> io::Result<(Answer, Option<u64>)> {
        let missing = |what: &str| Ok((Answer::Unbound(Reason::NamespaceMissing, format!("{} {what}", slot.reference)), None));
        match place.look() {
            Sight::Netns(ns, mount) => Ok((self.answer(slot, ns.as_fd(), place.clone())?, mount)),
            Sight::Missing => missing("does not exist; it is waited for"),
            Sight::Stub => missing("is only a file so far: nothing is mounted on it; it is waited for"),
            Sight::Useless(what) => Ok((Answer::Refused(Reason::BadNamespace, format!("{} {what}", slot.reference)), None)),
            Sight::Unknown(error) => Err(error),
        }
    }

    fn look_at_process(&mut self, slot: &NetnsSlot, pid: i32, writing: Writing, fate: &mut Fate) -> io::Result<Answer> {
        if matches!(fate, Fate::Awaited) {
            match (Process::find(pid)?, self.bindings.get(writing)) {
                (Found::Process(process), Some(bound)) => {
                    *fate = if *bound == process.mark(&self.boot) { Fate::Bound(Arc::new(process)) } else { Fate::Ended };
                }
                (_, Some(_)) => *fate = Fate::Ended,
                (Found::Process(process), None) => {
                    self.bindings.insert(writing, process.mark(&self.boot));
                    *fate = Fate::Bound(Arc::new(process));
                }
                (Found::Nobody, None) => {
                    let message = format!("process {pid} does not exist; it is waited for");
                    return Ok(Answer::Unbound(Reason::NamespaceMissing, message));
                }
                (Found::Thread, None) => {
                    let message = format!("{pid} is a thread, not a process; write the number of its process");
                    return Ok(Answer::Refused(Reason::BadNamespace, message));
                }
            }
        }
        if let Fate::Bound(process) = fate {
            match process.open() {
                Ok(ns) => return self.answer(slot, ns.as_fd(), process.clone()),
                Err(error) if !process::is_gone(&error) => return Err(error),
                Err(_) => *fate = Fate::Ended,
            }
        }
        let message = format!("process {pid} has ended; write the key again to bind it anew");
        Ok(Answer::Unbound(Reason::NamespaceMissing, message))
    }

    fn answer(&self, slot: &NetnsSlot, ns: BorrowedFd<'_>, opener: Arc<dyn OpenNetns>) -> io::Result<Answer> {
        let handle = self.handle(ns, opener)?;
        if !handle.own {
            return Ok(Answer::Bound(handle, None));
        }
        let message = format!("{} is the agent's own; leave `namespace` out to mean the agent's own", slot.reference);
        Ok(Answer::Refused(Reason::OwnNamespace, message))
    }
}

/// The agent's own namespace lives as long as the agent, so its file may stay open.
/// The calling thread's namespace.
///
/// # Errors
/// What the system says.
pub fn own_netns() -> io::Result<NetnsHandle> {
    let file = OwnedFd::from(std::fs::File::open("/proc/thread-self/ns/net")?);
    let inode = fstat(&file)?.st_ino;
    Ok(NetnsHandle { id: own_cookie()?, inode, own: true, opener: Arc::new(OwnNetns(file)) })
}

struct OwnNetns(OwnedFd);

impl OpenNetns for OwnNetns {
    fn open(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::netns_thread::in_new_netns;

    #[test]
    fn both_ways_to_identify_agree() {
        let mut resolver = Resolver::new(PathBuf::new(), Vec::new(), Vec::new(), Bindings::load(None).unwrap()).unwrap();
        let (file, cookie) = in_new_netns(|| Ok((std::fs::File::open("/proc/thread-self/ns/net")?, own_cookie()?))).unwrap();
        let (file, opener) = (OwnedFd::from(file), resolver.own.opener.clone());
        for quick in [resolver.quick_ids, false] {
            resolver.quick_ids = quick;
            let handle = resolver.handle(file.as_fd(), opener.clone()).unwrap();
            assert_eq!((handle.id, handle.own), (cookie, false), "quick: {quick}");
            let own = resolver.own.opener.open().unwrap();
            assert!(resolver.handle(own.as_fd(), opener.clone()).unwrap().own);
        }
    }
}
