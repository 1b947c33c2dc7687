//! The classical way, as Ligato's agent goes it, request by request: the pair is made in a namespace for configuration, each end is moved to where it belongs, and
//! is looked up again by name before every single setting; every request has a socket of its own, every change of namespace is a `setns`.
//!
//! What is not here costs next to nothing beside the two moves of a pair: locks, caches, logs, and the garbage collector.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::floor::add_address;
use crate::netlink::*;
use crate::support::Host;
use crate::work::{End, MTU, Pair, netns_name};

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps {
    pub sent: Sent,
    pub entries: u64,
    pub moves: u64,
}

struct Old {
    /// Where pairs are made.
    config: File,
    spaces: Vec<File>,
    steps: Steps,
}

/// Name of the namespace in which pairs are made.
pub const CONFIG: &str = "config";

/// Makes pairs.
pub fn create(host: &Host, pairs: &[Pair], spaces: usize) -> Steps {
    work(host, spaces, |old| pairs.iter().for_each(|pair| old.pair(pair)))
}

/// Deletes pairs, each by the name of one end.
pub fn delete(host: &Host, pairs: &[Pair], spaces: usize) -> Steps {
    work(host, spaces, |old| {
        for end in pairs.iter().map(|pair| &pair.ends[0]) {
            old.within(Some(end.netns), |old| {
                let index = old.by_name(&end.name).unwrap();
                old.request(RTM_DELLINK, 0, &link_header(index, 0, 0), |_| {});
            });
        }
    })
}

/// Takes TAPs that stand in the host's own namespace, with an `x` before their names, to where they belong.
pub fn take_taps(host: &Host, taps: &[End], spaces: usize) -> Steps {
    work(host, spaces, |old| {
        for tap in taps {
            old.conn(|conn| conn.dump(RTM_GETLINK, &link_header(0, 0, 0), |_| {}));
            old.configure(tap, Some(&format!("x{}", tap.name)));
        }
    })
}

/// Works on a thread of the host.
fn work(host: &Host, spaces: usize, todo: impl FnOnce(&mut Old) + Send) -> Steps {
    let file = |name: &str| File::open(host.netns_file(name)).unwrap();
    let spaces = (0..spaces).map(|place| file(&netns_name(place))).collect();
    let mut old = Old { config: file(CONFIG), spaces, steps: Steps::default() };
    host.inside("", move || {
        todo(&mut old);
        old.steps
    })
}

#[allow(clippy::disallowed_methods, reason = "on a thread that ends with this method's work")]
fn enter(netns: &File) {
    setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
}

impl Old {
    /// Works inside a namespace (of this place; the one for configuration if none) and comes back.
    fn within(&mut self, place: Option<usize>, work: impl FnOnce(&mut Self)) {
        // Where it is now is opened anew each time, to come back to.
        let here = File::open(format!("/proc/self/task/{}/ns/net", nix::unistd::gettid())).unwrap();
        enter(place.map_or(&self.config, |place| &self.spaces[place]));
        work(self);
        enter(&here);
        self.steps.entries += 2;
    }

    fn conn(&mut self, use_it: impl FnOnce(&mut Conn)) {
        let mut conn = Conn::here();
        use_it(&mut conn);
        self.steps.sent.messages += conn.sent.messages;
        self.steps.sent.sends += conn.sent.sends;
    }

    fn request(&mut self, kind: u16, flags: u16, header: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let mut batch = Batch::default();
        batch.add(kind, flags, header, attributes);
        self.conn(|conn| conn.send(batch).unwrap());
    }

    fn by_name(&mut self, name: &str) -> Option<u32> {
        let mut found = None;
        self.conn(|conn| found = conn.index_of(name));
        found
    }

    fn pair(&mut self, pair: &Pair) {
        let [a, b] = &pair.ends;
        self.within(None, |old| {
            for (end, place) in [(a, Some(a.netns)), (b, Some(b.netns)), (a, None), (b, None)] {
                old.within(place, |old| assert_eq!(old.by_name(&end.name), None));
            }
            old.request(RTM_NEWLINK, CREATE, &link_header(0, 0, 0), |attributes| {
                attributes.name(IFLA_IFNAME, &a.name);
                attributes.nest(IFLA_LINKINFO, &[], |info| {
                    info.put(IFLA_INFO_KIND, b"veth");
                    info.nest(IFLA_INFO_DATA, &[], |data| {
                        data.nest(VETH_INFO_PEER, &link_header(0, 0, 0), |peer| peer.name(IFLA_IFNAME, &b.name));
                    });
                });
            });
            assert!(old.by_name(&a.name).is_some());
            old.configure(a, None);
            old.configure(b, None);
        });
    }

    fn configure(&mut self, end: &End, former: Option<&str>) {
        let index = self.by_name(former.unwrap_or(&end.name)).unwrap();
        let target = self.spaces[end.netns].as_raw_fd().cast_unsigned();
        self.request(RTM_SETLINK, 0, &link_header(index, 0, 0), |attributes| attributes.number(IFLA_NET_NS_FD, target));
        self.steps.moves += 1;
        self.within(Some(end.netns), |old| {
            let set = |old: &mut Self, flags: u32, attributes: &dyn Fn(&mut Attributes<'_>)| {
                let index = old.by_name(&end.name).unwrap();
                old.request(RTM_SETLINK, 0, &link_header(index, flags, flags), attributes);
            };
            if let Some(former) = former {
                old.rename(former, &end.name);
            }
            set(old, IFF_UP, &|_| {});
            set(old, 0, &|attributes| attributes.put(IFLA_ADDRESS, &end.mac));
            old.by_name(&end.name);
            old.conn(|conn| conn.dump(RTM_GETADDR, &[0; 8], |_| {}));
            let index = old.by_name(&end.name).unwrap();
            let mut batch = Batch::default();
            add_address(&mut batch, index, end);
            old.conn(|conn| conn.send(batch).unwrap());
            set(old, 0, &|attributes| attributes.number(IFLA_MTU, MTU));
            old.conn(|conn| conn.dump(RTM_GETLINK, &link_header(0, 0, 0), |_| {}));
        });
    }
}

impl Old {
    /// Down, renamed, up again.
    fn rename(&mut self, former: &str, name: &str) {
        for (known, up, new) in [(former, 0, None), (former, 0, Some(name)), (name, IFF_UP, None)] {
            let index = self.by_name(known).unwrap();
            let change = if new.is_some() { 0 } else { IFF_UP };
            self.request(RTM_SETLINK, 0, &link_header(index, up, change), |attributes| {
                new.iter().for_each(|new| attributes.name(IFLA_IFNAME, new));
            });
        }
    }
}

impl Conn {
    /// The index of the link with this name.
    fn index_of(&mut self, name: &str) -> Option<u32> {
        let mut batch = Batch::default();
        batch.add(RTM_GETLINK, 0, &link_header(0, 0, 0), |attributes| attributes.name(IFLA_IFNAME, name));
        match self.ask(batch) {
            Ok(payload) => Some(number(&payload[4..])),
            Err(Errno::ENODEV) => None,
            Err(errno) => panic!("look up {name}: {errno}"),
        }
    }
}
