//! The flows between the ports of all NICs on the bridge, as one set: always made of the pairs that the database shows, so nothing is remembered.

use std::sync::Arc;

use crate::external_node::handover::PairFlows;
use crate::model::{BypassRule, Owner};
use crate::ovs::{FlowDifference, FlowSet, FlowSink, OfPort, PairNumbers, PairView, Switch};

/// Flows of the bridge's pairs.
pub struct BridgeFlows {
    switch: Arc<dyn Switch>,
    sink: Arc<dyn FlowSink>,
    owner: Owner,
    rules: Vec<BypassRule>,
}

impl BridgeFlows {
    /// Flows under these bypass rules.
    #[must_use]
    pub fn new(switch: Arc<dyn Switch>, sink: Arc<dyn FlowSink>, owner: Owner, rules: Vec<BypassRule>) -> Self {
        Self { switch, sink, owner, rules }
    }

    fn wanted(&self) -> Result<FlowSet, String> {
        let view = self.switch.read().map_err(|error| error.to_string())?;
        let numbers = view.pairs.values().filter_map(PairView::numbers);
        let pairs: Vec<PairNumbers> = numbers.map(|(host, uplink)| PairNumbers { host, uplink }).collect();
        Ok(FlowSet::new(&self.owner, &pairs, &self.rules))
    }

    fn difference(&self) -> Result<FlowDifference, String> {
        Ok(self.wanted()?.compare(&self.sink.standing().map_err(|error| error.to_string())?))
    }

    fn replace(&self) -> Result<(), String> {
        self.sink.replace(&self.wanted()?).map_err(|error| error.to_string())
    }
}

impl PairFlows for BridgeFlows {
    fn stand(&self, _nic: &str, ports: Option<(OfPort, OfPort)>) -> Result<bool, String> {
        let difference = self.difference()?;
        Ok(if ports.is_some() { difference.missing.is_empty() } else { !difference.surplus.is_empty() })
    }

    fn install(&self, _nic: &str, _ports: (OfPort, OfPort)) -> Result<(), String> {
        self.replace()
    }

    fn remove(&self, _nic: &str) -> Result<(), String> {
        self.replace()
    }
}
