//! The floor: the same requests to the same kernel, batched in the same way, without an agent around them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vnf_agent::linux::netns_thread::own_cookie;
use vnf_agent::linux::{Done, ExpectedMark, Kernel, KernelOp, LinkChange, LinkEvent, LinkSink, LinuxKernel, NewAddress, NewLink};
use vnf_agent::model::{HostIfName, InterfaceAddress, LinkId, NetnsId};
use vnf_agent::namespace::{NetnsHandle, OpenNetns};

use crate::support::Host;
use crate::support::host::inode;

/// Groups of a label that no agent here has.
const GROUP: u32 = 0x5600_0f10;
const DOOMED: u32 = 0x5700_0f10;

struct ByPath(PathBuf);

impl OpenNetns for ByPath {
    fn open(&self) -> io::Result<OwnedFd> {
        Ok(File::open(&self.0)?.into())
    }
}

struct Deaf;

impl LinkSink for Deaf {
    fn link_event(&self, _: LinkEvent) {}
}

/// One pair: logical names' prefix letters are `a` and `b`.
pub struct Pair<'s> {
    pub n: usize,
    pub places: [&'s str; 2],
}

/// The kernel, with the namespaces of a host attached.
pub struct Floor {
    kernel: LinuxKernel,
    ids: HashMap<String, NetnsId>,
}

impl Floor {
    pub fn new(host: &Host, spaces: &[String]) -> Self {
        let handle = |name: &str| {
            let path = host.netns_file(name);
            let id = host.inside(name, own_cookie).unwrap();
            NetnsHandle { id, inode: inode(&path), own: name.is_empty(), opener: Arc::new(ByPath(path)) }
        };
        let mut kernel = host.inside("", || LinuxKernel::new(handle(""), Arc::new(Deaf)).unwrap());
        let ids = spaces.iter().map(|name| {
            let handle = handle(name);
            kernel.attach(&handle);
            (name.clone(), handle.id)
        });
        let ids = ids.collect();
        Self { kernel, ids }
    }

    fn execute(&mut self, ops: &[KernelOp]) -> Vec<Done> {
        self.kernel.execute(ops).into_iter().map(Result::unwrap).collect()
    }

    /// Makes pairs as the agent does: created, named, up, addressed. Returns their ends.
    pub fn make(&mut self, pairs: &[Pair<'_>]) -> Vec<[LinkId; 2]> {
        let link = |netns: NetnsId, name: String| NewLink { netns, name: HostIfName::new(&name).unwrap(), mac: None, mtu: 1500 };
        let creations: Vec<KernelOp> = pairs
            .iter()
            .map(|pair| {
                let [a, b] = pair.places.map(|place| self.ids[place]);
                let (a, b) = (link(a, format!("a{}", pair.n)), link(b, format!("b{}", pair.n)));
                KernelOp::CreateVeth { a, b, group: GROUP, a_up: true }
            })
            .collect();
        let done = self.execute(&creations);
        let ends: Vec<[LinkId; 2]> = done.into_iter().zip(pairs).map(|(done, pair)| self.ends(done, pair)).collect();
        let mut rest = Vec::with_capacity(4 * pairs.len());
        for (pair, ends) in pairs.iter().zip(&ends) {
            let alias = |end: char| Some(format!("vnf-agent:floor:veth:{end}{}", pair.n));
            rest.push(KernelOp::SetLink { link: ends[0], change: LinkChange { alias: alias('a'), ..LinkChange::default() } });
            rest.push(KernelOp::SetLink {
                link: ends[1],
                change: LinkChange { alias: alias('b'), up: Some(true), ..LinkChange::default() },
            });
            for (last, link) in (1..).zip(ends) {
                let ip = format!("10.{}.{}.{last}", 200 + pair.n / 250, pair.n % 250).parse().unwrap();
                let address = InterfaceAddress::new(ip, 24).unwrap();
                let address = NewAddress { address, proto: 118, nodad: true, restore: None };
                rest.push(KernelOp::AddAddress { link: *link, address });
            }
        }
        self.execute(&rest);
        ends
    }

    fn ends(&self, done: Done, pair: &Pair<'_>) -> [LinkId; 2] {
        let Done::Created { a, b } = done else { panic!("a creation answered {done:?}") };
        let [netns_a, netns_b] = pair.places.map(|place| self.ids[place]);
        [LinkId { netns: netns_a, ifindex: a }, LinkId { netns: netns_b, ifindex: b }]
    }

    /// Reads links one by one.
    pub fn read_back(&mut self, ends: &[LinkId]) {
        ends.iter().for_each(|end| assert!(self.kernel.read_link(*end).unwrap().is_some()));
    }

    /// Reads all namespaces in full.
    pub fn read_all(&mut self) -> usize {
        let ids: Vec<NetnsId> = self.ids.values().copied().collect();
        ids.iter().map(|id| self.kernel.read_netns(*id).unwrap().links.len()).sum()
    }

    /// Sets the MTU of links.
    pub fn set_mtu(&mut self, ends: &[[LinkId; 2]], mtu: u32) {
        let change = LinkChange { mtu: Some(mtu), ..LinkChange::default() };
        let ops: Vec<_> = ends.iter().flatten().map(|link| KernelOp::SetLink { link: *link, change: change.clone() }).collect();
        self.execute(&ops);
    }

    /// Deletes pairs and waits until they are gone.
    pub fn delete(&mut self, ends: &[[LinkId; 2]]) {
        let expected = ExpectedMark { group: GROUP, alias: None };
        let deletion = |[a, _]: &[LinkId; 2]| KernelOp::DeleteLink { link: *a, doomed_group: DOOMED, expected: expected.clone() };
        self.execute(&ends.iter().map(deletion).collect::<Vec<_>>());
        for [a, _] in ends {
            while self.kernel.read_link(*a).unwrap().is_some() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// How long something takes.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}
