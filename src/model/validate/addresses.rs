//! Addresses: text to values, each once, nothing that no host can use.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Findings;
use crate::model::decode::report::quoted;
use crate::model::{InterfaceAddress, Reason};

/// A rule that an entry breaks, and what to do about it.
pub(super) type Broken = (String, String);

/// The addresses in the order of the wish; wrong ones are noted and left out.
pub fn addresses(texts: &[String], findings: &mut Findings) -> Vec<InterfaceAddress> {
    let mut taken = Vec::new();
    let mut seen: BTreeMap<InterfaceAddress, usize> = BTreeMap::new();
    let mut ipv6: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (i, text) in texts.iter().enumerate() {
        let address = match parse(text) {
            Ok((address, has_prefix)) => {
                if !has_prefix {
                    findings.warn(|| format!("ip_addresses[{i}] {} has no prefix length: taken as {address}", quoted(text)));
                }
                address
            }
            Err((rule, hint)) => {
                findings.error(Reason::BadAddress, &format!("ip_addresses[{i}]"), text, rule, hint);
                continue;
            }
        };
        if let Some(first) = seen.get(&address) {
            findings.warn(|| format!("ip_addresses[{i}] {} is the same as ip_addresses[{first}]: applied once", quoted(text)));
            continue;
        }
        // IPv4 may stand on a link with several prefix lengths; of IPv6 the kernel keeps one address per link whatever its prefix length.
        if let (true, Some(first)) = (address.is_ipv6(), ipv6.get(&address.ip())) {
            let rule = format!("is ip_addresses[{first}] with another prefix length; the kernel keeps an IPv6 address once per link");
            findings.error(Reason::BadAddress, &format!("ip_addresses[{i}]"), text, rule, "remove one of the two");
            continue;
        }
        seen.insert(address, i);
        ipv6.insert(address.ip(), i);
        taken.push(address);
    }
    taken
}

/// Reads one address; tells whether it has a prefix length.
fn parse(text: &str) -> Result<(InterfaceAddress, bool), Broken> {
    if text != text.trim() {
        return Err(syntax(text));
    }
    let (ip, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
    let ip: IpAddr = ip.parse().map_err(|_| syntax(text))?;
    usable(ip)?;
    let (whole, usual) = if ip.is_ipv4() { (32, 24) } else { (128, 64) };
    let prefix = length.map_or(Some(whole), prefix_length);
    let address = prefix.and_then(|p| InterfaceAddress::new(ip, p));
    let broken = || (format!("has no prefix length from 0 to {whole} after the slash"), format!("write it as {ip}/{usual}"));
    Ok((address.ok_or_else(broken)?, length.is_some()))
}

/// Decimal digits only: `parse` alone would take `+24` and `024`.
fn prefix_length(text: &str) -> Option<u8> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn syntax(text: &str) -> Broken {
    let hint = if text != text.trim() {
        "remove the blanks around it"
    } else if text.contains('%') {
        "leave the zone out: the address belongs to this interface"
    } else if text.split(['.', '/']).any(|part| part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit())) {
        "remove the leading zeros: some read them as octal"
    } else {
        "write a.b.c.d/len, or IPv6/len"
    };
    ("is no IP address with prefix length".to_owned(), hint.to_owned())
}

/// Refuses what can be no interface's address. Of these the kernel itself refuses only IPv6 ones (multicast, unspecified, and `::1` off the
/// loopback device); the IPv4 ones it takes, and nothing works.
///
/// An IPv4-mapped IPv6 address is refused as well: the kernel takes it, but every socket treats it as the IPv4 address (RFC 4291, 2.5.5.2),
/// which would not be there. The old agent turned it into that IPv4 address with an IPv6 prefix length.
pub(super) fn usable(ip: IpAddr) -> Result<(), Broken> {
    let broken = |rule: &str, hint: &str| Err((rule.to_owned(), hint.to_owned()));
    match ip {
        ip if ip.is_multicast() => broken("is a multicast address", "give the interface a unicast address"),
        ip if ip.is_unspecified() => broken("is the unspecified address", "give the interface a unicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => broken("is the limited broadcast address", "give the interface a unicast address"),
        IpAddr::V6(v6) if v6.is_loopback() => broken("is the loopback address, which only `lo` may have", "choose another address"),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => broken("is an IPv4-mapped IPv6 address, which no packet can carry", &format!("write it as {v4}")),
            None => Ok(()),
        },
        IpAddr::V4(_) => Ok(()),
    }
}
