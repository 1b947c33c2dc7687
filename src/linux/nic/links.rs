//! Links as far as it matters to NICs.

use crate::linux::decode::{RTM_NEWLINK, altnames, attribute, attributes_of, text, u32_at};
use crate::linux::encode;
use crate::linux::socket::{Failure, RouteSocket};
use crate::model::nic::NicLink;

/// `struct ifinfomsg`.
const HEADER: usize = 16;
const IFF_UP: u32 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_GROUP: u16 = 27;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// A VXLAN tells the link that it stands on among its own settings only.
const IFLA_VXLAN_LINK: u16 = 3;
/// How often an interrupted listing is begun again.
const ATTEMPTS: usize = 8;

/// All links of the socket's namespace.
pub(super) fn all(socket: &mut RouteSocket) -> Result<Vec<NicLink>, Failure> {
    let mut links = Vec::new();
    for _ in 0..ATTEMPTS {
        links.clear();
        let complete = socket.dump(&encode::list_links(), |kind, payload| {
            if kind == RTM_NEWLINK {
                links.extend(link(payload));
            }
        })?;
        if complete {
            break;
        }
    }
    Ok(links)
}

fn link(payload: &[u8]) -> Option<NicLink> {
    let (header, attributes) = payload.split_at_checked(HEADER)?;
    let flags = u32_at(header, 8)?;
    let mut link = NicLink {
        name: String::new(),
        ifindex: u32_at(header, 4)?,
        kind: String::new(),
        mac: String::new(),
        permanent_mac: String::new(),
        mtu: 0,
        up: flags & IFF_UP != 0,
        flags,
        master: 0,
        lower: 0,
        altnames: Vec::new(),
        group: 0,
        alias: String::new(),
    };
    let mut foreign_lower = false;
    for (kind, value) in attributes_of(attributes) {
        match kind {
            IFLA_IFNAME => link.name = text(value).into(),
            IFLA_ADDRESS => link.mac = mac(value),
            IFLA_PERM_ADDRESS => link.permanent_mac = mac(value),
            IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
            IFLA_GROUP => link.group = u32_at(value, 0).unwrap_or_default(),
            IFLA_IFALIAS => link.alias = text(value).into(),
            IFLA_MASTER => link.master = u32_at(value, 0).unwrap_or_default(),
            IFLA_LINK => link.lower = u32_at(value, 0).unwrap_or_default(),
            IFLA_LINK_NETNSID => foreign_lower = true,
            IFLA_LINKINFO => {
                link.kind = attribute(value, IFLA_INFO_KIND).map(|word| text(word).into()).unwrap_or_default();
                if link.kind == "vxlan" {
                    let below = attribute(value, IFLA_INFO_DATA).and_then(|data| attribute(data, IFLA_VXLAN_LINK));
                    link.lower = below.and_then(|index| u32_at(index, 0)).unwrap_or(link.lower);
                }
            }
            IFLA_PROP_LIST => link.altnames = altnames(value).into_iter().map(Into::into).collect(),
            _ => {}
        }
    }
    if foreign_lower {
        link.lower = 0;
    }
    Some(link)
}

fn mac(value: &[u8]) -> String {
    let octets: Option<[u8; 6]> = value.try_into().ok();
    octets.and_then(|octets| crate::model::MacAddr::new(octets).ok()).map(|mac| mac.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vxlan_tells_among_its_settings_on_what_it_stands() {
        let made = |kind: &str, settings: &[u8]| {
            let kind = encode::attribute(IFLA_INFO_KIND, kind.as_bytes());
            let info = [kind, encode::attribute(IFLA_INFO_DATA, settings)].concat();
            let payload = [vec![0; HEADER], encode::attribute(IFLA_LINKINFO, &info)].concat();
            link(&payload).map(|link| (link.kind, link.lower))
        };
        let below = encode::attribute(IFLA_VXLAN_LINK, &7u32.to_ne_bytes());
        assert_eq!(made("vxlan\0", &below), Some(("vxlan".to_owned(), 7)));
        assert_eq!(made("vxlan\0", &[]), Some(("vxlan".to_owned(), 0)));
        assert_eq!(made("other\0", &below), Some(("other".to_owned(), 0)));
    }
}
