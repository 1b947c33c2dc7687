//! The kernel: one narrow trait, its real implementation on rtnetlink, and a fake that refuses what the kernel refuses.
//!
//! Nothing here chooses, orders or retries. Operations carry everything that they need; each is answered on its own, so that one that
//! fails never hides or stops another.

mod batch;
mod counters;
mod decode;
mod describe;
mod encode;
mod indexes;
mod ipv6;
mod kernel;
mod monitor;
pub mod netns_thread;
pub mod nic;
mod nsids;
mod read;
mod reaper;
mod schedule;
mod socket;
mod sockets;
mod sys;
mod tap;

use std::fmt;

pub use kernel::LinuxKernel;

pub use crate::model::{ExpectedMark, LinkChange, NewAddress, NewLink, NewTap, RestoredAddress};
use crate::model::{IfIndex, InterfaceAddress, LinkId, NetnsId, ObservedLink};
use crate::namespace::NetnsHandle;

pub mod fake;

/// One request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelOp {
    /// Make a veth pair in place, both ends marked with `group`; `a` is up from the start where `a_up`. (The kernel refuses that for `b`.)
    CreateVeth {
        /// The first end.
        a: NewLink,
        /// The second end.
        b: NewLink,
        /// Link group of both.
        group: u32,
        /// Whether the first end is up at once.
        a_up: bool,
    },
    /// Make a TUN/TAP inside its namespace: complete, marked, then persistent. All or nothing: what fails, or is interrupted by our end, leaves no link.
    CreateTap(NewTap),
    /// Change a link.
    SetLink {
        /// Which.
        link: LinkId,
        /// What.
        change: LinkChange,
    },
    /// Move a link to another namespace and change it there, in one request: it gets its name, goes down, loses its addresses, and then gets the other
    /// settings. When one of these is refused, it may have been moved all the same, under the name that it had.
    MoveLink {
        /// Which.
        link: LinkId,
        /// Where to.
        to: NetnsId,
        /// What it gets there, its name among it.
        change: LinkChange,
        /// The alias that it has then; by name and alias it is found again.
        alias: Option<Box<str>>,
    },
    /// Switch IPv6 on for one link (`net.ipv6.conf.<name>.disable_ipv6 = 0`).
    EnableIpv6 {
        /// Which.
        link: LinkId,
        /// Its name at the moment.
        name: Box<str>,
    },
    /// Add an address, or renew the attributes of the one that is there.
    AddAddress {
        /// On which link.
        link: LinkId,
        /// What.
        address: NewAddress,
    },
    /// Remove an address.
    RemoveAddress {
        /// From which link.
        link: LinkId,
        /// Which.
        address: InterfaceAddress,
    },
    /// Delete a link (of a pair: both ends) by marking it with `doomed_group` and handing it to the reaper. Done means handed over; the end
    /// is told by a [`LinkEvent`]. The link is read again right before: it must still be `expected_mark`ed, else `ESTALE`.
    DeleteLink {
        /// Which.
        link: LinkId,
        /// Group of links that are being deleted.
        doomed_group: u32,
        /// One of our marks as it was seen: the group or the alias that the link must still carry.
        expected: ExpectedMark,
    },
}

/// What a request that succeeded did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was done.
    Ok,
    /// It was so already, or what should go was gone already.
    AlreadySo,
    /// A pair was made; these are its ends.
    Created {
        /// Index of the first end.
        a: IfIndex,
        /// Index of the second end.
        b: IfIndex,
    },
    /// A TAP was made, with this index.
    CreatedTap(IfIndex),
    /// A link was moved and has this index where it is now.
    Moved(IfIndex),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The error number (positive), as in `errno.h`.
    pub errno: i32,
    /// The kernel's own words (extended acknowledgement), often empty.
    pub text: String,
    /// What was attempted, on what: `create veth a@4026532301 / b@4026532302`.
    pub attempted: String,
}

impl KernelError {
    /// The errno's name, as in `EEXIST`.
    #[must_use]
    pub fn errno_name(&self) -> String {
        format!("{:?}", nix::errno::Errno::from_raw(self.errno))
    }

    /// Whether the errno is this one.
    #[must_use]
    pub fn is(&self, errno: nix::errno::Errno) -> bool {
        self.errno == errno as i32
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempted, self.errno_name())?;
        if self.text.is_empty() { Ok(()) } else { write!(f, " ({})", self.text.escape_debug()) }
    }
}

impl std::error::Error for KernelError {}

/// A whole namespace as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetnsReading {
    /// Its links with their addresses.
    pub links: Vec<ObservedLink>,
    /// False when the listing was interrupted by changes, again and again: what is missing in it may well be there.
    pub complete: bool,
}

/// Counters of the kernel's work; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Requests that modify something (links, addresses, sysctls, deletions).
    pub writes: u64,
    /// Requests that read.
    pub reads: u64,
    /// Calls of `send`.
    pub sends: u64,
    /// Links moved between namespaces.
    pub moves: u64,
}

/// The kernel as the configurator uses it. Calls block for as long as the kernel works (well under a millisecond each, by deadline 5 s).
pub trait Kernel: Send {
    /// Makes a namespace known. Nothing is opened yet.
    fn attach(&mut self, netns: &NetnsHandle);
    /// Forgets a namespace and closes everything inside of it at once.
    fn detach(&mut self, netns: NetnsId);
    /// Reads all links and addresses of a namespace.
    ///
    /// # Errors
    /// `ENOENT`/`ESRCH`/`ESTALE` when the namespace is gone or is another one now; else what the kernel says.
    fn read_netns(&mut self, netns: NetnsId) -> Result<NetnsReading, KernelError>;
    /// Reads one link with its addresses; `None` when there is none of this index.
    ///
    /// # Errors
    /// As [`Kernel::read_netns`].
    fn read_link(&mut self, link: LinkId) -> Result<Option<ObservedLink>, KernelError>;
    /// Reads some links of one namespace as [`Kernel::read_link`] does; the n-th answer belongs to the n-th index.
    fn read_links(&mut self, netns: NetnsId, links: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, KernelError>> {
        links.iter().map(|ifindex| self.read_link(LinkId { netns, ifindex: *ifindex })).collect()
    }
    /// Reads some links of one namespace without their addresses; the n-th answer belongs to the n-th index. All of them take one send.
    ///
    /// Whoever asks for a link singly also makes the kernel finish what its link watch has still to do about it (since Linux 6.8): a carrier that has come
    /// counts from then on. A listing does not.
    fn read_settings(&mut self, netns: NetnsId, links: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, KernelError>>;
    /// Performs all operations; the n-th answer belongs to the n-th operation. Within one namespace they run in the given order, but moves come last,
    /// one after another: each holds the kernel's lock for some 20 ms.
    fn execute(&mut self, ops: &[KernelOp]) -> Vec<Result<Done, KernelError>>;
    /// For now that was all: deletions, which stand back while something is made, go on, and what was not used for a while is closed, so that it keeps no
    /// namespace alive.
    fn rest(&mut self);
    /// What was done so far.
    fn counters(&self) -> KernelCounters;
}

/// A change that the kernel told of. A hint to look again: by the time it is read, more may have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A link is there with these attributes (its `addresses` are not filled in).
    Link(NetnsId, Box<ObservedLink>),
    /// A link is gone.
    LinkGone(LinkId),
    /// An address appeared or changed on a link.
    Address(LinkId, crate::model::ObservedAddress),
    /// An address is gone from a link.
    AddressGone(LinkId, InterfaceAddress),
    /// The last holder of a namespace has let go of it: it does not exist any more.
    NetnsGone(NetnsId),
    /// Events were lost in this namespace, or in all of them: look at everything again.
    Lost(Option<NetnsId>),
    /// The reaper gave up on a link.
    ReapFailed(LinkId, KernelError),
}

/// Takes the kernel's events. Implemented by the configurator's inbox.
pub trait LinkSink: Send + Sync + 'static {
    /// Hands over one event; never waits.
    fn link_event(&self, event: LinkEvent);
}
