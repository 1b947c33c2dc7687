//! The store's wishes for nodes, and which NICs ours means.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use super::status::words_of_claim;
use crate::external_node::handover::{Handover, HandoverError, Purpose};
use crate::external_node::rollback::Wished;
use crate::external_node::selection::{Candidate, SelectionError, select};
use crate::external_node::stand_by::run_dir;
use crate::external_node::suitability::{Examined, Manager, examine, leases, uplink_name};
use crate::model::key::NODE_CONFIG_PREFIX;
use crate::model::nic::NicLink;
use crate::model::{DecodedNode, EntityName, InterfaceName, NicSelector, NodeSpec, Reason, State, decode_node};
use crate::ovs::Notes;
use crate::store::{StoreEvent, Versioned};

/// A value of the store.
pub(super) struct Wish {
    pub(super) decoded: DecodedNode,
    pub(super) revision: i64,
    value: String,
}

/// An interface of the wish that led to a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) selector: NicSelector,
    pub(super) entity: EntityName,
    pub(super) labels: BTreeMap<String, String>,
}

/// Why an interface of the wish leads to no NIC that may be touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unclear {
    pub(super) state: State,
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// Everything that the store wishes of nodes.
pub(super) struct Wishes {
    name: InterfaceName,
    namespace: InterfaceName,
    all: BTreeMap<String, Wish>,
    staging: Option<BTreeMap<String, Wish>>,
    listed: bool,
    revision: i64,
    unclear: Vec<Unclear>,
}

impl Wishes {
    pub(super) fn new(name: InterfaceName, namespace: InterfaceName) -> Self {
        Self { name, namespace, all: BTreeMap::new(), staging: None, listed: false, revision: 0, unclear: Vec::new() }
    }

    /// Takes events; whether the wish for this host may have changed.
    pub(super) fn take(&mut self, events: Vec<StoreEvent>) -> bool {
        let own = self.name.to_string();
        let mut changed = false;
        for event in events {
            match event {
                StoreEvent::Init => self.staging = Some(BTreeMap::new()),
                StoreEvent::InitApply(key, value) => {
                    if let (Some(staging), Some(last)) = (&mut self.staging, key.strip_prefix(NODE_CONFIG_PREFIX)) {
                        staging.insert(last.to_owned(), read(last, &value));
                    }
                }
                StoreEvent::InitDone(identity) => {
                    self.revision = identity.revision;
                    if let Some(listing) = self.staging.take() {
                        let revision = |all: &BTreeMap<String, Wish>| all.get(&own).map(|wish| wish.revision);
                        changed |= !self.listed || revision(&self.all) != revision(&listing);
                        (self.all, self.listed) = (listing, true);
                    }
                }
                StoreEvent::Apply(key, value) => {
                    self.revision = self.revision.max(value.mod_revision);
                    if let Some(last) = key.strip_prefix(NODE_CONFIG_PREFIX) {
                        self.all.insert(last.to_owned(), read(last, &value));
                        changed |= last == own;
                    }
                }
                StoreEvent::Delete(key, revision) => {
                    self.revision = self.revision.max(revision);
                    let removed = key.strip_prefix(NODE_CONFIG_PREFIX).filter(|last| self.all.remove(*last).is_some());
                    changed |= removed.is_some_and(|last| last == own);
                }
            }
        }
        changed
    }

    pub(super) fn are_listed(&self) -> bool {
        self.listed
    }

    /// Revision of the last event that was taken.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Wish)> {
        self.all.iter()
    }

    pub(super) fn unclear(&self) -> &[Unclear] {
        &self.unclear
    }

    /// Whether a key is that of this host.
    pub(super) fn is_ours(&self) -> impl Fn(&str) -> bool + use<> {
        let name = self.name.clone();
        move |key| key == name.as_str()
    }

    /// Whether a spec is for this host: name and Kubernetes namespace are ours.
    pub(super) fn is_for_us(&self, spec: &NodeSpec) -> bool {
        spec.name == self.name && spec.namespace == self.namespace
    }

    /// Who we are, for messages.
    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What the store holds under our node's key, whatever it says.
    pub(super) fn wished(&self) -> Option<Wished> {
        self.all.get(self.name.as_str()).map(|wish| Wished { revision: wish.revision, value: wish.value.clone() })
    }

    /// Our node's wish, if there is a valid one.
    pub(super) fn spec(&self) -> Option<&NodeSpec> {
        let wish = self.all.get(self.name.as_str())?;
        wish.decoded.spec.as_ref().ok().filter(|spec| self.is_for_us(spec))
    }

    /// Whether the wish leaves open what shall be: it is invalid, or leads to NICs that are not there or may not be touched.
    pub(super) fn is_unclear(&self) -> bool {
        let invalid = self.all.get(self.name.as_str()).is_some_and(|wish| wish.decoded.spec.is_err());
        invalid || !self.unclear.is_empty()
    }

    pub(super) fn still_wants(&self, chosen: &Chosen) -> bool {
        self.spec().is_some_and(|spec| spec.interfaces.contains(&chosen.selector))
    }

    /// The NICs that our node's wish means, by their own names; `None` as long as the wishes are not known.
    ///
    /// With each the alternative names that it has now.
    pub(super) fn choose(&mut self, handover: &mut Handover, allow_managed: bool) -> Option<BTreeMap<String, (Chosen, Vec<String>)>> {
        if !self.listed {
            return None;
        }
        let Some(spec) = self.spec().cloned() else {
            self.unclear.clear();
            return Some(BTreeMap::new());
        };
        let mut unclear = Vec::new();
        let mut chosen = BTreeMap::new();
        match handover.candidates() {
            Err(error) => unclear.push(Unclear { state: State::Retrying, reason: Reason::KernelRefused, message: error.to_string() }),
            Ok((candidates, links)) => {
                for selector in &spec.interfaces {
                    match one(selector, &candidates, &links, handover, allow_managed) {
                        Ok(name) => {
                            let (selector, entity) = (selector.clone(), spec.entity(selector));
                            let link = candidates.iter().map(|candidate| &candidate.link).find(|link| link.name == name);
                            let altnames = link.map(|link| link.altnames.clone()).unwrap_or_default();
                            let found = Chosen { selector, entity, labels: spec.labels.clone() };
                            if chosen.insert(name.clone(), (found, altnames)).is_some() {
                                let message = format!("two interfaces of the node lead to {name}; each NIC is chosen once");
                                unclear.push(Unclear { state: State::Failed, reason: Reason::NicUnsuitable, message });
                            }
                        }
                        Err(why) => unclear.push(why),
                    }
                }
            }
        }
        self.unclear = unclear;
        Some(chosen)
    }

    /// For whom a NIC is attached.
    pub(super) fn purpose(&self, nic: &str, chosen: Option<&Chosen>) -> Purpose {
        let entity = chosen.map(|chosen| format!("{}/{}", self.namespace, chosen.entity));
        let ips = chosen.map(|chosen| chosen.selector.ips.clone()).unwrap_or_default();
        let notes = Notes { phase: None, orig_name: Some(nic.to_owned()), entity, attachment: None, ips };
        Purpose { node: self.name.to_string(), namespace: self.namespace.to_string(), attachment: attachment(), notes }
    }
}

/// A name that no other attachment of this host has.
fn attachment() -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{:x}", std::process::id(), since_epoch.as_nanos())
}

fn read(last: &str, value: &Versioned) -> Wish {
    let text = String::from_utf8_lossy(&value.value).into_owned();
    Wish { decoded: decode_node(last, &value.value), revision: value.mod_revision, value: text }
}

/// The own name of the NIC that a selector means. One that stands behind the bridge already is not examined again.
pub(super) fn one(
    selector: &NicSelector,
    candidates: &[Candidate],
    links: &[NicLink],
    handover: &mut Handover,
    allow_managed: bool,
) -> Result<String, Unclear> {
    let nic = select(selector, candidates).map_err(|error| {
        let message = format!("{selector}: {error}");
        match error {
            SelectionError::Missing { .. } => Unclear { state: State::Pending, reason: Reason::LinkMissing, message },
            SelectionError::Several(_) | SelectionError::Contradiction(_) => {
                Unclear { state: State::Failed, reason: Reason::NicUnsuitable, message }
            }
        }
    })?;
    let name = nic.link.name.clone();
    if handover.journals().path(&name).exists() || handover.known_pairs().contains(&name) {
        return Ok(name);
    }
    if let Some(claim) = handover.claim(&name) {
        let message = format!("{name}: {}", words_of_claim(&claim));
        return Err(Unclear { state: State::Pending, reason: Reason::Contended, message });
    }
    let refused = |message: String| Unclear { state: State::Failed, reason: Reason::NicUnsuitable, message };
    let managers = managers(nic, handover, run_dir()).map_err(|error| refused(format!("{name}: {error}")))?;
    let bridges =
        [name.clone(), uplink_name(&name)].iter().filter_map(|port| Some((port.clone(), handover.foreign_bridge(port)?))).collect();
    match examine(&Examined { nic, links, bridge: handover.bridge(), bridges, managers: &managers, allow_managed }) {
        Ok(_uplink) => Ok(name),
        Err(reasons) => {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            Err(refused(format!("{name} is not touched: {}", reasons.join("; "))))
        }
    }
}

fn managers(nic: &Candidate, handover: &mut Handover, run: &Path) -> Result<Vec<Manager>, HandoverError> {
    let (found, dhcp_routes) = handover.caretakers(&nic.link, run)?;
    let mut managers = leases(&nic.addresses);
    managers.extend(found.networkd.then_some(Manager::Networkd));
    managers.extend(found.network_manager.then_some(Manager::NetworkManager));
    managers.extend(found.dhcp_clients.into_iter().map(Manager::DhcpClient));
    managers.extend(dhcp_routes.into_iter().map(Manager::DhcpRoute));
    managers.sort();
    Ok(managers)
}
