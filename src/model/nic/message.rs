//! A routing message that is kept as the kernel wrote it: a header and attributes.

use serde::{Deserialize, Serialize};

/// One attribute: its type, without the nesting and byte-order bits, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attribute(pub u16, #[serde(with = "hex::serde")] pub Vec<u8>);

impl Attribute {
    /// As it stands in a message.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let length = u16::try_from(4 + self.1.len()).unwrap_or(u16::MAX);
        let mut bytes = [length.to_ne_bytes(), self.0.to_ne_bytes()].concat();
        bytes.extend(self.1);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// Header and attributes, in the order of the message. Written as JSON with bytes in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The family's header (`struct ifaddrmsg`, `rtmsg`, …).
    #[serde(with = "hex::serde")]
    pub header: Vec<u8>,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

impl Message {
    /// The bytes of the first attribute of this type.
    #[must_use]
    pub fn attribute(&self, kind: u16) -> Option<&[u8]> {
        self.attributes.iter().find(|a| a.0 == kind).map(|a| &*a.1)
    }

    /// A 32-bit attribute.
    #[must_use]
    pub fn number(&self, kind: u16) -> Option<u32> {
        number_at(self.attribute(kind)?, 0)
    }

    /// A text attribute, without its closing NUL.
    #[must_use]
    pub fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.attribute(kind)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// A byte of the header; 0 beyond its end.
    #[must_use]
    pub fn byte(&self, at: usize) -> u8 {
        self.header.get(at).copied().unwrap_or_default()
    }

    /// Replaces an attribute's bytes where they are, or adds it.
    pub fn set(&mut self, kind: u16, value: Vec<u8>) {
        match self.attributes.iter_mut().find(|a| a.0 == kind) {
            Some(attribute) => attribute.1 = value,
            None => self.attributes.push(Attribute(kind, value)),
        }
    }

    /// Removes attributes.
    pub fn drop_attributes(&mut self, kinds: &[u16]) {
        self.attributes.retain(|a| !kinds.contains(&a.0));
    }

    /// Writes a number into the header; beyond its end nothing happens.
    pub fn set_header_number(&mut self, at: usize, value: u32) {
        if let Some(place) = self.header.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// A number in the machine's byte order.
#[must_use]
pub fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// An IP address of either family.
#[must_use]
pub fn ip(bytes: &[u8]) -> Option<std::net::IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| std::net::Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| std::net::Ipv6Addr::from(octets).into()),
        _ => None,
    }
}
