//! Links in the agent's own namespace that a host, or Open vSwitch, hangs on: whatever is wished, nothing of them is touched.

use super::auto_tap::is_auto_tap;
use super::verdict::Ready;
use super::{Planner, Verdict};
use crate::configurator::desired::Wish;
use crate::configurator::observed::Seen;
use crate::model::owner::Mark;
use crate::model::{LinkId, NetnsId, Reason, Reserved};

impl<'a> Planner<'a> {
    /// Whose a name is that nobody may take there.
    pub(super) fn reserved_in(&self, netns: NetnsId, name: &str) -> Option<&'a Reserved> {
        let reserved = self.world.reserved;
        reserved.get(name).filter(|_| self.world.own == Some(netns))
    }

    /// What is said of an end that wants such a name.
    pub(super) fn name_is_reserved(&self, end: Ready<'a>) -> Option<String> {
        let name = &end.spec.host_if_name;
        let whose = self.reserved_in(end.netns, name.as_str())?;
        Some(format!("the name `{name}` in {} belongs to {whose}; it passes on when that has ended", end.spec.netns))
    }

    /// Whether a link bears such a name.
    pub(super) fn is_reserved(&self, id: LinkId) -> bool {
        self.world.observed.get(id).is_some_and(|seen| self.whose(id, seen).is_some())
    }

    fn whose(&self, id: LinkId, seen: &Seen) -> Option<&'a Reserved> {
        let whose = [&seen.link.name].into_iter().chain(&seen.link.altnames).find_map(|name| self.reserved_in(id.netns, name))?;
        // A link that we made is none of its ports, whatever the database says.
        let ours = !is_auto_tap(seen) && seen.mark != Mark::Foreign;
        (!matches!(whose, Reserved::Port(_)) || !ours).then_some(whose)
    }

    /// What is said of a wish whose own link, or its other end, became a host's: it is left as it is, and so is everything else of the wish.
    pub(super) fn frozen(&self, wish: &Wish) -> Option<Verdict> {
        let links = [Some(&*wish.key), wish.peer()].into_iter().flatten().flat_map(|key| self.world.observed.named(key));
        let (seen, whose) = links.filter_map(|(id, seen)| Some((seen, self.whose(id, seen)?))).next()?;
        let message = format!("the link `{}` belongs to {whose}, and is left as it is", seen.link.name.escape_debug());
        Some(Verdict::Failed(Reason::NameConflict, message))
    }
}
