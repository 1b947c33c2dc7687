//! A host's NIC with a network behind it, played by a veth and a namespace; and traffic through it that can be counted.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6};

use super::Host;

/// The namespace that plays the network.
pub const NETWORK: &str = "net";
/// MTU of NICs (bytes): not the default, so that a lost one is seen.
pub const MTU: u32 = 1400;
/// How long a connection is tried that is expected to fail.
const GIVE_UP: Duration = Duration::from_secs(1);
/// How long an answer may be under way.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// A NIC, by its own name.
pub struct Nic<'h> {
    host: &'h Host,
    pub name: String,
    /// Which NIC of the host it is: part of its addresses.
    number: u8,
}

impl Host {
    /// Plugs in a NIC: up, with an address of each family, and somebody else on its network. Numbers begin with 0.
    pub fn add_nic(&self, name: &str, number: u8) -> Nic<'_> {
        if !self.has_netns(NETWORK) {
            self.add_netns(NETWORK);
        }
        let nic = Nic { host: self, name: name.to_owned(), number };
        let far = nic.far_end();
        self.run(&format!("ip link add {name} type veth peer name {far} netns {NETWORK}"));
        self.run(&format!("ip link set {name} mtu {MTU} up"));
        let [v4, v6] = nic.addresses();
        self.run(&format!("ip address add {v4}/24 dev {name}"));
        self.run(&format!("ip address add {v6}/64 dev {name} nodad"));
        nic.answer();
        nic
    }

    /// Keeps the host's stack from answering under a NIC that is behind a bridge of the user space datapath. Its device may change its name
    /// afterwards; [`Host::undeafen`] comes before that.
    pub fn deafen(&self, device: &str) {
        let table = format!(
            "table netdev guard-{0} {{\n  chain in {{\n    type filter hook ingress device \"{device}\" priority -500; policy drop;\n  }}\n}}\n",
            device.trim_end_matches('~')
        );
        let file = self.path("guard.nft");
        std::fs::write(&file, table).expect("a file");
        self.run(&format!("nft -f {}", file.display()));
    }

    /// Ends that.
    pub fn undeafen(&self, device: &str) {
        self.run(&format!("nft delete table netdev guard-{}", device.trim_end_matches('~')));
    }
}

impl Nic<'_> {
    /// Sets the other side up, which has nothing yet: that of a NIC that was just plugged in.
    pub fn answer(&self) {
        let (host, far) = (self.host, self.far_end());
        host.run(&format!("ip -n {NETWORK} link set {far} mtu {MTU} up"));
        let [far_v4, far_v6] = self.far_addresses();
        host.run(&format!("ip -n {NETWORK} address add {far_v4}/24 dev {far}"));
        host.run(&format!("ip -n {NETWORK} address add {far_v6}/64 dev {far} nodad"));
        host.inside(NETWORK, || switch_off_checksum_offload(&far));
    }

    fn far_end(&self) -> String {
        format!("p-{}", &self.name[..self.name.len().min(13)])
    }

    /// Lets a router on its network advertise itself and the network of this address, for so many seconds; 0 takes that back.
    pub fn advertise(&self, prefix: Ipv6Addr, seconds: u16) {
        let mut packet = vec![134, 0, 0, 0, 64, 0];
        packet.extend(seconds.to_be_bytes());
        packet.extend([0; 8]);
        // The prefix is on the link, and hosts may make addresses of it.
        packet.extend([3, 4, 64, 0xc0]);
        packet.extend([seconds, seconds].iter().flat_map(|seconds| u32::from(*seconds).to_be_bytes()));
        packet.extend([0; 4]);
        packet.extend(prefix.octets());
        self.host.inside(NETWORK, || send_advertisement(&self.far_end(), &packet));
    }

    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.with_last(2)
    }

    /// The addresses of the other side.
    pub fn far_addresses(&self) -> [IpAddr; 2] {
        self.with_last(1)
    }

    fn with_last(&self, last: u8) -> [IpAddr; 2] {
        let v6 = Ipv6Addr::new(0xfd99, 0x199, 0, u16::from(self.number), 0, 0, 0, u16::from(last));
        [IpAddr::from([10, 199, self.number, last]), v6.into()]
    }

    /// The name that it has behind the bridge.
    pub fn uplink(&self) -> String {
        format!("{}~", self.name)
    }

    /// Moves its addresses by hand from one device to another, which is brought up.
    pub fn move_addresses(&self, from: &str, to: &str) {
        let [v4, v6] = self.addresses();
        self.host.run(&format!("ip link set {to} mtu {MTU} up"));
        self.host.run(&format!("ip address del {v4}/24 dev {from}"));
        self.host.run(&format!("ip address del {v6}/64 dev {from}"));
        self.host.run(&format!("ip address add {v4}/24 dev {to}"));
        self.host.run(&format!("ip address add {v6}/64 dev {to} nodad"));
    }

    /// Everything that [`Nic::passes_all_but`] tries: ping and TCP, in both families, both ways.
    pub fn ways(&self) -> Vec<String> {
        self.attempts().iter().map(|attempt| attempt.name.clone()).collect()
    }

    fn attempts(&self) -> Vec<Attempt> {
        let ways = [("", NETWORK, self.far_addresses(), "out"), (NETWORK, "", self.addresses(), "in")];
        let mut attempts = Vec::new();
        for (from, to, addresses, way) in ways {
            for address in addresses {
                for tcp in [false, true] {
                    let name = format!("{} {way} to {address}", if tcp { "tcp" } else { "ping" });
                    attempts.push(Attempt { name, tcp, from, to, address });
                }
            }
        }
        attempts
    }

    /// Waits until everything passes but these, which are tried once. TCP goes to this port.
    ///
    /// # Panics
    /// When something else does not pass for too long, or one of these does.
    pub fn passes_all_but(&self, port: u16, blocked: &[String]) {
        for attempt in self.attempts() {
            let try_it = || match attempt.tcp {
                true => self.host.tcp(attempt.from, attempt.to, SocketAddr::new(attempt.address, port)),
                false => self.host.pings(attempt.from, &attempt.address.to_string()),
            };
            if blocked.contains(&attempt.name) {
                assert!(!try_it(), "{} passes", attempt.name);
            } else {
                super::eventually(&attempt.name, try_it);
            }
        }
    }
}

struct Attempt {
    name: String,
    tcp: bool,
    from: &'static str,
    to: &'static str,
    address: IpAddr,
}

/// `ETHTOOL_STXCSUM` of 0: a veth leaves checksums to its peer, which the user space datapath does not know.
#[allow(unsafe_code, reason = "no crate of ours has this ioctl, and ethtool(8) may be missing")]
fn switch_off_checksum_offload(device: &str) {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut value = [ETHTOOL_STXCSUM, 0];
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: the descriptor is open; the request and the two words that it points to live beyond the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    assert_eq!(result, 0, "switch off the checksums of {device}: {}", std::io::Error::last_os_error());
}

/// To all hosts on a device's network; hosts believe only what no router has forwarded.
#[allow(unsafe_code, reason = "no crate of ours sets this option")]
fn send_advertisement(device: &str, packet: &[u8]) {
    let socket = nix::sys::socket::socket(AddressFamily::Inet6, SockType::Raw, SockFlag::empty(), SockProtocol::IcmpV6).expect("a socket");
    let hops: libc::c_int = 255;
    let size = libc::socklen_t::try_from(size_of_val(&hops)).expect("it is small");
    // SAFETY: the descriptor is open, and the option is an integer of this size that lives beyond the call.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, (&raw const hops).cast(), size) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let index = nix::net::if_::if_nametoindex(device).expect("the device");
    let all = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, index);
    nix::sys::socket::sendto(socket.as_raw_fd(), packet, &SockaddrIn6::from(all), MsgFlags::empty()).expect("it is sent");
}

impl Host {
    /// Whether TCP works from one namespace to an address of another: the connection, and more bytes than fit one segment there and back.
    pub fn tcp(&self, from: &str, to: &str, address: SocketAddr) -> bool {
        let listener = self.inside(to, || TcpListener::bind(address)).expect("the address is there and its port is free");
        let server = std::thread::spawn(move || {
            // Woken by a connection: at the latest by the one that ends the test.
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut bytes = Vec::new();
            let _ = stream.set_read_timeout(Some(UNDER_WAY));
            if stream.read_to_end(&mut bytes).is_ok() {
                let _ = stream.write_all(&bytes);
            }
        });
        let sent: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let works = self.inside(from, || {
            let mut stream = TcpStream::connect_timeout(&address, GIVE_UP).ok()?;
            stream.set_read_timeout(Some(UNDER_WAY)).ok()?;
            stream.write_all(&sent).ok()?;
            stream.shutdown(Shutdown::Write).ok()?;
            let mut back = Vec::new();
            stream.read_to_end(&mut back).ok()?;
            Some(back == sent)
        });
        if works.is_none() {
            // The server's own namespace reaches it in any case.
            let _ = self.inside(to, || TcpStream::connect_timeout(&address, GIVE_UP));
        }
        let _ = server.join();
        works == Some(true)
    }
}

/// What became of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Probes that left, or should have.
    pub sent: usize,
    /// Those that were never answered.
    pub lost: usize,
    /// Answers beyond the first one of a probe.
    pub duplicates: usize,
    /// Most probes in a row that were never answered: times the interval, the longest outage.
    pub longest: usize,
}

/// UDP probes that run until they are asked what became of them.
pub struct Probes {
    stop: Arc<AtomicBool>,
    echo_stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    sender: JoinHandle<Loss>,
    echo: JoinHandle<()>,
}

impl Probes {
    /// Every 2 ms: short enough to see the outage of a single step, long enough for a busy machine.
    const INTERVAL: Duration = Duration::from_millis(2);

    /// Sends probes from one namespace to an address of another.
    pub fn start(host: &Host, from: &str, to: &str, address: SocketAddr) -> Self {
        let (stop, echo_stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let answered = Arc::new(AtomicUsize::new(0));
        // Not bound to the address: it may move to another device meanwhile.
        let any =
            SocketAddr::new(if address.is_ipv4() { IpAddr::from([0, 0, 0, 0]) } else { Ipv6Addr::UNSPECIFIED.into() }, address.port());
        let server = host.inside(to, || UdpSocket::bind(any)).expect("the port is free");
        let client = host.inside(from, || UdpSocket::bind(SocketAddr::new(any.ip(), 0))).expect("a free port");
        let echo_stopped = Arc::clone(&echo_stop);
        let echo = std::thread::spawn(move || echo(&server, &echo_stopped));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let sender = std::thread::spawn(move || send(&client, address, &stopped, &count));
        Self { stop, echo_stop, answered, sender, echo }
    }

    /// Waits until some more of them are answered: traffic flows.
    pub fn wait_for_some(&self) {
        let before = self.answered.load(Ordering::SeqCst);
        super::eventually("probes are answered", || self.answered.load(Ordering::SeqCst) >= before + 50);
    }

    /// Ends them; what became of all.
    pub fn end(self) -> Loss {
        self.stop.store(true, Ordering::SeqCst);
        let loss = self.sender.join().expect("no panic among the probes");
        self.echo_stop.store(true, Ordering::SeqCst);
        self.echo.join().expect("no panic in the echo");
        loss
    }
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let mut buffer = [0; 8];
    while !stop.load(Ordering::SeqCst) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

fn send(socket: &UdpSocket, address: SocketAddr, stop: &AtomicBool, count: &AtomicUsize) -> Loss {
    let (mut answered, mut duplicates, mut sent) = (HashSet::new(), 0, 0_u64);
    let mut listen = |until: Instant, enough: &dyn Fn(usize) -> bool| {
        let mut buffer = [0; 8];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || enough(answered.len()) {
                return;
            }
            socket.set_read_timeout(Some(left)).expect("a timeout");
            if let Ok((8, _)) = socket.recv_from(&mut buffer) {
                if answered.insert(u64::from_be_bytes(buffer)) {
                    count.fetch_add(1, Ordering::SeqCst);
                } else {
                    duplicates += 1;
                }
            }
        }
    };
    while !stop.load(Ordering::SeqCst) {
        // One that cannot be sent counts as lost: there was no way to go.
        let _ = socket.send_to(&sent.to_be_bytes(), address);
        sent += 1;
        listen(Instant::now() + Probes::INTERVAL, &|_| false);
    }
    let all = usize::try_from(sent).expect("not so many");
    listen(Instant::now() + UNDER_WAY, &|answered| answered == all);
    let (mut longest, mut row) = (0, 0);
    for number in 0..sent {
        row = if answered.contains(&number) { 0 } else { row + 1 };
        longest = longest.max(row);
    }
    Loss { sent: all, lost: all - answered.len(), duplicates, longest }
}
