//! Reading links and addresses.

use std::collections::HashMap;

use nix::errno::Errno;

use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::{NetnsReading, decode, encode};
use crate::model::{IfIndex, ObservedAddress, ObservedLink};

/// How often an interrupted listing is begun again. Under churn nearly every one is interrupted, so there is an end to it.
const ATTEMPTS: usize = 4;

/// Reads all links with their addresses.
pub(super) fn netns(socket: &mut RouteSocket) -> Result<NetnsReading, Failure> {
    let mut reading = NetnsReading::default();
    for _ in 0..ATTEMPTS {
        reading = netns_once(socket)?;
        if reading.complete {
            break;
        }
    }
    Ok(reading)
}

fn netns_once(socket: &mut RouteSocket) -> Result<NetnsReading, Failure> {
    let mut links: Vec<ObservedLink> = Vec::new();
    let links_complete = socket.dump(&encode::list_links(), |kind, payload| {
        if kind == decode::RTM_NEWLINK {
            links.extend(decode::link(payload));
        }
    })?;
    let places: HashMap<IfIndex, usize> = links.iter().enumerate().map(|(place, link)| (link.ifindex, place)).collect();
    let addresses_complete = socket.dump(&encode::list_addresses(None), |kind, payload| {
        if kind != decode::RTM_NEWADDR {
            return;
        }
        let Some((ifindex, address)) = decode::address(payload) else { return };
        if let Some(link) = places.get(&ifindex).and_then(|place| links.get_mut(*place)) {
            let address = without_own_label(address, &link.name);
            link.addresses.push(address);
        }
    })?;
    // They are kept for as long as the link stands, and grow by fours.
    links.iter_mut().for_each(|link| link.addresses.shrink_to_fit());
    Ok(NetnsReading { links, complete: links_complete && addresses_complete })
}

/// Reads links with their addresses; the n-th answer belongs to the n-th index, `None` when there is none of this index.
pub(super) fn links(socket: &mut RouteSocket, indexes: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, Failure>> {
    let bare = bare_links(socket, indexes);
    let with_addresses = |found: Result<Option<ObservedLink>, Failure>| match found? {
        Some(link) => addressed(socket, link),
        None => Ok(None),
    };
    bare.into_iter().map(with_addresses).collect()
}

/// Adds the addresses of a link; `None` when it is gone by now.
fn addressed(socket: &mut RouteSocket, mut link: ObservedLink) -> Result<Option<ObservedLink>, Failure> {
    for _ in 0..ATTEMPTS {
        link.addresses.clear();
        let listing = socket.dump(&encode::list_addresses(Some(link.ifindex)), |kind, payload| {
            if kind != decode::RTM_NEWADDR {
                return;
            }
            if let Some((found, address)) = decode::address(payload)
                && found == link.ifindex
            {
                let address = without_own_label(address, &link.name);
                link.addresses.push(address);
            }
        });
        match listing {
            Ok(true) => break,
            Ok(false) => {}
            Err(failure) if failure.is(Errno::ENODEV) => return Ok(None),
            Err(failure) => return Err(failure),
        }
    }
    link.addresses.shrink_to_fit();
    Ok(Some(link))
}

/// Reads links without their addresses; the n-th answer belongs to the n-th index.
pub(super) fn bare_links(socket: &mut RouteSocket, indexes: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, Failure>> {
    let requests: Vec<_> = indexes.iter().map(|ifindex| encode::get_link(*ifindex)).collect();
    let mut links: Vec<Option<ObservedLink>> = vec![None; indexes.len()];
    let answers = socket.perform(&requests, |at, kind, payload| {
        if kind == decode::RTM_NEWLINK {
            links[at] = decode::link(payload);
        }
    });
    let answer = |(answer, link): (Result<(), Failure>, Option<ObservedLink>)| match answer {
        Ok(()) => Ok(link),
        Err(failure) if failure.is(Errno::ENODEV) => Ok(None),
        Err(failure) => Err(failure),
    };
    answers.into_iter().zip(links).map(answer).collect()
}

/// The kernel labels every IPv4 address with the name of its link; only another label tells something.
fn without_own_label(mut address: ObservedAddress, name: &str) -> ObservedAddress {
    address.label = address.label.filter(|label| **label != *name);
    address
}
