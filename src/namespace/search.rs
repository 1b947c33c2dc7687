//! The search at the start: every namespace that may hold links of an earlier run, also those that no key asks for any more.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::place::{Place, Sight};
use super::process::{Found, Process};
use super::resolve::Resolver;
use super::{NetnsEvent, NetnsHandle, OpenNetns};
use crate::model::{NetnsId, NetnsRef};

/// A namespace that an earlier run has used, in this boot (cookies start anew with each boot).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Its identity.
    pub id: NetnsId,
    /// How it was referred to.
    pub reference: NetnsRef,
}

/// Finds the agent's own namespace, all in the folders, and the remembered ones, each once. Ends with [`NetnsEvent::SearchDone`].
///
/// Not every namespace that some process is in: one of them may belong to another agent with our label, in a network namespace of its own, whose links
/// would look like leftovers of ours.
pub fn search(resolver: &Resolver, remembered: &[Remembered]) -> Vec<NetnsEvent> {
    let mut search = Search { resolver, seen: HashSet::new(), events: Vec::new() };
    search.found(resolver.own.clone(), &NetnsRef::Default);
    search.folder(&resolver.folder, |name| NetnsRef::Named(name.to_owned()));
    for dir in &resolver.runtime_dirs {
        search.folder(dir, |name| NetnsRef::File(dir.join(name)));
    }
    for known in remembered {
        if let NetnsRef::File(path) = &known.reference
            && let Ok(place) = resolver.file(path)
        {
            search.place(place, &known.reference, |id| id == known.id);
        }
    }
    let lost: HashSet<NetnsId> = remembered.iter().map(|known| known.id).filter(|id| !search.seen.contains(id)).collect();
    if !lost.is_empty() {
        search.processes(|id| lost.contains(&id));
    }
    search.events.push(NetnsEvent::SearchDone);
    search.events
}

struct Search<'a> {
    resolver: &'a Resolver,
    seen: HashSet<NetnsId>,
    events: Vec<NetnsEvent>,
}

impl Search<'_> {
    fn found(&mut self, netns: NetnsHandle, reference: &NetnsRef) {
        if self.seen.insert(netns.id) {
            self.events.push(NetnsEvent::Found { netns, reference: reference.to_string() });
        }
    }

    fn folder(&mut self, dir: &Path, reference: impl Fn(&str) -> NetnsRef) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return tracing::warn!(dir = %dir.display(), %error, "namespaces in this folder cannot be listed"),
        };
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if let Ok(place) = Place::named(dir, &name) {
                self.place(place, &reference(&name), |_| true);
            }
        }
    }

    fn place(&mut self, place: Place, reference: &NetnsRef, wanted: impl Fn(NetnsId) -> bool) {
        let handle = match place.look() {
            Sight::Netns(ns, _) => self.resolver.handle(ns.as_fd(), Arc::new(place)),
            Sight::Unknown(error) => Err(error),
            _ => return,
        };
        match handle {
            Ok(handle) if wanted(handle.id) => self.found(handle, reference),
            Ok(_) => {}
            Err(error) => tracing::warn!(%reference, %error, "this namespace cannot be looked at"),
        }
    }

    /// One process per namespace is enough; which one it is, its link below `/proc` tells without opening anything.
    fn processes(&mut self, wanted: impl Fn(NetnsId) -> bool) {
        let mut visited = HashSet::new();
        let Ok(entries) = fs::read_dir("/proc") else { return };
        for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            // Processes come and go: whoever is gone by now has nothing to tell.
            let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
            if !visited.contains(&link)
                && let Ok(handle) = self.process(pid)
            {
                visited.insert(link);
                if wanted(handle.id) {
                    self.found(handle, &NetnsRef::Pid(pid.unsigned_abs()));
                }
            }
        }
    }

    fn process(&self, pid: i32) -> io::Result<NetnsHandle> {
        match Process::find(pid)? {
            Found::Process(process) => {
                let ns = process.open()?;
                self.resolver.handle(ns.as_fd(), Arc::new(process))
            }
            Found::Nobody | Found::Thread => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
