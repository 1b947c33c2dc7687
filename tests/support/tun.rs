//! Programs that make or open TUN/TAPs, as VPP, QEMU and `openvpn` do: here it is the test that holds the descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::libc;

use super::Host;

nix::ioctl_write_ptr_bad!(set_iff, nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()), libc::ifreq);
nix::ioctl_write_int_bad!(set_persist, nix::request_code_write!(b'T', 203, size_of::<libc::c_int>()));

/// Flags for [`Host::open_tap`].
pub const TAP: i32 = libc::IFF_TAP;
pub const TUN: i32 = libc::IFF_TUN;
pub const NO_PI: i32 = libc::IFF_NO_PI;
pub const MULTI_QUEUE: i32 = libc::IFF_MULTI_QUEUE;
pub const VNET_HDR: i32 = libc::IFF_VNET_HDR;

/// A descriptor of a TAP. The TAP goes with the last one unless it is persistent.
pub struct Tap(File);

impl Host {
    /// Makes a TAP in a namespace, or opens the one that is there; the errno where the kernel refuses.
    pub fn try_open_tap(&self, netns: &str, name: &str, flags: i32) -> io::Result<Tap> {
        self.inside(netns, || {
            let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
            let mut text = [0; libc::IFNAMSIZ];
            text.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = libc::c_char::from_ne_bytes([from]));
            let ifru_flags = i16::try_from(flags).expect("flags of 15 bits");
            let request = libc::ifreq { ifr_name: text, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags } };
            #[allow(unsafe_code, reason = "no crate wraps it")]
            // SAFETY: the file is open; the kernel reads and writes one `ifreq` on this stack frame.
            unsafe { set_iff(file.as_raw_fd(), &raw const request) }?;
            Ok(Tap(file))
        })
    }

    /// The same, of which no refusal is expected.
    pub fn open_tap(&self, netns: &str, name: &str, flags: i32) -> Tap {
        self.try_open_tap(netns, name, flags).unwrap_or_else(|error| panic!("{name} in `{netns}` cannot be opened: {error}"))
    }
}

impl Tap {
    /// Whether its link is gone, with the namespace that it was in, say.
    pub fn is_gone(&self) -> bool {
        // No frame is that short: nothing is sent.
        (&self.0).write(&[0]).is_err_and(|error| error.raw_os_error() == Some(libc::EBADFD))
    }

    /// It survives its last descriptor, or no longer.
    pub fn set_persistent(&self, persistent: bool) {
        #[allow(unsafe_code, reason = "no crate wraps it")]
        // SAFETY: the file is open; the request takes a number by value.
        unsafe { set_persist(self.0.as_raw_fd(), persistent.into()) }.expect("the kernel takes it");
    }

    /// Waits for a frame that begins, after 14 bytes of Ethernet header, with these bytes anywhere in it.
    pub fn receives(&mut self, wanted: &[u8]) -> bool {
        self.receives_within(super::PATIENCE, wanted)
    }

    fn receives_within(&mut self, limit: Duration, wanted: &[u8]) -> bool {
        let end = Instant::now() + limit;
        let mut frame = [0; 2048];
        while Instant::now() < end {
            match self.0.read(&mut frame) {
                Ok(length) if frame[..length].windows(wanted.len()).any(|part| part == wanted) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("the TAP cannot be read: {error}"),
            }
        }
        false
    }

    /// Sends a frame towards the host.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.write_all(frame)
    }
}

/// Whether datagrams that are sent to an address of the TAP's subnet in this namespace come out at the descriptor. The neighbour is made known
/// beforehand, since nobody answers for it. They are sent again and again: the kernel drops what is sent before it has seen that the TAP was opened.
pub fn passes(host: &Host, netns: &str, link: &str, neighbour: &str, tap: &mut Tap) -> bool {
    let neigh = ["neigh", "replace", neighbour, "lladdr", "02:00:00:00:00:99", "dev", link];
    let text = format!("to {neighbour} by {link}");
    let end = Instant::now() + super::PATIENCE;
    while Instant::now() < end {
        let status = host.command(netns, "ip").args(neigh).status().expect("nsenter starts");
        assert!(status.success(), "{neigh:?} in `{netns}`");
        host.inside(netns, || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.send_to(text.as_bytes(), (neighbour, 9)).expect("the datagram is sent");
        });
        if tap.receives_within(Duration::from_millis(500), text.as_bytes()) {
            return true;
        }
    }
    false
}
