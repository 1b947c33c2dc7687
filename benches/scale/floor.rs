//! The floor: what the kernel itself takes for the same links with the same attributes, asked for in the cheapest way that is known.
//!
//! All links of a wave first, 64 in a send; then per namespace what could not be said at the creation. Only the last message of a send is acknowledged, the
//! indexes are chosen beforehand, and nothing is read.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

use crate::netlink::*;
use crate::support::Host;
use crate::tun;
use crate::work::{End, MTU, ORIGIN, PREFIX, Pair, alias, netns_name};

/// Whose links these are, as far as their marks say.
pub const LABEL: &str = "bench-floor";
/// Their group, and that of those which are being deleted.
const GROUP: u32 = 0x5600_0f10;
const DOOMED: u32 = 0x5700_0f10;
/// Most messages in one send.
const SEND: usize = 64;
/// Threads that delete by group: the kernel lets each wait for about 20 ms, and their waiting overlaps.
const THREADS: usize = 8;

/// Sockets in all namespaces of a host, and in its own one.
pub struct Floor {
    own: Conn,
    inside: Vec<Conn>,
    files: Vec<File>,
}

impl Floor {
    pub fn new(host: &Host, spaces: usize) -> Self {
        let names: Vec<String> = (0..spaces).map(netns_name).collect();
        let inside = names.iter().map(|name| Conn::inside(host, name)).collect();
        let files = names.iter().map(|name| File::open(host.netns_file(name)).unwrap()).collect();
        Self { own: Conn::inside(host, ""), inside, files }
    }

    /// What was sent so far.
    pub fn sent(&self) -> Sent {
        let all = self.inside.iter().chain([&self.own]);
        all.fold(Sent::default(), |sum, conn| Sent { messages: sum.messages + conn.sent.messages, sends: sum.sends + conn.sent.sends })
    }

    /// Makes pairs, so many at a time.
    pub fn create(&mut self, pairs: &[Pair], wave: usize) {
        for wave in pairs.chunks(wave) {
            for part in wave.chunks(SEND) {
                let mut batch = Batch::default();
                part.iter().for_each(|pair| self.creation(&mut batch, pair));
                self.own.send(batch).unwrap();
            }
            self.each_end(wave, 2, |batch, end, second| {
                let up = if second { IFF_UP } else { 0 };
                batch.add(RTM_SETLINK, 0, &link_header(end.index, up, up), |attributes| {
                    attributes.put(IFLA_IFALIAS, alias(LABEL, "veth", &end.name).as_bytes());
                });
                add_address(batch, end.index, end);
            });
        }
    }

    fn creation(&self, batch: &mut Batch, pair: &Pair) {
        let [a, b] = &pair.ends;
        let link = |attributes: &mut Attributes<'_>, end: &End| {
            attributes.name(IFLA_IFNAME, &end.name);
            attributes.put(IFLA_ADDRESS, &end.mac);
            attributes.number(IFLA_MTU, MTU);
            attributes.number(IFLA_GROUP, GROUP);
            attributes.number(IFLA_NUM_TX_QUEUES, 1);
            attributes.number(IFLA_NUM_RX_QUEUES, 1);
            attributes.number(IFLA_NET_NS_FD, self.files[end.netns].as_raw_fd().cast_unsigned());
        };
        batch.add(RTM_NEWLINK, CREATE, &link_header(a.index, IFF_UP, IFF_UP), |attributes| {
            link(attributes, a);
            attributes.nest(IFLA_LINKINFO, &[], |info| {
                info.put(IFLA_INFO_KIND, b"veth");
                info.nest(IFLA_INFO_DATA, &[], |data| {
                    data.nest(VETH_INFO_PEER, &link_header(b.index, 0, 0), |peer| link(peer, b));
                });
            });
        });
    }

    /// Writes messages for each end (told whether it is a pair's second one), namespace by namespace.
    fn each_end(&mut self, pairs: &[Pair], messages: usize, write: impl Fn(&mut Batch, &End, bool)) {
        let mut places: Vec<Vec<(&End, bool)>> = vec![Vec::new(); self.inside.len()];
        for pair in pairs {
            for (end, second) in pair.ends.iter().zip([false, true]) {
                places[end.netns].push((end, second));
            }
        }
        for (conn, ends) in self.inside.iter_mut().zip(places) {
            for part in ends.chunks(SEND / messages) {
                let mut batch = Batch::default();
                part.iter().for_each(|(end, second)| write(&mut batch, end, *second));
                conn.send(batch).unwrap();
            }
        }
    }

    /// Makes TAPs: on a thread in each namespace, then one send there.
    pub fn create_taps(&mut self, host: &Host, taps: &[End]) {
        for (place, conn) in self.inside.iter_mut().enumerate() {
            let here: Vec<&End> = taps.iter().filter(|tap| tap.netns == place).collect();
            host.inside(&netns_name(place), || here.iter().for_each(|tap| tun::create(&tap.name, tap.index)));
            for part in here.chunks(SEND / 2) {
                let mut batch = Batch::default();
                for tap in part {
                    batch.add(RTM_SETLINK, 0, &link_header(tap.index, IFF_UP, IFF_UP), |attributes| {
                        attributes.put(IFLA_ADDRESS, &tap.mac);
                        attributes.number(IFLA_MTU, MTU);
                        attributes.number(IFLA_GROUP, GROUP);
                        attributes.put(IFLA_IFALIAS, alias(LABEL, "tap", &tap.name).as_bytes());
                    });
                    add_address(&mut batch, tap.index, tap);
                }
                conn.send(batch).unwrap();
            }
        }
    }

    /// Gives all ends another MTU.
    pub fn set_mtu(&mut self, pairs: &[Pair], mtu: u32) {
        self.each_end(pairs, 1, |batch, end, _| {
            batch.add(RTM_SETLINK, 0, &link_header(end.index, 0, 0), |attributes| attributes.number(IFLA_MTU, mtu));
        });
    }

    /// Deletes all that [`Floor::create`] made: one request per namespace.
    pub fn delete_group(&mut self) {
        delete_group(&mut self.inside, GROUP);
    }

    /// Deletes pairs by a request each.
    pub fn delete_each(&mut self, pairs: &[Pair]) {
        for pair in pairs {
            let end = &pair.ends[0];
            let mut batch = Batch::default();
            batch.add(RTM_DELLINK, 0, &link_header(end.index, 0, 0), |_| {});
            self.inside[end.netns].send(batch).unwrap();
        }
    }

    /// Deletes whatever is there, whoever made it.
    pub fn clear(&mut self) {
        for conn in &mut self.inside {
            let mut indexes = Vec::new();
            conn.dump(RTM_GETLINK, &link_header(0, 0, 0), |payload| {
                let index = number(&payload[4..]);
                // Not `lo`.
                indexes.extend((index != 1).then_some(index));
            });
            for part in indexes.chunks(SEND) {
                let mut batch = Batch::default();
                for index in part {
                    batch.add(RTM_SETLINK, 0, &link_header(*index, 0, 0), |attributes| attributes.number(IFLA_GROUP, DOOMED));
                }
                conn.send(batch).unwrap();
            }
        }
        delete_group(&mut self.inside, DOOMED);
    }
}

/// Adds an end's address to the link with this index.
pub fn add_address(batch: &mut Batch, index: u32, end: &End) {
    batch.add(RTM_NEWADDR, CREATE, &address_header(index, PREFIX), |attributes| {
        attributes.put(IFA_LOCAL, &end.ip.octets());
        attributes.put(IFA_ADDRESS, &end.ip.octets());
        attributes.put(IFA_PROTO, &[ORIGIN]);
    });
}

fn delete_group(conns: &mut [Conn], group: u32) {
    let conns: Vec<Mutex<&mut Conn>> = conns.iter_mut().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(conns.len()) {
            scope.spawn(|| {
                while let Some(conn) = conns.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut batch = Batch::default();
                    batch.add(RTM_DELLINK, 0, &link_header(0, 0, 0), |attributes| attributes.number(IFLA_GROUP, group));
                    match conn.lock().unwrap().send(batch) {
                        // None there (any more): the other ends took them along.
                        Ok(()) | Err(Errno::ENODEV) => {}
                        Err(errno) => panic!("deletion by group: {errno}"),
                    }
                }
            });
        }
    });
}
