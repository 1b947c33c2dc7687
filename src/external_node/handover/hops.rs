//! IPv4 routes with hops through several NICs. The journal names each hop by its NIC; where that one's configuration stands at the moment, behind the
//! bridge or not, is looked up when the route is made.

use crate::external_node::handover::{Handover, HandoverError};
use crate::model::nic::NicConfig;

impl Handover {
    /// A configuration that was read, as the journal holds it.
    pub(super) fn for_journal(&mut self, name: &str, config: NicConfig) -> Result<NicConfig, HandoverError> {
        self.with_hops(name, config, |(nic, now)| (now, nic))
    }

    /// A configuration of the journal, as it can be made now.
    pub(super) fn for_kernel(&mut self, name: &str, config: NicConfig) -> Result<NicConfig, HandoverError> {
        self.with_hops(name, config, |pair| pair)
    }

    fn with_hops(
        &mut self,
        name: &str,
        mut config: NicConfig,
        turned: impl Fn((u32, u32)) -> (u32, u32),
    ) -> Result<NicConfig, HandoverError> {
        let own = config.link.ifindex;
        if !config.routes.iter().any(|route| route.is_shared(own)) {
            return Ok(config);
        }
        let pairs: Vec<(u32, u32)> = self.other_nics(name)?.into_iter().map(turned).collect();
        let replaced = |hop: u32| pairs.iter().find(|(from, _)| *from == hop && hop != own).map_or(hop, |(_, to)| *to);
        for route in config.routes.iter_mut().filter(|route| route.is_shared(own)) {
            *route = route.with_links(replaced);
        }
        Ok(config)
    }

    /// Of each other NIC that has a journal: its index, and that of the link that has its name.
    fn other_nics(&mut self, name: &str) -> Result<Vec<(u32, u32)>, HandoverError> {
        let links = self.kernel.links()?;
        let journals = self.journals.all()?.into_iter().flatten();
        let others = journals.filter(|journal| journal.name() != name && journal.boot_id == self.settings.boot_id);
        Ok(others
            .filter_map(|journal| Some((journal.nic.ifindex, links.iter().find(|link| link.name == journal.name())?.ifindex)))
            .collect())
    }
}
