//! Which NIC a wish means: by addresses, name or hardware address, and all that are given must agree.

use std::net::IpAddr;

use crate::model::NicSelector;
use crate::model::nic::{NicAddress, NicLink};

/// A NIC as the host sees it. One that stands behind the bridge already is shown under its own name with the port's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its link.
    pub link: NicLink,
    /// The host's addresses on it.
    pub addresses: Vec<NicAddress>,
}

impl Candidate {
    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().filter_map(NicAddress::address).any(|address| address.ip() == ip)
    }
}

/// Why no NIC is meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// Something that was given is not there (yet).
    #[error("{missing}; the host has {there}")]
    Missing {
        /// What is missing, as a sentence.
        missing: String,
        /// What is there instead.
        there: String,
    },
    /// What was given belongs to several NICs.
    #[error("{0}; an interface of a node is one NIC: write one entry for each")]
    Several(String),
    /// What was given contradicts itself.
    #[error("{0}")]
    Contradiction(String),
}

/// The NIC that is meant.
///
/// # Errors
/// [`SelectionError`]; what is missing may still come.
pub fn select<'a>(wish: &NicSelector, candidates: &'a [Candidate]) -> Result<&'a Candidate, SelectionError> {
    let by_name = wish.name.as_ref().map(|name| named(name.as_str(), candidates)).transpose()?;
    let by_ip = by_addresses(&wish.ips, by_name, candidates)?;
    let by_mac = wish.mac.map(|mac| with_mac(mac, by_ip.or(by_name), candidates)).transpose()?;
    let found: Vec<&Candidate> = [by_name, by_ip, by_mac].into_iter().flatten().collect();
    let Some(first) = found.first() else {
        return Err(SelectionError::Contradiction("the wish says nothing of which NIC is meant".to_owned()));
    };
    match found.iter().find(|other| other.link.ifindex != first.link.ifindex) {
        None => Ok(first),
        Some(other) => {
            let text = format!("what is given does not agree ({wish}): it leads to {} and to {}", first.link.name, other.link.name);
            Err(SelectionError::Contradiction(text))
        }
    }
}

fn named<'a>(name: &str, candidates: &'a [Candidate]) -> Result<&'a Candidate, SelectionError> {
    let exact = candidates.iter().find(|c| c.link.name == name);
    exact.or_else(|| candidates.iter().find(|c| c.link.is_called(name))).ok_or_else(|| SelectionError::Missing {
        missing: format!("there is no link called {name}"),
        there: listed("the links", candidates.iter().map(|c| c.link.name.clone())),
    })
}

/// An address may stand on several NICs; a name that was given settles which one is meant.
fn by_addresses<'a>(
    ips: &[IpAddr],
    named: Option<&Candidate>,
    candidates: &'a [Candidate],
) -> Result<Option<&'a Candidate>, SelectionError> {
    let absent: Vec<String> = ips.iter().filter(|ip| !candidates.iter().any(|c| c.has(**ip))).map(ToString::to_string).collect();
    if !absent.is_empty() {
        let missing = match &*absent {
            [one] => format!("no NIC has the address {one}"),
            many => format!("no NIC has the addresses {}", many.join(", ")),
        };
        return Err(SelectionError::Missing { missing, there: listed("the addresses", shown(candidates)) });
    }
    let Some(first) = ips.first() else { return Ok(None) };
    let all: Vec<&Candidate> = candidates.iter().filter(|c| ips.iter().all(|ip| c.has(*ip))).collect();
    let chosen = all.iter().find(|c| named.is_some_and(|n| n.link.ifindex == c.link.ifindex)).or(all.first());
    match (&*all, chosen) {
        ([], _) => {
            let homes = ips.iter().filter_map(|ip| candidates.iter().find(|c| c.has(*ip)).map(|c| format!("{ip} is on {}", c.link.name)));
            Err(SelectionError::Several(homes.collect::<Vec<_>>().join(", ")))
        }
        ([_, _, ..], _) if named.is_none() => {
            let names: Vec<&str> = all.iter().map(|c| &*c.link.name).collect();
            Err(SelectionError::Several(format!("{first} is on {}", names.join(" and on "))))
        }
        (_, chosen) => Ok(chosen.copied()),
    }
}

/// A hardware address may be shared (a VLAN has its NIC's); what else was given settles which one is meant.
fn with_mac<'a>(
    mac: crate::model::MacAddr,
    known: Option<&Candidate>,
    candidates: &'a [Candidate],
) -> Result<&'a Candidate, SelectionError> {
    let all: Vec<&Candidate> = candidates.iter().filter(|c| c.link.mac() == Some(mac)).collect();
    let chosen = all.iter().find(|c| known.is_some_and(|k| k.link.ifindex == c.link.ifindex)).or(all.first());
    match (&*all, chosen) {
        ([_, _, ..], _) if known.is_none() => {
            let names: Vec<&str> = all.iter().map(|c| &*c.link.name).collect();
            Err(SelectionError::Several(format!("{mac} is the hardware address of {}", names.join(" and of "))))
        }
        (_, Some(chosen)) => Ok(chosen),
        (_, None) => Err(SelectionError::Missing {
            missing: format!("no link has the hardware address {mac}"),
            there: listed(
                "the links",
                candidates.iter().filter(|c| c.link.mac().is_some()).map(|c| format!("{} ({})", c.link.name, c.link.mac)),
            ),
        }),
    }
}

fn shown(candidates: &[Candidate]) -> impl Iterator<Item = String> {
    let texts = candidates.iter().flat_map(|c| {
        let given = c.addresses.iter().filter(|a| !a.is_kernel_link_local()).filter_map(NicAddress::address);
        given.map(|address| format!("{address} on {}", c.link.name))
    });
    texts.collect::<Vec<_>>().into_iter()
}

fn listed(what: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { format!("{what} {}", items.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nic::{Attribute, Message};
    use crate::model::{HostIfName, MacAddr};

    fn candidate(index: u32, name: &str, mac: &str, addresses: &[&str]) -> Candidate {
        let link = NicLink { mac: mac.into(), altnames: vec![format!("alt-{name}")], ..NicLink::of_test(index, name) };
        let address = |text: &&str| {
            let (ip, prefix) = text.split_once('/').unwrap();
            let octets = match ip.parse::<IpAddr>().unwrap() {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            let family = if octets.len() == 4 { 2 } else { 10 };
            let header = vec![family, prefix.parse().unwrap(), 0, 0, 0, 0, 0, 0];
            NicAddress::new(Message { header, attributes: vec![Attribute(1, octets)] }).unwrap()
        };
        Candidate { link, addresses: addresses.iter().map(address).collect() }
    }

    fn host() -> Vec<Candidate> {
        vec![
            candidate(1, "lo", "", &["127.0.0.1/8"]),
            candidate(2, "eth0", "02:00:00:00:00:01", &["192.0.2.5/24", "192.0.2.6/24", "2001:db8::5/64"]),
            candidate(3, "eth1", "02:00:00:00:00:02", &["198.51.100.5/24"]),
            candidate(4, "eth2", "02:00:00:00:00:02", &["198.51.100.5/25"]),
        ]
    }

    fn wish(name: &str, ips: &[&str], mac: &str) -> NicSelector {
        NicSelector {
            name: (!name.is_empty()).then(|| HostIfName::new(name).unwrap()),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            mac: (!mac.is_empty()).then(|| MacAddr::parse(mac).unwrap()),
        }
    }

    #[test]
    fn what_agrees_is_chosen() {
        let host = host();
        for (wish, index) in [
            (wish("eth0", &[], ""), 2),
            (wish("alt-eth0", &[], ""), 2),
            (wish("", &["2001:DB8::5", "192.0.2.6"], ""), 2),
            (wish("", &[], "02:00:00:00:00:01"), 2),
            (wish("eth0", &["192.0.2.5"], "02:00:00:00:00:01"), 2),
            (wish("eth2", &["198.51.100.5"], "02:00:00:00:00:02"), 4),
            (wish("eth1", &["198.51.100.5"], ""), 3),
        ] {
            assert_eq!(select(&wish, &host).map(|c| c.link.ifindex), Ok(index), "{wish}");
        }
    }

    #[test]
    fn what_does_not_agree_is_told() {
        let host = host();
        for (wish, says) in [
            (
                wish("", &["192.0.2.5", "198.51.100.5"], ""),
                "192.0.2.5 is on eth0, 198.51.100.5 is on eth1; an interface of a node is one NIC",
            ),
            (wish("", &["198.51.100.5"], ""), "198.51.100.5 is on eth1 and on eth2"),
            (wish("", &[], "02:00:00:00:00:02"), "is the hardware address of eth1 and of eth2"),
            (wish("eth1", &["192.0.2.5"], ""), "it leads to eth1 and to eth0"),
            (wish("eth0", &[], "02:00:00:00:00:02"), "it leads to eth0 and to eth1"),
        ] {
            let error = select(&wish, &host).unwrap_err();
            assert!(!matches!(error, SelectionError::Missing { .. }) && error.to_string().contains(says), "{wish}: {error}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_is_there() {
        let host = host();
        for (wish, says, there) in [
            (wish("eth9", &[], ""), "no link called eth9", "the links lo, eth0, eth1, eth2"),
            (wish("", &["192.0.2.5", "10.0.0.1"], ""), "no NIC has the address 10.0.0.1", "192.0.2.5/24 on eth0"),
            (wish("", &["10.0.0.2", "10.0.0.1"], ""), "no NIC has the addresses 10.0.0.2, 10.0.0.1", "2001:db8::5/64 on eth0"),
            (wish("", &[], "02:00:00:00:00:09"), "no link has the hardware address", "eth0 (02:00:00:00:00:01)"),
        ] {
            let error = select(&wish, &host).unwrap_err();
            assert!(matches!(error, SelectionError::Missing { .. }), "{wish}: {error}");
            assert!(error.to_string().contains(says) && error.to_string().contains(there), "{error}");
        }
    }
}
