//! Renaming a NIC without losing anything of it.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, Prop};
use nix::errno::Errno;
use rtnetlink::LinkUnspec;

use crate::linux::LinkChange;
use crate::linux::batch::Request;
use crate::linux::nic::{NicKernel, sysctl, write};
use crate::linux::socket::Failure;
use crate::linux::{KernelError, encode};
use crate::model::HostIfName;
use crate::model::nic::{NicConfig, NicLink};

/// How a link was renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// While it was up: nothing was lost.
    Live,
    /// It was down for a moment, and was given back what it lost.
    Down,
}

/// Renames a link; where that needs it to be down, it comes up again in every case and gets back the `wish`. An alternative name equal to the old
/// one, as udev leaves it behind, is removed: it would keep the port from taking that name.
pub(super) fn rename(kernel: &mut NicKernel, link: &NicLink, to: &str, wish: &NicConfig, live: bool) -> Result<Renaming, KernelError> {
    let attempted = || format!("rename {} to {to}", link.name);
    let name = HostIfName::new(to).map_err(|why| Failure::new(Errno::EINVAL, why.to_string()).attempting(attempted()))?;
    let how = if live { set_name(kernel, link, &name) } else { Err(Failure::new(Errno::EBUSY, "")) };
    let how = match how {
        Ok(()) => Renaming::Live,
        Err(failure) if failure.is(Errno::EBUSY) => {
            down_and_up(kernel, link, &name, wish)?;
            Renaming::Down
        }
        Err(failure) => return Err(failure.attempting(attempted())),
    };
    free_name(kernel, link).map_err(|failure| failure.attempting(format!("remove the alternative name {}", link.name)))?;
    Ok(how)
}

/// Ends that a link takes everybody's frames: a switch in user space that is killed leaves it so.
pub(super) fn end_promiscuity(kernel: &mut NicKernel, link: &NicLink) -> Result<(), Failure> {
    let message = LinkUnspec::new_with_index(NicKernel::index(link)?.get()).promiscuous(false).build();
    write::perform(kernel, Request::write(RouteNetlinkMessage::SetLink(message), 0))
}

/// Takes a link out of the bridge or bond whose port it is.
pub(super) fn release(kernel: &mut NicKernel, link: &NicLink) -> Result<(), Failure> {
    let message = LinkUnspec::new_with_index(NicKernel::index(link)?.get()).nocontroller().build();
    write::perform(kernel, Request::write(RouteNetlinkMessage::SetLink(message), 0))
}

fn down_and_up(kernel: &mut NicKernel, link: &NicLink, name: &HostIfName, wish: &NicConfig) -> Result<(), KernelError> {
    let attempted = format!("rename {} to {name} while it is down", link.name);
    write::set_link(kernel, link, None, Some(false)).map_err(|failure| failure.attempting(attempted.clone()))?;
    let named = set_name(kernel, link, name);
    // A link-local of the kernel's own would be tried on the network first, and be of no use until then.
    let _refused_without_ipv6 = sysctl::write(kernel, if named.is_ok() { name.as_str() } else { &link.name }, &[sysctl::no_link_local()]);
    let up = write::set_link(kernel, link, None, Some(true));
    let now = if named.is_ok() { NicLink { name: name.to_string(), ..link.clone() } } else { link.clone() };
    let back = kernel.put(wish, &now, false);
    named.and(up).map_err(|failure| failure.attempting(attempted))?;
    back
}

fn set_name(kernel: &mut NicKernel, link: &NicLink, name: &HostIfName) -> Result<(), Failure> {
    let change = LinkChange { name: Some(name.clone()), ..LinkChange::default() };
    let Some(request) = encode::set_link(NicKernel::index(link)?, &change) else { return Ok(()) };
    write::perform(kernel, request)
}

/// Removes the link's old name from its alternative ones.
fn free_name(kernel: &mut NicKernel, link: &NicLink) -> Result<(), Failure> {
    let index = NicKernel::index(link)?;
    let now = super::links::all(kernel.socket()?)?;
    if !now.iter().any(|found| found.ifindex == link.ifindex && found.altnames.contains(&link.name)) {
        return Ok(());
    }
    let names = LinkAttribute::PropList(vec![Prop::AltIfName(link.name.clone())]);
    let message = LinkUnspec::new_with_index(index.get()).append_extra_attribute(names).build();
    write::perform(kernel, Request::write(RouteNetlinkMessage::DelLinkProp(message), 0))
}
