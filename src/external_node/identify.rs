//! Which link is the NIC and which is the bridge's port, and how they stand: pure.

use crate::external_node::journal::Journal;
use crate::model::nic::NicLink;

/// `IFF_LOWER_UP`: an internal port of the user-space datapath has none while nobody serves it.
const IFF_LOWER_UP: u32 = 0x1_0000;

/// The NIC: by its index in the boot that the journal speaks of, else by its hardware address; without a journal by its own name.
pub(super) fn find_nic<'a>(
    links: &'a [NicLink],
    name: &str,
    uplink: &str,
    journal: Option<&Journal>,
    boot_id: &str,
) -> Option<&'a NicLink> {
    let is_ports = |link: &NicLink| is_internal(link);
    let Some(journal) = journal else {
        let by_name = |wanted: &str| links.iter().find(|link| link.name == wanted && !is_ports(link));
        return by_name(name).or_else(|| by_name(uplink));
    };
    if journal.boot_id == boot_id {
        return links.iter().find(|link| link.ifindex == journal.nic.ifindex && link.kind == journal.nic.kind);
    }
    let same = |link: &&NicLink| link.mac == journal.nic.mac && link.kind == journal.nic.kind && !is_ports(link);
    links.iter().filter(same).find(|link| link.name == name || link.name == uplink).or_else(|| links.iter().find(same))
}

/// Whether the uplink is up, and both links have the host's MTU.
pub(super) fn links_fit(journal: &Journal, nic: Option<&NicLink>, port: Option<&NicLink>) -> bool {
    let mtu = |link: Option<&NicLink>| link.is_none_or(|link| link.mtu == journal.config.link.mtu);
    nic.is_none_or(|nic| nic.up) && mtu(nic) && mtu(port)
}

/// Whether nobody serves a port of the user-space datapath.
pub(super) fn is_deaf(port: &NicLink) -> bool {
    port.up && port.flags & IFF_LOWER_UP == 0
}

/// Internal ports of the kernel's datapath have a kind of their own; those of the user-space datapath are TAPs.
fn is_internal(link: &NicLink) -> bool {
    ["tun", "openvswitch"].contains(&&*link.kind)
}

/// Whether the link that has the NIC's name is the bridge's port, or what is left of it.
pub(super) fn is_port(link: &NicLink, has_rows: bool, nic: Option<&NicLink>) -> bool {
    is_internal(link) && (has_rows || nic.is_some_and(|nic| nic.mac == link.mac))
}
