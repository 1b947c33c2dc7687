//! What VPP is told and tells of its TAPs: which of them somebody else is about to make, has made or has removed.
//!
//! These keys belong to VPP's agent. They explain why a wish waits and wake it, and decide nothing else; so what cannot be read counts as
//! not written, and never disturbs.

use crate::model::HostIfName;
use crate::model::decode::decode_message;
use crate::model::key::{VPP_INTERFACE_CONFIG_PREFIX, VPP_INTERFACE_STATUS_PREFIX};
use crate::proto::vpp;

/// VPP's agent keeps errors of its interfaces below its statuses.
const ERRORS: &str = "error/";

/// A key of VPP's agent, relative to the agent's prefix, by the name of VPP's interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VppKey {
    /// What VPP is told to make.
    Config(String),
    /// What VPP has made.
    Status(String),
}

impl VppKey {
    /// Reads a key; `None` for any other.
    #[must_use]
    pub fn parse(relative: &str) -> Option<Self> {
        if let Some(name) = relative.strip_prefix(VPP_INTERFACE_CONFIG_PREFIX) {
            return Some(Self::Config(name.to_owned()));
        }
        let name = relative.strip_prefix(VPP_INTERFACE_STATUS_PREFIX)?;
        (!name.starts_with(ERRORS)).then(|| Self::Status(name.to_owned()))
    }
}

/// What a status says of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VppReport {
    /// It says that the interface is a TAP.
    pub tap: bool,
    /// It says that the interface was deleted.
    pub deleted: bool,
}

/// The name in the kernel of the TAP that VPP is told to make; `None` for another kind of interface, and for what cannot be read.
#[must_use]
pub fn wanted_tap(name: &str, value: &[u8]) -> Option<HostIfName> {
    let interface = decode_message::<vpp::Interface>(value).message?;
    let tap = interface.r#type() == vpp::InterfaceType::TapInterface;
    let host_if_name = interface.tap.as_ref().map(|tap| tap.host_if_name.as_str()).unwrap_or_default();
    let names = [host_if_name, &*interface.name, name];
    let link = names.into_iter().find(|name| !name.is_empty())?;
    HostIfName::new(link).ok().filter(|_| tap)
}

/// What a status says; `None` when it cannot be read.
#[must_use]
pub fn report(value: &[u8]) -> Option<VppReport> {
    let state = decode_message::<vpp::InterfaceState>(value).message?;
    let deleted = [state.admin_status(), state.oper_status()].contains(&vpp::interface_state::Status::Deleted);
    Some(VppReport { tap: state.r#type() == vpp::InterfaceType::TapInterface, deleted })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn keys() {
        assert_eq!(VppKey::parse("vpp/config/v1/interface/tap1"), Some(VppKey::Config("tap1".to_owned())));
        assert_eq!(VppKey::parse("vpp/status/v1/interface/tap1"), Some(VppKey::Status("tap1".to_owned())));
        for other in ["vpp/status/v1/interface/error/tap1", "vpp/config/v1/bd/x", "linux/config/v1/interface/tap1"] {
            assert_eq!(VppKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn which_tap_is_wanted() {
        let wanted = |value: &str| wanted_tap("key", value.as_bytes()).map(|name| name.to_string());
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(wanted(r#"{"name":"t","type":3,"enabled":true,"tap":{"version":2,"host_if_name":"tap7"}}"#), some("tap7"));
        assert_eq!(wanted(r#"{"name":"t","type":"TAP_INTERFACE","ip_addresses":["10.0.0.1/24"]}"#), some("t"));
        assert_eq!(wanted(r#"{"type":3}"#), some("key"));
        for none in ["", "{", "null", "[]", r#"{"name":"t"}"#, r#"{"name":"t","type":2}"#, r#"{"name":"longer-than-15-bytes","type":3}"#] {
            assert_eq!(wanted(none), None, "{none}");
        }
        let tap = Some(vpp::Tap { host_if_name: "tap7".to_owned() });
        let binary = vpp::Interface { name: "t".to_owned(), r#type: 3, tap }.encode_to_vec();
        assert_eq!(wanted_tap("key", &binary).map(|name| name.to_string()), some("tap7"));
    }

    #[test]
    fn what_is_reported() {
        let of = |tap, deleted| Some(VppReport { tap, deleted });
        assert_eq!(
            report(br#"{"name":"t","internal_name":"tap0","type":3,"admin_status":1,"oper_status":2,"statistics":{}}"#),
            of(true, false)
        );
        assert_eq!(report(br#"{"name":"t","type":3,"oper_status":"DELETED"}"#), of(true, true));
        assert_eq!(report(br#"{"name":"local0","admin_status":3}"#), of(false, true));
        assert_eq!(report(b"{"), None);
    }
}
