//! What becomes of an attachment that was not confirmed: pure decisions of the agent and of the process that stands by.
//!
//! Each way behind the bridge that begins, begins a new attachment with a name of its own, which must be confirmed anew. The process that stands by is
//! told that name: what the journal says of any other attachment does not concern it.

use crate::external_node::identify::is_internal;
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::Goal;
use crate::model::Timestamp;
use crate::model::nic::NicLink;
use crate::ovs::{PairView, PortState};

/// How much longer than the agent itself the process that stands by waits, seconds: an agent that lives undoes it in order and says why.
pub const GRACE: u64 = 5;

/// What the process that stands by for one attachment is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on watching.
    Watch,
    /// End: it is confirmed, undone, or followed by another one that has a guard of its own.
    End,
    /// Give the NIC back.
    TakeOver,
}

/// What the journal, which may have been dropped, says to who stands by for this attachment. `uptime` is in seconds since boot.
#[must_use]
pub fn verdict(journal: Option<&Journal>, attachment: &str, uptime: u64) -> Verdict {
    match journal {
        None => Verdict::End,
        Some(journal) if journal.confirmed || journal.attachment != attachment => Verdict::End,
        Some(journal) if uptime >= journal.confirm_until.saturating_add(GRACE) => Verdict::TakeOver,
        Some(_) => Verdict::Watch,
    }
}

/// Whether a journal speaks of an attachment whose time ran out.
#[must_use]
pub fn is_overdue(journal: &Journal, uptime: u64) -> bool {
    !journal.confirmed && journal.intent != Intent::Detaching && uptime >= journal.confirm_until
}

/// Where a NIC shall be by its journal alone, before the store says anything. What no earlier boot could confirm is not tried again by itself: that boot
/// may have ended because the host was lost.
#[must_use]
pub fn resumed(journal: &Journal, boot_id: &str, uptime: u64) -> Goal {
    let of_earlier_boot = journal.boot_id != boot_id;
    let unproved = !journal.confirmed && (of_earlier_boot || uptime >= journal.confirm_until);
    if journal.intent == Intent::Detaching || unproved { Goal::Plain } else { Goal::Attached }
}

/// Whether ports of ours, of which no journal tells, stand for a NIC of this host: Open vSwitch may serve another network namespace, where an agent of
/// the same label looks after them.
#[must_use]
pub fn is_left_here(host: &str, pair: &PairView, links: &[NicLink]) -> bool {
    let has_uplink = |link: &NicLink| pair.uplink.as_ref().is_some_and(|port| port.name == link.name) && !is_internal(link);
    let works = pair.host.as_ref().is_some_and(|port| matches!(port.state, PortState::Ready(_)));
    // After a reboot the NIC has its own name, so that the switch cannot make the port.
    let of_name = |link: &NicLink| link.name == host && (is_internal(link) || !works);
    links.iter().any(|link| has_uplink(link) || of_name(link))
}

/// What had last been heard of the store at some moment.
///
/// Moments are held against each other for equality alone: clocks are set, above all soon after a boot, and a host that was cut off a second ago
/// must not be taken for one that is not because its clock went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is on this host, and cannot be out of reach.
    Always,
    /// Then; never at all is the earliest moment there is.
    At(Timestamp),
}

impl Heard {
    /// Whether the store was heard of since that moment.
    #[must_use]
    pub fn is_news_since(self, then: Self) -> bool {
        self == Self::Always || self != then
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external_node::journal::tests::journal;
    use crate::ovs::{Notes, OfPort, PortView, RowId};

    const INTENTS: [Intent; 3] = [Intent::Attaching, Intent::Attached, Intent::Detaching];

    fn each(check: impl Fn(&Journal)) {
        for intent in INTENTS {
            for confirmed in [false, true] {
                for boot_id in ["b", "earlier"] {
                    check(&Journal {
                        intent,
                        confirmed,
                        boot_id: boot_id.into(),
                        confirm_until: 100,
                        attachment: "a1".into(),
                        ..journal()
                    });
                }
            }
        }
    }

    #[test]
    fn who_stands_by_ends_watches_or_takes_over() {
        assert_eq!(verdict(None, "a1", 500), Verdict::End);
        each(|journal| {
            for uptime in [0, 99, 100, 104, 105, u64::MAX] {
                // Nothing of another attachment is touched, however late it is.
                assert_eq!(verdict(Some(journal), "a0", uptime), Verdict::End, "{journal:?}");
                let wanted = match (journal.confirmed, uptime) {
                    (true, _) => Verdict::End,
                    (false, 105..) => Verdict::TakeOver,
                    (false, _) => Verdict::Watch,
                };
                assert_eq!(verdict(Some(journal), "a1", uptime), wanted, "{uptime} {journal:?}");
            }
        });
        let eternal = Journal { confirmed: false, confirm_until: u64::MAX, attachment: "a1".into(), ..journal() };
        assert_eq!(verdict(Some(&eternal), "a1", u64::MAX - 1), Verdict::Watch);
    }

    #[test]
    fn taken_up_again() {
        each(|journal| {
            for uptime in [0, 99, 100, 101] {
                let goal = resumed(journal, "b", uptime);
                let on = journal.intent != Intent::Detaching && (journal.confirmed || (journal.boot_id == "b" && uptime < 100));
                assert_eq!(goal, if on { Goal::Attached } else { Goal::Plain }, "{uptime} {journal:?}");
                if journal.boot_id == "b" && is_overdue(journal, uptime) {
                    assert_eq!(goal, Goal::Plain);
                }
            }
        });
    }

    #[test]
    fn ports_are_left_here_when_something_of_them_is_here() {
        let port = |name: &str, state: PortState| PortView {
            id: RowId::new("1"),
            name: name.into(),
            state,
            mac_in_use: None,
            mtu: None,
            link_up: None,
        };
        let ready = || PortState::Ready(OfPort::new(1).unwrap());
        let pair = |state: PortState| PairView {
            host: Some(port("eth0", state)),
            uplink: Some(port("eth0~", ready())),
            notes: Notes::default(),
            is_unmarked: false,
        };
        let link = |name: &str, kind: &str| NicLink { name: name.into(), kind: kind.into(), ..journal().nic };
        let left = |state: PortState, link: NicLink| is_left_here("eth0", &pair(state), &[link]);
        assert!(left(ready(), link("eth0~", "veth")) && left(ready(), link("eth0", "tun")) && left(PortState::Pending, link("eth0", "")));
        // A port that works is in the namespace that the switch serves; this NIC only has the same name.
        assert!(
            !left(ready(), link("eth0", "veth")) && !left(PortState::Pending, link("eth1", "")) && !left(ready(), link("eth0~", "tun"))
        );
    }

    #[test]
    fn a_clock_that_was_set_proves_nothing() {
        let at = |seconds: u64| Heard::At((std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).into());
        assert!(!at(7).is_news_since(at(7)) && !Heard::At(Timestamp::default()).is_news_since(Heard::At(Timestamp::default())));
        // Heard of again, by a clock that went forward or back in between.
        assert!(at(9).is_news_since(at(7)) && at(3).is_news_since(at(7)));
        assert!(Heard::Always.is_news_since(Heard::Always) && Heard::Always.is_news_since(at(7)));
    }
}
