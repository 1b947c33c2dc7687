//! The meaning of an external node's fields.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use super::addresses::usable;
use super::{Findings, logical_name};
use crate::model::decode::report::{Listed, quoted};
use crate::model::name::INTERFACE_NAME_MAX;
use crate::model::{DecodedNode, HostIfName, InterfaceName, MacAddr, NicSelector, NodeSpec, Reason, key};
use crate::proto::external::{ExternalNode, NodeInterface};

/// The Kubernetes namespace where none is given.
const DEFAULT_NAMESPACE: &str = "default";
/// Most interfaces of one node; far above what any host has.
const INTERFACES_MAX: usize = 64;

/// Validates a message that stands under the key with this last part. `warnings` are those of its decoding.
#[must_use]
pub fn node(key: &str, wish: &ExternalNode, warnings: Listed<String>) -> DecodedNode {
    let mut findings = Findings { errors: Listed::default(), warnings };
    let spec = spec(key, wish, &mut findings);
    let mut errors = findings.errors.into_errors();
    errors.sort_by_key(|e| !matches!(e.reason, Reason::KeyMismatch | Reason::BadName));
    let spec = spec.filter(|_| errors.is_empty()).ok_or(errors);
    DecodedNode { spec, warnings: findings.warnings.into_warnings() }
}

/// Every part is checked before any failure is looked at, so that all reasons are told at once.
fn spec(key: &str, wish: &ExternalNode, findings: &mut Findings) -> Option<NodeSpec> {
    let name = logical_name(key, key::NODE_CONFIG_PREFIX, &wish.name, findings);
    let namespace = namespace(wish, findings);
    let interfaces = interfaces(&wish.interfaces, findings);
    let labels: BTreeMap<String, String> = wish.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    if labels.contains_key("") {
        findings.error(Reason::BadName, "labels", "", "must not have an empty key", "name the label");
    }
    let spec = NodeSpec { name: name?, namespace: namespace?, labels, interfaces: interfaces? };
    let longest = spec.interfaces.iter().map(|i| spec.entity(i).as_str().len()).max().unwrap_or_default();
    if longest > INTERFACE_NAME_MAX {
        let rule = format!("gives an entity name of {longest} bytes, at most {INTERFACE_NAME_MAX} are allowed");
        findings.error(Reason::BadName, "name", &wish.name, rule, "choose a shorter name");
    }
    Some(spec)
}

fn namespace(wish: &ExternalNode, findings: &mut Findings) -> Option<InterfaceName> {
    let text = if wish.namespace.is_empty() { DEFAULT_NAMESPACE } else { &wish.namespace };
    let broken = |why: crate::model::name::NameError| {
        findings.error(Reason::BadName, "namespace", text, why.to_string(), "write the name of a Kubernetes namespace");
    };
    InterfaceName::new(text).map_err(broken).ok()
}

fn interfaces(wishes: &[NodeInterface], findings: &mut Findings) -> Option<Vec<NicSelector>> {
    if wishes.is_empty() {
        let hint = "name an interface by `ips`, `name` or `mac`";
        findings.error(Reason::BadSelection, "interfaces", "", "must not be empty", hint);
        return None;
    }
    if wishes.len() > INTERFACES_MAX {
        let rule = format!("has {} entries, at most {INTERFACES_MAX} are allowed", wishes.len());
        findings.error(Reason::BadSelection, "interfaces", "", rule, "remove some");
        return None;
    }
    let selectors: Vec<Option<NicSelector>> = wishes.iter().enumerate().map(|(i, wish)| selector(i, wish, findings)).collect();
    distinct(wishes, &selectors, findings);
    selectors.into_iter().collect()
}

fn selector(i: usize, wish: &NodeInterface, findings: &mut Findings) -> Option<NicSelector> {
    if wish.name.is_empty() && wish.ips.is_empty() && wish.mac.is_empty() {
        let hint = "give `ips`, `name` or `mac`";
        findings.error(Reason::BadSelection, &format!("interfaces[{i}]"), "", "says nothing of which interface it is", hint);
        return None;
    }
    let name = (!wish.name.is_empty()).then(|| {
        let broken = |why: crate::model::name::NameError| {
            findings.error(Reason::BadName, &format!("interfaces[{i}].name"), &wish.name, why.to_string(), "write the name of a link");
        };
        HostIfName::new(&wish.name).map_err(broken).ok()
    });
    let mac = (!wish.mac.is_empty()).then(|| {
        let broken = |why: crate::model::mac::MacError| {
            findings.error(Reason::BadMac, &format!("interfaces[{i}].mac"), &wish.mac, why.to_string(), "write it as aa:bb:cc:dd:ee:ff");
        };
        MacAddr::parse(&wish.mac).map_err(broken).ok()
    });
    let ips = ips(i, &wish.ips, findings);
    // The outer `Option` says whether it was given, the inner one whether it is legal.
    Some(NicSelector { name: name.map_or(Some(None), |n| n.map(Some))?, ips: ips?, mac: mac.map_or(Some(None), |m| m.map(Some))? })
}

/// The addresses, each once; `None` when one of them is none.
fn ips(i: usize, texts: &[String], findings: &mut Findings) -> Option<Vec<IpAddr>> {
    let mut taken = Vec::new();
    let mut legal = true;
    for (j, text) in texts.iter().enumerate() {
        let field = format!("interfaces[{i}].ips[{j}]");
        let read = text.parse::<IpAddr>().map_err(|_| match text.split_once('/') {
            Some((ip, _)) if ip.parse::<IpAddr>().is_ok() => {
                ("must have no prefix length".to_owned(), format!("write it as {ip}: the one on the link is kept"))
            }
            _ => ("is no IP address".to_owned(), "write a.b.c.d or IPv6, without blanks, zone or leading zeros".to_owned()),
        });
        match read.and_then(|ip| usable(ip).map(|()| ip)) {
            Ok(ip) if taken.contains(&ip) => findings.warn(|| format!("{field} {} is given twice", quoted(text))),
            Ok(ip) => taken.push(ip),
            Err((rule, hint)) => {
                legal = false;
                findings.error(Reason::BadAddress, &field, text, rule, hint);
            }
        }
    }
    legal.then_some(taken)
}

/// Two entries must not choose the same interface, nor give the same entity name.
fn distinct(wishes: &[NodeInterface], selectors: &[Option<NicSelector>], findings: &mut Findings) {
    let (mut names, mut ips, mut macs) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (i, selector) in selectors.iter().enumerate() {
        let Some(selector) = selector else { continue };
        let mut twice = |field: String, value: String| {
            findings.error(Reason::BadSelection, &field, &value, "is given in another interface already", "each interface is chosen once");
        };
        if selector.name.as_ref().is_some_and(|name| !names.insert(name)) {
            twice(format!("interfaces[{i}].name"), wishes[i].name.clone());
        }
        for (j, ip) in selector.ips.iter().enumerate().filter(|(_, ip)| !ips.insert(**ip)) {
            twice(format!("interfaces[{i}].ips[{j}]"), ip.to_string());
        }
        if selector.mac.is_some_and(|mac| !macs.insert(mac)) {
            twice(format!("interfaces[{i}].mac"), wishes[i].mac.clone());
        }
        if selector.name.is_none() && wishes.len() > 1 {
            let rule = "is needed where there is more than one interface: the entity's name is made of it";
            findings.error(Reason::BadSelection, &format!("interfaces[{i}].name"), "", rule, "write the name of the link");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{NodeSpec, Reason, decode_node};

    fn good(value: &str) -> NodeSpec {
        let decoded = decode_node("host1", value.as_bytes());
        assert_eq!(decoded.warnings, Vec::<String>::new(), "{value}");
        decoded.spec.unwrap_or_else(|errors| panic!("{value}: {errors:?}"))
    }

    fn fields(value: &str) -> Vec<(Reason, String)> {
        let errors = decode_node("host1", value.as_bytes()).spec.expect_err(value);
        assert!(errors.iter().all(|e| !e.rule.is_empty() && !e.hint.is_empty()), "{errors:?}");
        errors.into_iter().map(|e| (e.reason, e.field)).collect()
    }

    #[test]
    fn a_whole_node() {
        let spec = good(
            r#"{"name":"host1","labels":{"app":"db"},"interfaces":[{"name":"eth0","ips":["192.0.2.5","2001:DB8::5"],"mac":"02-00-00-00-00-01"},{"name":"eth1"}]}"#,
        );
        assert_eq!((spec.name.as_str(), spec.namespace.as_str(), &*spec.labels["app"]), ("host1", "default", "db"));
        assert_eq!(spec.interfaces[0].to_string(), "name eth0, address 192.0.2.5, address 2001:db8::5, hardware address 02:00:00:00:00:01");
        assert_ne!(spec.entity(&spec.interfaces[0]), spec.entity(&spec.interfaces[1]));
        let unnamed = good(r#"{"name":"host1","namespace":"vms","interfaces":[{"ips":["192.0.2.5"]}]}"#);
        assert_eq!((unnamed.namespace.as_str(), unnamed.entity(&unnamed.interfaces[0]).as_str()), ("vms", "host1"));
    }

    #[test]
    fn every_reason_at_once() {
        let value = r#"{"name":"other","namespace":"a/b","labels":{"":"x"},"interfaces":[{},{"name":"0123456789abcdef","mac":"x","ips":["1.2.3.4/24","224.0.0.1","x"]}]}"#;
        assert_eq!(
            fields(value),
            [
                (Reason::KeyMismatch, "name".into()),
                (Reason::BadName, "namespace".into()),
                (Reason::BadName, "interfaces[1].name".into()),
                (Reason::BadName, "labels".into()),
                (Reason::BadSelection, "interfaces[0]".into()),
                (Reason::BadMac, "interfaces[1].mac".into()),
                (Reason::BadAddress, "interfaces[1].ips[0]".into()),
                (Reason::BadAddress, "interfaces[1].ips[1]".into()),
                (Reason::BadAddress, "interfaces[1].ips[2]".into()),
            ]
        );
    }

    #[test]
    fn interfaces_are_chosen_once() {
        assert_eq!(fields(r#"{"name":"host1"}"#), [(Reason::BadSelection, "interfaces".into())]);
        let same = r#"{"name":"host1","interfaces":[{"name":"a","ips":["10.0.0.1"]},{"name":"a","ips":["10.0.0.1"]},{"mac":"02:00:00:00:00:01"}]}"#;
        let at = |field: &str| (Reason::BadSelection, field.to_owned());
        assert_eq!(fields(same), [at("interfaces[1].name"), at("interfaces[1].ips[0]"), at("interfaces[2].name")]);
    }

    #[test]
    fn undecodable_and_unknown() {
        assert_eq!(fields("{"), [(Reason::BadEncoding, String::new())]);
        assert_eq!(fields(r#"{"name":"host1","interfaces":{}}"#), [(Reason::BadEncoding, "interfaces".into())]);
        assert_eq!(fields(r#"{"name":"host1","interfaces":[{"ips":"10.0.0.1"}]}"#), [(Reason::BadEncoding, "interfaces[0].ips".into())]);
        let decoded = decode_node("host1", br#"{"name":"host1","interfaces":[{"ip":"x","name":"eth0"}]}"#);
        assert!(decoded.spec.is_ok() && decoded.warnings[0].contains("interfaces[0].ip"), "{decoded:?}");
    }
}
