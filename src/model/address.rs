//! Addresses of interfaces: an IP address with a prefix length, host bits kept.

use std::fmt;
use std::net::IpAddr;

/// An address as it stands on a link. Compared by value; ordered IPv4 first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceAddress {
    ip: IpAddr,
    prefix: u8,
}

impl InterfaceAddress {
    /// Wraps an address and its prefix length (bits).
    ///
    /// Returns `None` when the prefix is longer than the family's addresses.
    #[must_use]
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        (prefix <= most).then_some(Self { ip, prefix })
    }

    /// The address without its prefix length.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The prefix length in bits.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether this is an IPv6 address.
    #[must_use]
    pub fn is_ipv6(self) -> bool {
        self.ip.is_ipv6()
    }

    /// Whether both addresses lie in one subnet of one length: for IPv4 the later of the two is then a *secondary*, which the
    /// kernel drops together with the first (unless `promote_secondaries` is on).
    #[must_use]
    pub fn same_subnet(self, other: Self) -> bool {
        let net = |a: Self| ipnet::IpNet::new(a.ip, a.prefix).map(|n| n.trunc());
        self.prefix == other.prefix && net(self) == net(other)
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl fmt::Debug for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> InterfaceAddress {
        let (ip, prefix) = text.split_once('/').unwrap();
        InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    }

    #[test]
    fn subnets() {
        assert!(addr("10.0.0.1/24").same_subnet(addr("10.0.0.2/24")));
        assert!(!addr("10.0.0.1/24").same_subnet(addr("10.0.0.2/25")));
        assert!(!addr("10.0.0.1/24").same_subnet(addr("10.0.1.2/24")));
        assert!(InterfaceAddress::new("10.0.0.1".parse().unwrap(), 33).is_none());
    }
}
