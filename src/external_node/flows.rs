//! The flows between the ports of all NICs on the bridge, as one set: always made of the pairs that the database shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::{BypassRule, Owner};
use crate::ovs::{Cookie, Flow, FlowDifference, FlowError, FlowSet, FlowSink, OfPort, PairNumbers, PairView, Standing, Switch};

/// The flows between the two ports of one NIC.
pub trait PairFlows: Send + Sync + 'static {
    /// Whether they stand, for ports of these numbers (host, uplink), and the ports let them work; without ports, whether any are left.
    ///
    /// # Errors
    /// When the switch cannot be asked.
    fn stand(&self, nic: &str, ports: Option<(OfPort, OfPort)>) -> Result<bool, FlowsError>;
    /// Installs them in place of those that stand, and opens the ports.
    ///
    /// # Errors
    /// [`FlowsError`].
    fn install(&self, nic: &str, ports: (OfPort, OfPort)) -> Result<(), FlowsError>;
    /// Removes them; those that do not stand are removed.
    ///
    /// # Errors
    /// [`FlowsError`].
    fn remove(&self, nic: &str) -> Result<(), FlowsError>;
    /// Lets the switch take up anew the connections that did not come past it for a while.
    ///
    /// # Errors
    /// [`FlowsError`].
    fn forget_connections(&self) -> Result<(), FlowsError>;
}

/// Why flows are not as they should be, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum FlowsError {
    /// A flow of somebody else stands in the way of one of ours.
    #[error("{0}")]
    InTheWay(String),
    /// Open vSwitch did not do it.
    #[error("{0}")]
    NotDone(String),
}

/// Flows of the bridge's pairs.
pub struct BridgeFlows {
    switch: Arc<dyn Switch>,
    sink: Arc<dyn FlowSink>,
    owner: Owner,
    rules: Vec<BypassRule>,
    printed: Mutex<Printed>,
}

impl BridgeFlows {
    /// Flows under these bypass rules.
    #[must_use]
    pub fn new(switch: Arc<dyn Switch>, sink: Arc<dyn FlowSink>, owner: Owner, rules: Vec<BypassRule>) -> Self {
        Self { switch, sink, owner, rules, printed: Mutex::default() }
    }

    fn wanted(&self) -> Result<FlowSet, FlowsError> {
        let view = self.switch.read().map_err(|error| FlowsError::NotDone(error.to_string()))?;
        let numbers = view.pairs.values().filter_map(PairView::numbers);
        let pairs: Vec<PairNumbers> = numbers.map(|(host, uplink)| PairNumbers { host, uplink }).collect();
        Ok(FlowSet::new(&self.owner, &pairs, &self.rules))
    }

    fn printed(&self) -> MutexGuard<'_, Printed> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn difference(&self) -> Result<FlowDifference, FlowsError> {
        let (wanted, standing) = (self.wanted()?, self.sink.standing().map_err(failed)?);
        Ok(wanted.compare(&self.printed().as_written(&wanted, standing)))
    }

    /// Flows of ours that no pair needs. One that somebody changed is not among them: it is still needed.
    fn left_over(&self) -> Result<Vec<Cookie>, FlowsError> {
        let wanted = self.wanted()?;
        let standing = self.sink.standing().map_err(failed)?;
        Ok(standing.into_iter().map(|found| found.cookie).filter(|cookie| wanted.get(*cookie).is_none()).collect())
    }

    /// Those of the two ports that take nothing, or send nothing, whatever the flows say.
    fn closed(&self, (host, uplink): (OfPort, OfPort)) -> Result<Vec<OfPort>, FlowsError> {
        let closed = self.sink.closed_ports().map_err(failed)?;
        Ok([host, uplink].into_iter().filter(|port| closed.contains(port)).collect())
    }

    fn replace(&self) -> Result<(), FlowsError> {
        let wanted = self.wanted()?;
        self.sink.replace(&wanted).map_err(failed)?;
        let standing = self.sink.standing().map_err(failed)?;
        *self.printed() = Printed::learn(&wanted, standing);
        Ok(())
    }
}

impl PairFlows for BridgeFlows {
    fn stand(&self, _nic: &str, ports: Option<(OfPort, OfPort)>) -> Result<bool, FlowsError> {
        match ports {
            Some(ports) => Ok(self.difference()?.is_empty() && self.closed(ports)?.is_empty()),
            None => Ok(!self.left_over()?.is_empty()),
        }
    }

    fn install(&self, _nic: &str, ports: (OfPort, OfPort)) -> Result<(), FlowsError> {
        self.replace()?;
        for port in self.closed(ports)? {
            self.sink.open_port(port).map_err(failed)?;
        }
        Ok(())
    }

    fn remove(&self, _nic: &str) -> Result<(), FlowsError> {
        let cookies = self.left_over()?;
        if cookies.is_empty() { Ok(()) } else { self.sink.remove(&cookies).map_err(failed) }
    }

    fn forget_connections(&self) -> Result<(), FlowsError> {
        self.sink.forget_connections().map_err(|error| FlowsError::NotDone(error.to_string()))
    }
}

fn failed(error: FlowError) -> FlowsError {
    let message = error.to_string();
    if matches!(error, FlowError::InTheWay { .. }) { FlowsError::InTheWay(message) } else { FlowsError::NotDone(message) }
}

/// How this release of Open vSwitch prints flows of ours that were installed a moment ago, where it does otherwise than we write them: nothing that is
/// known about any release, but a difference in words must not be taken for one in deeds.
#[derive(Debug, Default)]
struct Printed(BTreeMap<Cookie, Flow>);

impl Printed {
    fn learn(wanted: &FlowSet, standing: BTreeSet<Standing>) -> Self {
        let otherwise = standing.into_iter().filter(|found| wanted.get(found.cookie).is_some_and(|flow| *flow != found.flow));
        Self(otherwise.map(|found| (found.cookie, found.flow)).collect())
    }

    /// What stands, in our words where it is printed as it was then.
    fn as_written(&self, wanted: &FlowSet, standing: BTreeSet<Standing>) -> BTreeSet<Standing> {
        let in_our_words = |found: Standing| match wanted.get(found.cookie).filter(|_| self.0.get(&found.cookie) == Some(&found.flow)) {
            Some(flow) => Standing { flow: flow.clone(), ..found },
            None => found,
        };
        standing.into_iter().map(in_our_words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AgentLabel;

    #[test]
    fn words_are_not_deeds() {
        let owner = Owner::new(AgentLabel::new("vpp1").unwrap());
        let pair = PairNumbers { host: OfPort::new(2).unwrap(), uplink: OfPort::new(1).unwrap() };
        let wanted = FlowSet::new(&owner, &[pair], &[]);
        let spoken = |action: &str| -> BTreeSet<Standing> {
            let other =
                |found: Standing| Standing { flow: Flow { actions: format!("{} {action}", found.flow.actions), ..found.flow }, ..found };
            wanted.standing().into_iter().map(other).collect()
        };
        let printed = Printed::learn(&wanted, spoken("otherwise"));
        assert!(wanted.compare(&printed.as_written(&wanted, spoken("otherwise"))).is_empty());
        assert!(wanted.compare(&printed.as_written(&wanted, wanted.standing())).is_empty(), "our own words are always understood");
        let changed = wanted.compare(&printed.as_written(&wanted, spoken("and drop")));
        assert_eq!(changed.missing.len(), wanted.iter().count());
        assert!(Printed::learn(&wanted, wanted.standing()).0.is_empty());
    }
}
