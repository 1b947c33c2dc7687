//! One TAP that we make: what it is made with cannot be changed while it stands, so another wish about that makes it anew.

use super::verdict::Ready;
use super::{Action, End, Planner, StepId, Verdict};
use crate::configurator::observed::Seen;
use crate::model::owner::Mark;
use crate::model::{HostIfName, LinkId, LinkKind, MarkKind, NewTap, TapMode, TapSpec, TunInfo};

impl<'a> Planner<'a> {
    /// Plans what makes the TAP as wished, and says how it stands.
    pub(super) fn plan_tap(&mut self, end: Ready<'a>, tap: &TapSpec) {
        let key = &end.wish.key;
        match self.find_tap(end) {
            None => self.differs(key, "the link is not there".to_owned()),
            Some((id, info)) => {
                let unlike = unlike(tap, info, end.wish.new_header);
                if unlike.is_empty() {
                    self.remove_strays(key, id);
                    return self.settle_end(end, end, id, false);
                }
                let because = unlike.join(", ");
                self.differs(key, because.clone());
                self.let_go(key, id, &because);
            }
        }
        // Its name is free only when all that stood for this key before is gone; and where it cannot be made, nobody wishes what stood.
        self.remove_links_of(key);
        match self.may_have_name(end, end) {
            Ok(after) => self.create_tap(end, tap, after),
            Err(verdict) => self.say(key, verdict),
        }
    }

    /// The TAP by our marks, whatever it is called; else by our group under the wished name, where someone took its alias away.
    fn find_tap(&self, end: Ready<'a>) -> Option<(LinkId, TunInfo)> {
        let tun = |(id, seen): (LinkId, &Seen)| match seen.link.kind {
            LinkKind::Tun(info) => Some((id, info)),
            LinkKind::Veth | LinkKind::Other(_) => None,
        };
        let observed = self.world.observed;
        let marked = |seen: &Seen| matches!(&seen.mark, Mark::Named(MarkKind::Tap, _));
        let found = observed.named(&end.wish.key).filter(|(id, seen)| id.netns == end.netns && marked(seen)).find_map(tun);
        let name: &HostIfName = &end.spec.host_if_name;
        found.or_else(|| observed.at(end.netns, name.as_str()).filter(|(_, seen)| seen.mark == Mark::Unnamed).and_then(tun))
    }

    fn create_tap(&mut self, end: Ready<'a>, tap: &TapSpec, after: Vec<StepId>) {
        let owner = self.world.owner;
        let new = NewTap {
            link: end.new_link(),
            tap: tap.clone(),
            group: owner.group(),
            alias: owner.alias(MarkKind::Tap, &end.spec.name),
            up: end.spec.enabled,
        };
        let subject = self.subject(&end.wish.key, end.netns);
        let made = self.push(&end.wish.key, &subject, Action::CreateTap(new), after);
        self.add_addresses(end, &subject, made, End::A);
        self.say(&end.wish.key, Verdict::InWork(None));
    }
}

/// What a TAP was made with that is not wished.
///
/// Its header is chosen anew by every program that opens it. So that one counts only when its user has just changed the wish, and only while nobody
/// has it open: else a program and the agent would take the TAP away from each other for ever.
fn unlike(tap: &TapSpec, info: TunInfo, new_header: bool) -> Vec<String> {
    let mut unlike = Vec::new();
    let mut compare = |what: &str, is: String, wished: String| {
        if is != wished {
            unlike.push(format!("{what} is {is}, wished {wished}"));
        }
    };
    let mode = |tap: bool| if tap { "TAP" } else { "TUN" }.to_owned();
    let id = |id: Option<u32>| id.map_or_else(|| "nobody".to_owned(), |id| id.to_string());
    let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
    compare("mode", mode(info.tap), mode(tap.mode == TapMode::Tap));
    compare("owner", id(info.owner), id(tap.owner));
    compare("group", id(info.group), id(tap.group));
    compare("multi_queue", switch(info.multi_queue), switch(tap.multi_queue));
    compare("persistence", switch(info.persist), switch(true));
    if new_header && !info.open {
        compare("vnet_hdr", switch(info.vnet_hdr), switch(tap.vnet_hdr));
    }
    unlike
}
