//! From a decoded message to a wish that can be fulfilled, or to every reason why not.
//!
//! Owns the meaning of the fields of an interface. It refuses whatever the kernel would refuse later, so that nothing is
//! half applied; it fills in defaults, and warns of what it ignores.

mod addresses;
mod link;
mod namespace;
mod node;
#[cfg(test)]
mod tests;

pub use node::node;

use crate::model::decode::report::{self, Listed, quoted};
use crate::model::{Decoded, FieldError, HostIfName, InterfaceName, InterfaceSpec, Outline, Reason, key};
use crate::proto::ligato::Interface;

/// What the checks collect.
#[derive(Default)]
struct Findings {
    errors: Listed<FieldError>,
    warnings: Listed<String>,
}

impl Findings {
    fn error(&mut self, reason: Reason, field: &str, value: &str, rule: impl Into<String>, hint: impl Into<String>) {
        self.errors.push_with(|| report::error(reason, field, value, rule, hint));
    }

    fn warn(&mut self, text: impl FnOnce() -> String) {
        self.warnings.push_with(text);
    }
}

/// Validates a message that stands under the key with this last part. `warnings` are those of its decoding.
#[must_use]
pub fn interface(key: &str, wish: &Interface, warnings: Listed<String>) -> Decoded {
    let mut findings = Findings { errors: Listed::default(), warnings };
    let spec = spec(key, wish, &mut findings);
    let mut errors = findings.errors.into_errors();
    errors.sort_by_key(|e| !matches!(e.reason, Reason::KeyMismatch | Reason::BadName));
    let (spec, outline) = match spec {
        Some(spec) if errors.is_empty() => {
            let outline = outline_of(&spec);
            (Ok(spec), outline)
        }
        _ => (Err(errors), outline(key, wish)),
    };
    Decoded { spec, warnings: findings.warnings.into_warnings(), outline }
}

/// What can be said of a message that is not, or not yet, valid.
#[must_use]
pub fn outline(key: &str, wish: &Interface) -> Outline {
    let host_if_name = [&*wish.host_if_name, &*wish.name, key].into_iter().find(|n| !n.is_empty()).unwrap_or_default();
    let (namespace_kind, reference) = namespace::outline(wish.namespace.as_ref());
    Outline {
        host_if_name: report::shorten(host_if_name),
        namespace_kind,
        namespace_reference: report::shorten(&reference),
        peer: wish.veth.as_ref().map(|v| report::shorten(&v.peer_if_name)).unwrap_or_default(),
    }
}

/// The same of a valid wish.
#[must_use]
pub fn outline_of(spec: &InterfaceSpec) -> Outline {
    Outline {
        host_if_name: spec.host_if_name.to_string(),
        namespace_kind: spec.netns.kind(),
        namespace_reference: spec.netns.reference(),
        peer: spec.peer().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Every part is checked before any failure is looked at, so that all reasons are told at once.
fn spec(key: &str, wish: &Interface, findings: &mut Findings) -> Option<InterfaceSpec> {
    // Names first: their errors are the most telling ones and must not fall to the limit of the list.
    let name = logical_name(key, key::INTERFACE_CONFIG_PREFIX, &wish.name, findings);
    let host_if_name = host_if_name(wish, findings);
    let addresses = addresses::addresses(&wish.ip_addresses, findings);
    let mac = link::mac(wish, findings);
    let mtu = link::mtu(wish, addresses.iter().any(|a| a.is_ipv6()), findings);
    let netns = namespace::reference(wish.namespace.as_ref(), findings);
    let kind = link::kind(wish, host_if_name.as_ref(), findings);
    Some(InterfaceSpec {
        name: name?,
        host_if_name: host_if_name?,
        netns: netns?,
        enabled: wish.enabled,
        addresses,
        mac: mac?,
        mtu: mtu?,
        kind: kind?,
    })
}

/// The logical name: the last part of the key after its prefix, and the value, where it is written once more, must agree.
fn logical_name(key: &str, prefix: &str, written: &str, findings: &mut Findings) -> Option<InterfaceName> {
    let name = InterfaceName::new(key);
    if let Err(why) = &name {
        let hint = format!("after `{prefix}` the key must be one legal name");
        findings.error(Reason::BadName, "name", key, why.to_string(), hint);
    }
    if written == key {
        return name.ok();
    }
    if written.is_empty() {
        let hint = format!("write the last part of the key, {}", quoted(key));
        findings.error(Reason::BadName, "name", "", "must not be empty", hint);
        return None;
    }
    let rule = format!("differs from the last part of the key, {}", quoted(key));
    findings.error(Reason::KeyMismatch, "name", written, rule, "write the same name in the key and in the value");
    if let Err(why) = InterfaceName::new(written) {
        findings.error(Reason::BadName, "name", written, why.to_string(), "choose another name");
    }
    None
}

/// The link's name; the logical one where none is given. A logical name that is no logical name either is told of only once.
fn host_if_name(wish: &Interface, findings: &mut Findings) -> Option<HostIfName> {
    let given = !wish.host_if_name.is_empty();
    let text = if given { &wish.host_if_name } else { &wish.name };
    let name = HostIfName::new(text);
    if let Err(why) = &name {
        if given {
            findings.error(Reason::BadName, "host_if_name", text, why.to_string(), "choose another name for the link");
        } else if InterfaceName::new(text).is_ok() {
            let rule = format!("{why} (it is empty, so that `name` is used)");
            findings.error(Reason::BadName, "host_if_name", text, rule, "give the link a name of its own in `host_if_name`");
        }
    }
    name.ok()
}
