//! Two attached namespaces, short ways to act in them, and a record of the events.

use super::*;

/// The error of a test's call: enough to compare.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Refused {
    pub fn errno(&self) -> Errno {
        Errno::from_raw(self.0)
    }
}

#[derive(Default)]
struct Record(Mutex<Vec<LinkEvent>>);

impl LinkSink for Record {
    fn link_event(&self, event: LinkEvent) {
        self.0.lock().unwrap().push(event);
    }
}

pub struct World {
    pub world: FakeWorld,
    pub kernel: Mutex<FakeKernel>,
    pub a: NetnsId,
    pub b: NetnsId,
    record: Arc<Record>,
}

impl World {
    pub fn new() -> Self {
        Self::with(NetnsSettings::default())
    }

    pub fn with(settings: NetnsSettings) -> Self {
        let world = FakeWorld::new();
        let (a, b) = (world.add_netns(settings), world.add_netns(settings));
        let record = Arc::new(Record::default());
        world.set_sink(record.clone());
        let mut kernel = world.kernel();
        kernel.attach(&world.handle(a));
        kernel.attach(&world.handle(b));
        Self { world, kernel: Mutex::new(kernel), a, b, record }
    }

    /// The events since the last call.
    pub fn events(&self) -> Vec<LinkEvent> {
        std::mem::take(&mut *self.record.0.lock().unwrap())
    }

    pub fn run(&self, op: &KernelOp) -> Result<Done, KernelError> {
        self.kernel.lock().unwrap().execute(std::slice::from_ref(op)).remove(0)
    }

    pub fn errno(&self, op: &KernelOp) -> Option<Errno> {
        self.run(op).err().map(|e| Errno::from_raw(e.errno))
    }

    /// Makes a pair in group 1; its indexes.
    pub fn create(&self, a: (&str, NetnsId), b: (&str, NetnsId)) -> Result<(u32, u32), Refused> {
        match self.run(&KernelOp::CreateVeth { a: end(a.0, a.1), b: end(b.0, b.1), group: 1, a_up: false }) {
            Ok(Done::Created { a, b }) => Ok((a.get(), b.get())),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(Refused(error.errno)),
        }
    }

    /// A pair with both ends up, `a0` in a and `b0` in b.
    pub fn up_pair(&self) -> (LinkId, LinkId) {
        self.create(("a0", self.a), ("b0", self.b)).unwrap();
        let (a, b) = (self.id(self.a, "a0"), self.id(self.b, "b0"));
        self.world.set_up(a, true).unwrap();
        self.world.set_up(b, true).unwrap();
        (a, b)
    }

    pub fn link(&self, netns: NetnsId, name: &str) -> ObservedLink {
        self.world.link(netns, name).unwrap()
    }

    pub fn id(&self, netns: NetnsId, name: &str) -> LinkId {
        self.world.link_id(netns, name).unwrap()
    }

    /// Changes a link of namespace a, as the agent.
    pub fn set(&self, name: &str, change: LinkChange) -> Result<Done, Refused> {
        let link = self.id(self.a, name);
        self.run(&KernelOp::SetLink { link, change }).map_err(|e| Refused(e.errno))
    }

    /// Adds an address as the agent does, with protocol 118.
    pub fn add(&self, link: LinkId, text: &str) -> Result<Done, Refused> {
        let address = NewAddress { address: addr(text), proto: 118, nodad: true, restore: None };
        self.run(&KernelOp::AddAddress { link, address }).map_err(|e| Refused(e.errno))
    }

    pub fn remove(&self, link: LinkId, text: &str) -> Result<Done, Refused> {
        self.run(&KernelOp::RemoveAddress { link, address: addr(text) }).map_err(|e| Refused(e.errno))
    }

    /// The addresses of `a0`, with what is special: secondary, tentative, the kernel's own.
    pub fn addresses(&self) -> Vec<String> {
        let mark = |on: bool, word: &str| if on { format!(" {word}") } else { String::new() };
        let text = |a: &crate::model::ObservedAddress| {
            let kernel = if a.kernel_made { "kernel".to_owned() } else { a.address.to_string() };
            let dad = mark(a.tentative, "tentative") + &mark(a.dad_failed, "failed");
            kernel + &mark(a.secondary, "secondary") + &dad
        };
        self.link(self.a, "a0").addresses.iter().map(text).collect()
    }
}

pub fn addr(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

pub fn end(name: &str, netns: NetnsId) -> NewLink {
    NewLink { netns, name: host_name(name), mac: None, mtu: 1500 }
}

pub fn host_name(name: &str) -> HostIfName {
    HostIfName::new(name).unwrap()
}
