//! What VPP was told and told of the TAPs that wishes wait for, by their names in the kernel.
//!
//! Pure. A TAP counts as made or removed when the kernel shows it so; VPP's word only wakes and explains, with one exception: a TAP that VPP says to have
//! deleted is not used although it still stands.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::HostIfName;
use crate::model::vpp::VppReport;

/// VPP's TAPs.
#[derive(Debug, Default)]
pub struct VppTaps {
    interfaces: BTreeMap<Box<str>, Interface>,
    by_link: HashMap<HostIfName, BTreeSet<Box<str>>>,
}

#[derive(Debug, Default)]
struct Interface {
    /// The TAP that VPP is told to make.
    wanted: Option<HostIfName>,
    /// The one that it was told to make last: a status has no name of a link.
    link: Option<HostIfName>,
    report: Option<VppReport>,
    /// The link was gone after it was said to be deleted: what stands under its name now is another one.
    over: bool,
}

/// What VPP was told and told of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VppSays {
    /// It is to make it.
    pub wanted: bool,
    /// It says that it is there.
    pub made: bool,
    /// It says that it has deleted it.
    pub deleted: bool,
}

impl VppTaps {
    /// What is known of the TAP with this name in the kernel.
    #[must_use]
    pub fn says(&self, link: &HostIfName) -> VppSays {
        let mut says = VppSays::default();
        for interface in self.by_link.get(link).into_iter().flatten().filter_map(|name| self.interfaces.get(name)) {
            says.wanted |= interface.wanted.is_some();
            says.made |= interface.report.is_some_and(|report| !report.deleted);
            says.deleted |= interface.report.is_some_and(|report| report.deleted) && !interface.over;
        }
        says.deleted &= !says.made;
        says
    }

    /// VPP is told to make this TAP under the interface's name, or none; returns the links of which something else is known now.
    pub fn want(&mut self, name: &str, wanted: Option<HostIfName>) -> Vec<HostIfName> {
        self.change(name, |interface| {
            interface.link = wanted.clone().or(interface.link.take());
            interface.wanted = wanted;
        })
    }

    /// VPP tells this of the interface, or nothing any more; returns as [`VppTaps::want`].
    pub fn report(&mut self, name: &str, report: Option<VppReport>) -> Vec<HostIfName> {
        self.change(name, |interface| {
            interface.over &= interface.report == report;
            interface.report = report;
        })
    }

    /// No link of this name is there: what was said to be deleted is.
    pub fn gone(&mut self, link: &HostIfName) {
        for name in self.by_link.get(link).into_iter().flatten() {
            if let Some(interface) = self.interfaces.get_mut(name) {
                interface.over |= interface.report.is_some_and(|report| report.deleted);
            }
        }
    }

    /// The names of all interfaces of which anything is known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.interfaces.keys().map(|name| &**name)
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Interface)) -> Vec<HostIfName> {
        let mut interface = self.interfaces.remove(name).unwrap_or_default();
        let before = link_of(name, &interface);
        if let Some(names) = before.as_ref().and_then(|link| self.by_link.get_mut(link)) {
            names.remove(name);
            if names.is_empty()
                && let Some(link) = &before
            {
                self.by_link.remove(link);
            }
        }
        change(&mut interface);
        let after = link_of(name, &interface);
        if interface.wanted.is_some() || interface.report.is_some() {
            if let Some(link) = &after {
                self.by_link.entry(link.clone()).or_default().insert(name.into());
            }
            self.interfaces.insert(name.into(), interface);
        }
        before.into_iter().chain(after).collect()
    }
}

/// The link that an interface stands for: where VPP was not told its name, a TAP has the name of its interface.
fn link_of(name: &str, interface: &Interface) -> Option<HostIfName> {
    let reported = interface.report.is_some_and(|report| report.tap);
    interface.link.clone().or_else(|| HostIfName::new(name).ok().filter(|_| reported))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> HostIfName {
        HostIfName::new(name).unwrap()
    }

    const MADE: Option<VppReport> = Some(VppReport { tap: true, deleted: false });
    const DELETED: Option<VppReport> = Some(VppReport { tap: true, deleted: true });

    #[test]
    fn a_life() {
        let mut taps = VppTaps::default();
        assert_eq!(taps.want("t", Some(link("tap7"))), [link("tap7")]);
        assert_eq!(taps.says(&link("tap7")), VppSays { wanted: true, made: false, deleted: false });
        taps.report("t", MADE);
        assert_eq!(taps.says(&link("tap7")), VppSays { wanted: true, made: true, deleted: false });
        taps.want("t", None);
        assert_eq!(taps.report("t", DELETED), [link("tap7"), link("tap7")], "the status does not name the link, but it is known");
        assert_eq!(taps.says(&link("tap7")), VppSays { wanted: false, made: false, deleted: true });
        taps.gone(&link("tap7"));
        assert!(!taps.says(&link("tap7")).deleted, "the next one is another one");
        taps.report("t", DELETED);
        assert!(!taps.says(&link("tap7")).deleted, "nothing new was said");
        taps.report("t", None);
        assert_eq!((taps.says(&link("tap7")), taps.names().count(), taps.by_link.len()), (VppSays::default(), 0, 0));
    }

    #[test]
    fn names_of_links() {
        let mut taps = VppTaps::default();
        taps.report("t", MADE);
        assert!(taps.says(&link("t")).made);
        taps.want("t", Some(link("other")));
        assert!(!taps.says(&link("t")).made && taps.says(&link("other")).made);
        taps.report("loop0", Some(VppReport { tap: false, deleted: true }));
        assert_eq!(taps.says(&link("loop0")), VppSays::default(), "no TAP");
        taps.want("again", Some(link("other")));
        taps.report("again", DELETED);
        assert!(!taps.says(&link("other")).deleted, "the other one of this name is there");
    }
}
