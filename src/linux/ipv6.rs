//! The switch of IPv6 on one link, which netlink does not offer.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::linux::netns_thread::in_netns;
use crate::linux::socket::Failure;
use crate::model::IfIndex;

/// Switches IPv6 on for links of a namespace, given by index and present name; the n-th answer belongs to the n-th link.
///
/// # Errors
/// When the namespace cannot be entered. Per link: `ENODEV` when the name is another link's by now, `ENOENT` where the kernel has no IPv6 for
/// it (also below an MTU of 1280), `EROFS` where `/proc/sys` is read-only.
pub(super) fn enable(netns: BorrowedFd<'_>, links: &[(IfIndex, &str)]) -> io::Result<Vec<Result<(), Failure>>> {
    in_netns(netns, || Ok(links.iter().map(|(ifindex, name)| enable_one(*ifindex, name)).collect()))
}

fn enable_one(ifindex: IfIndex, name: &str) -> Result<(), Failure> {
    // No link is called so, and the folder of these names holds other links' settings.
    if name.contains('/') || matches!(name, "" | "." | ".." | "all" | "default") {
        return Err(Failure::new(Errno::ENODEV, "no link has this name"));
    }
    // A path, since a name with a dot cannot be written in the dotted form.
    let mut file: File = OpenOptions::new().write(true).open(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"))?;
    // Opened first, compared second: a rename after the opening unregisters the file, and the writing fails.
    if if_nametoindex(name).map_err(io::Error::from)? != ifindex.get() {
        return Err(Failure::new(Errno::ENODEV, "another link has this name by now"));
    }
    Ok(file.write_all(b"0\n")?)
}
