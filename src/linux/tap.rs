//! TUN/TAPs, which the kernel makes only through `/dev/net/tun`.
//!
//! A TAP is born in the namespace that is current when the device is opened, and lives as long as the descriptor unless it is made persistent.
//! So it gets its marks and settings first and is made persistent last: if we end in between, the kernel takes it away with the descriptor, and
//! nothing without a mark is left.
#![allow(unsafe_code, reason = "no crate wraps these four ioctls; each is called in one place")]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;

use crate::linux::netns_thread::in_netns;
use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::{LinkChange, NewTap, encode};
use crate::model::interface::MTU_DEFAULT;
use crate::model::{IfIndex, TapMode};

const DEVICE: &str = "/dev/net/tun";
/// `linux/if_tun.h`: refuse a name that a TAP has already, instead of opening that one.
const IFF_TUN_EXCL: libc::c_int = 0x8000;
/// Our descriptor gives it no carrier (since Linux 6.1; older kernels do not look at this bit): nobody is there to read. Else IPv6 began on it, with link-local and duplicate address
/// detection, for the moment until we close it.
const IFF_NO_CARRIER: libc::c_int = 0x0040;

nix::ioctl_write_ptr_bad!(tun_set_iff, nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()), libc::ifreq);
nix::ioctl_write_int_bad!(tun_set_persist, nix::request_code_write!(b'T', 203, size_of::<libc::c_int>()));
nix::ioctl_write_int_bad!(tun_set_owner, nix::request_code_write!(b'T', 204, size_of::<libc::c_int>()));
nix::ioctl_write_int_bad!(tun_set_group, nix::request_code_write!(b'T', 206, size_of::<libc::c_int>()));

/// A TAP that goes when this is dropped.
struct Opened {
    file: File,
    ifindex: IfIndex,
}

/// Makes TAPs in the socket's namespace; the n-th answer belongs to the n-th of them. One visit of the namespace and one send for all.
pub(super) fn create(socket: &mut RouteSocket, new: &[&NewTap]) -> Vec<Result<IfIndex, Failure>> {
    let visit = socket.netns_file().and_then(|netns| in_netns(netns.as_fd(), || Ok(new.iter().map(|new| open(new)).collect::<Vec<_>>())));
    let mut opened = match visit {
        Ok(opened) => opened,
        Err(error) => {
            let failure = Failure::from(error);
            return new.iter().map(|_| Err(failure.clone())).collect();
        }
    };
    let (mut requests, mut places) = (Vec::with_capacity(new.len()), Vec::with_capacity(new.len()));
    for (place, (new, opened)) in new.iter().zip(&opened).enumerate() {
        if let Ok(opened) = opened {
            requests.extend(encode::set_link(opened.ifindex, &settings(new)));
            places.push(place);
        }
    }
    for (place, answer) in places.into_iter().zip(socket.perform(&requests, |_, _, _| {})) {
        if let Err(failure) = answer {
            opened[place] = Err(failure);
        }
    }
    opened.into_iter().map(|opened| opened.and_then(Opened::keep)).collect()
}

/// Everything that the kernel takes in one request, the marks among it.
fn settings(new: &NewTap) -> LinkChange {
    LinkChange {
        name: None,
        mac: new.link.mac,
        mtu: (new.link.mtu != MTU_DEFAULT).then_some(new.link.mtu),
        up: new.up.then_some(true),
        group: Some(new.group),
        alias: Some(new.alias.clone()),
    }
}

/// Makes one TAP in the calling thread's namespace.
fn open(new: &NewTap) -> Result<Opened, Failure> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(no_device)?;
    set_iff(&file, new)?;
    for (id, set) in [(new.tap.owner, tun_set_owner as Setter), (new.tap.group, tun_set_group as Setter)] {
        if let Some(id) = id {
            set_number(&file, set, id.cast_signed())?;
        }
    }
    // Nobody but us knows the link yet, so the name is still its own.
    let index = if_nametoindex(new.link.name.as_str()).map_err(failure)?;
    let ifindex = IfIndex::new(index).ok_or_else(|| Failure::new(Errno::ENODEV, "the new link is not there"))?;
    Ok(Opened { file, ifindex })
}

impl Opened {
    /// From here on it lives without us.
    fn keep(self) -> Result<IfIndex, Failure> {
        set_number(&self.file, tun_set_persist, 1)?;
        Ok(self.ifindex)
    }
}

fn set_iff(file: &File, new: &NewTap) -> Result<(), Failure> {
    let mode = match new.tap.mode {
        TapMode::Tap => libc::IFF_TAP,
        TapMode::Tun => libc::IFF_TUN,
    };
    let flag = |wished: bool, flag: libc::c_int| if wished { flag } else { 0 };
    let flags = mode
        | libc::IFF_NO_PI
        | IFF_TUN_EXCL
        | IFF_NO_CARRIER
        | flag(new.tap.multi_queue, libc::IFF_MULTI_QUEUE)
        | flag(new.tap.vnet_hdr, libc::IFF_VNET_HDR);
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(new.link.name.as_str().bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // The flags are the low half of an `int`, as bits.
    let flags = i16::from_ne_bytes(u16::try_from(flags).unwrap_or_default().to_ne_bytes());
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: the file is open; the kernel reads and writes one `ifreq`, which lives on this stack frame.
    let result = unsafe { tun_set_iff(file.as_raw_fd(), &raw const request) };
    match result {
        Ok(_) => Ok(()),
        // So it says of a name that any link has, by its own or an alternative name.
        Err(Errno::EBUSY) => Err(Failure::new(Errno::EBUSY, "another link has this name")),
        Err(errno) => Err(failure(errno)),
    }
}

type Setter = unsafe fn(libc::c_int, libc::c_int) -> nix::Result<libc::c_int>;

fn set_number(file: &File, set: Setter, number: i32) -> Result<(), Failure> {
    // SAFETY: the file is open; these requests take a number by value and touch no memory of ours.
    let result = unsafe { set(file.as_raw_fd(), number) };
    result.map(drop).map_err(failure)
}

fn failure(errno: Errno) -> Failure {
    Failure::new(errno, "")
}

/// Not the errno of the opening: one that says "not there" would be taken for a namespace or a link that is gone.
fn no_device(error: std::io::Error) -> Failure {
    let cause = error.raw_os_error().map_or_else(|| error.to_string(), |errno| format!("{:?}", Errno::from_raw(errno)));
    Failure::new(Errno::EOPNOTSUPP, format!("{DEVICE} cannot be opened: {cause}; load the module `tun`, or give the agent the device"))
}
