//! What we write into the `external_ids` of our two ports, and how it is read back: in this file only.
//!
//! The ids are what a restarted agent knows its ports by. A port without our owner id is somebody else's, whatever its name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{AgentLabel, HostIfName};

/// Whose port it is: the agent's label.
const OWNER: &str = "vnf-agent-owner";
/// Which of the two it is: [`HOST`] or [`UPLINK`].
const ROLE: &str = "vnf-agent-role";
/// Name of the other port.
const PEER: &str = "vnf-agent-peer";
/// How far the move has come, in words of the external node.
const PHASE: &str = "vnf-agent-phase";
/// The NIC's own name.
const ORIG_NAME: &str = "vnf-agent-orig-name";
/// The entity that the NIC belongs to, as `namespace/name`.
const ENTITY: &str = "vnf-agent-entity";
/// The attachment that the ports were made for.
const ATTACHMENT: &str = "vnf-agent-attachment";
/// The NIC's addresses, separated by commas.
const IPS: &str = "vnf-agent-ips";

const HOST: &str = "host";
const UPLINK: &str = "uplink";

/// Which of the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The internal port that carries the host's addresses, under the NIC's name.
    Host,
    /// The NIC itself, renamed.
    Uplink,
}

/// What is remembered beside the ports. All of it is for the external node; nothing here decides from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// How far the move has come, as a word.
    pub phase: Option<String>,
    /// The NIC's own name.
    pub orig_name: Option<String>,
    /// The entity that the NIC belongs to, as `namespace/name`.
    pub entity: Option<String>,
    /// Name of the attachment that the ports serve.
    pub attachment: Option<String>,
    /// The NIC's addresses. One that was written by others and is none is left out.
    pub ips: Vec<IpAddr>,
}

/// The mark of some agent on a port, whichever agent that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Label of the agent.
    pub label: String,
    /// Which of the two ports it is.
    pub role: Role,
    /// Name of the other port.
    pub peer: String,
    /// Name of the attachment; `None` of an agent that did not write it down.
    pub attachment: Option<String>,
    /// The bridge.
    pub bridge: String,
}

/// What a port says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortIds {
    pub(super) role: Role,
    pub(super) peer: String,
    pub(super) notes: Notes,
}

/// The keys of the notes: what an update replaces.
pub(super) const NOTE_KEYS: [&str; 5] = [PHASE, ORIG_NAME, ENTITY, ATTACHMENT, IPS];

/// The keys that make a port ours, beside [`OWNER`]: what is written again when it does not say any more whose it is.
pub(super) const PLACE_KEYS: [&str; 2] = [ROLE, PEER];

/// An owner that names nobody.
pub(super) const NO_OWNER: (&str, &str) = (OWNER, "");

/// The notes as they are written; those that are not set are left out.
pub(super) fn note_pairs(notes: &Notes) -> Vec<(&'static str, String)> {
    let ips: Vec<String> = notes.ips.iter().map(ToString::to_string).collect();
    let ips = (!ips.is_empty()).then(|| ips.join(","));
    let texts = [
        (PHASE, notes.phase.clone()),
        (ORIG_NAME, notes.orig_name.clone()),
        (ENTITY, notes.entity.clone()),
        (ATTACHMENT, notes.attachment.clone()),
        (IPS, ips),
    ];
    texts.into_iter().filter_map(|(key, text)| Some((key, text.filter(|text| !text.is_empty())?))).collect()
}

/// All that a new port of ours says.
pub(super) fn port_pairs(label: &AgentLabel, role: Role, peer: &str, notes: &Notes) -> Vec<(&'static str, String)> {
    let role = match role {
        Role::Host => HOST,
        Role::Uplink => UPLINK,
    };
    let mut pairs = vec![(OWNER, label.to_string()), (ROLE, role.to_owned()), (PEER, peer.to_owned())];
    pairs.extend(note_pairs(notes));
    pairs
}

/// Reads the mark of whichever agent made a port on this bridge; `None` when none did.
pub(super) fn claim(bridge: &str, ids: &BTreeMap<String, String>) -> Option<Claim> {
    let get = |key: &str| ids.get(key).filter(|text| !text.is_empty()).cloned();
    let role = match get(ROLE)?.as_str() {
        HOST => Role::Host,
        UPLINK => Role::Uplink,
        _ => return None,
    };
    // It becomes the name of a file: nothing that no device can be called.
    let peer = get(PEER).filter(|peer| HostIfName::new(peer).is_ok())?;
    Some(Claim { label: get(OWNER)?, role, peer, attachment: get(ATTACHMENT), bridge: bridge.to_owned() })
}

/// Reads a port's ids; `None` when it is not ours.
pub(super) fn read(label: &AgentLabel, ids: &BTreeMap<String, String>) -> Option<PortIds> {
    let Claim { role, peer, attachment, .. } = claim("", ids).filter(|claim| claim.label == label.as_str())?;
    let get = |key: &str| ids.get(key).filter(|text| !text.is_empty()).cloned();
    let ips = get(IPS).unwrap_or_default();
    let ips = ips.split(',').filter_map(|ip| ip.trim().parse().ok()).collect();
    let notes = Notes { phase: get(PHASE), orig_name: get(ORIG_NAME), entity: get(ENTITY), attachment, ips };
    Some(PortIds { role, peer, notes })
}

/// Whether a port may be ours although its ids do not say so: nobody else says that it is his.
pub(super) fn may_be_ours(label: &AgentLabel, ids: &BTreeMap<String, String>) -> bool {
    ids.get(OWNER).is_none_or(|owner| owner.is_empty() || owner == label.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> AgentLabel {
        AgentLabel::new(text).unwrap()
    }

    fn notes() -> Notes {
        Notes {
            phase: Some("MOVED".to_owned()),
            orig_name: Some("eth0".to_owned()),
            entity: Some("default/host1-9bf2c".to_owned()),
            attachment: Some("7-1a2b".to_owned()),
            ips: vec!["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
        }
    }

    fn written(label: &AgentLabel, role: Role) -> BTreeMap<String, String> {
        port_pairs(label, role, "eth0~", &notes()).into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    #[test]
    fn comes_back_as_written() {
        for role in [Role::Host, Role::Uplink] {
            let ids = read(&label("vpp1"), &written(&label("vpp1"), role));
            assert_eq!(ids, Some(PortIds { role, peer: "eth0~".to_owned(), notes: notes() }));
        }
        assert!(note_pairs(&Notes::default()).is_empty());
    }

    #[test]
    fn strangers_are_not_ours() {
        assert_eq!(read(&label("vpp1"), &written(&label("vpp10"), Role::Host)), None);
        let others = claim("br-int", &written(&label("vpp10"), Role::Host)).unwrap();
        assert_eq!((others.label.as_str(), others.role, others.attachment.as_deref()), ("vpp10", Role::Host, Some("7-1a2b")));
        assert_eq!(read(&label("vpp1"), &BTreeMap::new()), None);
        for key in [OWNER, ROLE, PEER] {
            let mut ids = written(&label("vpp1"), Role::Host);
            ids.insert(key.to_owned(), String::new());
            assert_eq!(read(&label("vpp1"), &ids), None, "without {key}");
        }
        for peer in ["../x", "x/../y", "a-name-that-no-device-has", "."] {
            let mut ids = written(&label("vpp1"), Role::Host);
            ids.insert(PEER.to_owned(), peer.to_owned());
            assert_eq!(read(&label("vpp1"), &ids), None, "beside {peer}");
        }
        let antrea = [("antrea-type".to_owned(), "host".to_owned()), ("uplink-name".to_owned(), "eth0~".to_owned())];
        assert_eq!((read(&label("vpp1"), &antrea.clone().into()), claim("br-int", &antrea.into())), (None, None));
    }

    #[test]
    fn damaged_notes_do_not_hide_the_port() {
        let mut ids = written(&label("vpp1"), Role::Host);
        ids.insert(IPS.to_owned(), "192.0.2.5,nonsense,,2001:db8::5".to_owned());
        ids.remove(PHASE);
        let read = read(&label("vpp1"), &ids).unwrap();
        assert_eq!(read.notes.ips, notes().ips);
        assert_eq!(read.notes.phase, None);
    }
}
