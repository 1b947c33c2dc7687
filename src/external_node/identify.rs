//! Which link is the NIC and which is the bridge's port, and how they stand: pure.

use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::{Claimed, JournalState};
use crate::model::nic::NicLink;
use crate::ovs::Claim;

/// `IFF_LOWER_UP`: an internal port of the user-space datapath has none while nobody serves it.
const IFF_LOWER_UP: u32 = 0x1_0000;

/// The NIC: by its index in the boot that the journal speaks of, else by its hardware address, as its driver may have made it anew; without a journal
/// by its own name.
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
    // Once it is gone, its index may be another one's.
    let by_index = |link: &&NicLink| {
        link.ifindex == journal.nic.ifindex && link.kind == journal.nic.kind && (!journal.gone || link.mac == journal.nic.mac)
    };
    if let Some(nic) = links.iter().find(by_index).filter(|_| journal.boot_id == boot_id) {
        return Some(nic);
    }
    // Ports of other links may bear the address of one of them.
    let same = |link: &&NicLink| link.mac == journal.nic.mac && link.kind == journal.nic.kind && link.master == 0 && !is_ports(link);
    let mut all = links.iter().filter(same);
    if let Some(nic) = all.clone().find(|link| link.name == name || link.name == uplink) {
        return Some(nic);
    }
    // All VLANs of a link have its address; and of several with one address nobody knows which it is.
    all.next().filter(|nic| nic.kind != "vlan" && all.next().is_none())
}

impl From<Intent> for JournalState {
    fn from(intent: Intent) -> Self {
        match intent {
            Intent::Attaching => Self::Attaching,
            Intent::Attached => Self::Attached,
            Intent::Detaching => Self::Detaching,
        }
    }
}

/// Whose a NIC is whose ports bear the mark of another label.
pub(super) fn claimed(claim: Option<&Claim>, journal: Option<&Journal>) -> Claimed {
    let Some(claim) = claim else { return Claimed::ByNobodyElse };
    let is_our_own = |journal: &Journal| claim.attachment.as_ref() == Some(&journal.attachment);
    if journal.is_some_and(is_our_own) { Claimed::UnderAnotherLabel } else { Claimed::ByAnother }
}

/// Whether the NIC is another link than the one that the journal of this boot speaks of, or was gone for a while: what was made for it does not serve it.
pub(super) fn is_made_anew(nic: &NicLink, journal: &Journal, boot_id: &str) -> bool {
    journal.boot_id == boot_id && (journal.gone || nic.ifindex != journal.nic.ifindex)
}

/// The link whose index names the guard: the one that the journal of this boot began with, although the NIC may be gone or made anew since.
pub(super) fn guarded(nic: Option<&NicLink>, journal: Option<&Journal>, boot_id: &str) -> Option<NicLink> {
    let begun = journal.filter(|journal| journal.boot_id == boot_id).map(|journal| &journal.nic);
    match (nic, begun) {
        (Some(nic), Some(begun)) => Some(NicLink { ifindex: begun.ifindex, ..nic.clone() }),
        (nic, begun) => nic.or(begun).cloned(),
    }
}

/// Whether the uplink is up and has the NIC's hardware address, both links have the host's MTU, and nobody has put them into a bridge or bond.
pub(super) fn links_fit(journal: &Journal, nic: Option<&NicLink>, port: Option<&NicLink>) -> bool {
    let mtu = |link: Option<&NicLink>| link.is_none_or(|link| link.mtu == journal.config.link.mtu);
    let is_free = |link: Option<&NicLink>| link.is_none_or(|link| !is_enslaved(journal, link));
    nic.is_none_or(|nic| nic.up && nic.mac == journal.nic.mac) && mtu(nic) && mtu(port) && is_free(nic) && is_free(port)
}

/// Whether somebody has put one of the two links into a bridge or bond, which takes its frames. The kernel's datapath is the master of a NIC itself.
pub(super) fn is_enslaved(journal: &Journal, link: &NicLink) -> bool {
    link.master != 0 && (journal.guard || is_internal(link))
}

/// Whether nobody serves a port of the user-space datapath.
pub(super) fn is_deaf(port: &NicLink) -> bool {
    port.up && port.flags & IFF_LOWER_UP == 0
}

/// Internal ports of the kernel's datapath have a kind of their own; those of the user-space datapath are TAPs.
pub(super) fn is_internal(link: &NicLink) -> bool {
    ["tun", "openvswitch"].contains(&&*link.kind)
}

/// Whether the link that has the NIC's name is the bridge's port, or what is left of it. The port has the hardware address that the NIC had when it was
/// put behind the bridge, whatever was made of the NIC's own since.
pub(super) fn is_port(link: &NicLink, has_rows: bool, nic: Option<&NicLink>, journal: Option<&Journal>) -> bool {
    let mut of_nic = nic.into_iter().chain(journal.map(|journal| &journal.nic));
    is_internal(link) && (has_rows || of_nic.any(|nic| nic.mac == link.mac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external_node::journal::tests::journal;

    const OTHER: &str = "02:00:00:00:00:99";

    #[test]
    fn a_nic_that_was_made_anew_is_found_by_its_address() {
        let journal = journal();
        let (name, uplink) = (journal.name().to_owned(), journal.uplink.clone());
        let anew = NicLink { name: "eth1".into(), ifindex: 9, ..journal.nic.clone() };
        let find = |links: &[NicLink], boot: &str| find_nic(links, &name, &uplink, Some(&journal), boot).map(|link| link.ifindex);
        let port = NicLink { ifindex: 8, kind: "tun".into(), ..journal.nic.clone() };
        for boot in ["b", "later"] {
            assert_eq!(find(&[port.clone(), anew.clone()], boot), Some(9), "{boot}");
            assert_eq!(find(&[port.clone(), NicLink { master: 5, ..anew.clone() }], boot), None, "{boot}");
            assert_eq!(find(&[NicLink { mac: OTHER.into(), ..anew.clone() }], boot), None, "{boot}");
        }
        assert!(
            is_made_anew(&anew, &journal, "b") && !is_made_anew(&anew, &journal, "later") && !is_made_anew(&journal.nic, &journal, "b")
        );
        // While the one that the journal speaks of is there, no other one is it; whatever its address is now.
        let own = NicLink { mac: OTHER.into(), ..journal.nic.clone() };
        assert_eq!(find(&[anew, own], "b"), Some(journal.nic.ifindex));
    }

    #[test]
    fn a_nic_that_is_gone_is_no_other_link() {
        let journal = Journal { gone: true, ..journal() };
        let (name, uplink) = (journal.name().to_owned(), journal.uplink.clone());
        let find = |journal: &Journal, links: &[NicLink]| find_nic(links, &name, &uplink, Some(journal), "b").map(|link| link.name.clone());
        // Back as it was, it must be put behind the bridge anew; another link may have got its index.
        assert_eq!(find(&journal, std::slice::from_ref(&journal.nic)), Some(name.clone()));
        assert!(is_made_anew(&journal.nic, &journal, "b"));
        let other = NicLink { name: "eth7".into(), mac: OTHER.into(), ..journal.nic.clone() };
        assert_eq!(find(&journal, &[other]), None);
        // VLANs of one link have one hardware address; and two links with one are none of which anybody knows which it is.
        let of_kind = |kind: &str, name: &str, ifindex| NicLink { name: name.into(), ifindex, kind: kind.into(), ..journal.nic.clone() };
        for (kind, links, found) in [
            ("vlan", vec![("eth1.20", 8)], None),
            ("vlan", vec![("eth1.20", 8), (&*name, 9)], Some(name.clone())),
            ("", vec![("eth7", 8)], Some("eth7".to_owned())),
            ("", vec![("eth7", 8), ("eth8", 9)], None),
            ("", vec![("eth7", 8), (&*uplink, 9)], Some(uplink.clone())),
        ] {
            let journal = Journal { nic: NicLink { kind: kind.into(), ..journal.nic.clone() }, ..journal.clone() };
            let links: Vec<NicLink> = links.into_iter().map(|(name, index)| of_kind(kind, name, index)).collect();
            assert_eq!(find(&journal, &links), found, "{kind} {links:?}");
        }
    }

    #[test]
    fn a_mark_of_another_label_may_be_on_ports_of_our_own() {
        let claim = |attachment: Option<&str>| Claim {
            label: "other".into(),
            role: crate::ovs::Role::Host,
            peer: "eth0~".into(),
            attachment: attachment.map(str::to_owned),
            bridge: "br-int".into(),
        };
        assert_eq!(claimed(None, Some(&journal())), Claimed::ByNobodyElse);
        assert_eq!(claimed(Some(&claim(Some("a1"))), Some(&journal())), Claimed::UnderAnotherLabel);
        for (attachment, journal) in [(Some("a2"), Some(journal())), (None, Some(journal())), (Some("a1"), None), (None, None)] {
            assert_eq!(claimed(Some(&claim(attachment)), journal.as_ref()), Claimed::ByAnother, "{attachment:?}");
        }
    }

    #[test]
    fn a_port_is_known_by_the_address_that_the_nic_had() {
        let journal = journal();
        let nic = NicLink { mac: OTHER.into(), ..journal.nic.clone() };
        let port = NicLink { kind: "tun".into(), ..journal.nic.clone() };
        assert!(is_port(&port, false, Some(&nic), Some(&journal)) && is_port(&port, false, None, Some(&journal)));
        assert!(!is_port(&port, false, Some(&nic), None) && is_port(&port, true, None, None));
        let foreign = NicLink { mac: "02:00:00:00:00:98".into(), ..port };
        assert!(!is_port(&foreign, false, Some(&nic), Some(&journal)));
        assert!(!is_port(&journal.nic, true, Some(&nic), Some(&journal)));
    }

    #[test]
    fn a_guard_keeps_its_name_when_its_nic_goes_or_comes_anew() {
        let journal = journal();
        let anew = NicLink { name: "eth1".into(), ifindex: 9, ..journal.nic.clone() };
        let index = |nic: Option<&NicLink>, boot: &str| guarded(nic, Some(&journal), boot).map(|link| (link.ifindex, link.name));
        assert_eq!(index(None, "b"), Some((2, journal.nic.name.clone())));
        assert_eq!(index(Some(&anew), "b"), Some((2, "eth1".to_owned())));
        assert_eq!((index(Some(&anew), "later"), index(None, "later")), (Some((9, "eth1".to_owned())), None));
    }
}
