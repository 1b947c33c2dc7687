//! Hardware addresses: read in every usual spelling, compared by value, written in one.

use std::fmt;

/// A 48-bit unicast hardware address. Written `aa:bb:cc:dd:ee:ff`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr([u8; 6]);

/// Why a text or value is no address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// Not six bytes in a known spelling.
    #[error("is no hardware address of six bytes (aa:bb:cc:dd:ee:ff, aa-bb-cc-dd-ee-ff or aabb.ccdd.eeff)")]
    Syntax,
    /// All zero.
    #[error("must not be all zero")]
    Zero,
    /// The broadcast address.
    #[error("must not be the broadcast address")]
    Broadcast,
    /// The group bit is set.
    #[error("must not be a multicast address (lowest bit of the first byte)")]
    Multicast,
}

impl MacAddr {
    /// Reads any of the three usual spellings.
    ///
    /// # Errors
    /// [`MacError`] for a bad spelling and for addresses that no interface may have.
    pub fn parse(text: &str) -> Result<Self, MacError> {
        let bytes = text.parse::<macaddr::MacAddr6>().map(macaddr::MacAddr6::into_array);
        let bytes = bytes.ok().or_else(|| parse_dotted(text)).ok_or(MacError::Syntax)?;
        Self::new(bytes)
    }

    /// Checks and wraps six bytes.
    ///
    /// # Errors
    /// [`MacError`] for addresses that no interface may have.
    pub fn new(bytes: [u8; 6]) -> Result<Self, MacError> {
        match bytes {
            [0, 0, 0, 0, 0, 0] => Err(MacError::Zero),
            [255, 255, 255, 255, 255, 255] => Err(MacError::Broadcast),
            [first, ..] if first & 1 == 1 => Err(MacError::Multicast),
            _ => Ok(Self(bytes)),
        }
    }

    /// The six bytes, first one first.
    #[must_use]
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

/// `aabb.ccdd.eeff`, as network equipment writes it.
fn parse_dotted(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0u8; 6];
    let mut groups = text.split('.');
    for pair in bytes.chunks_exact_mut(2) {
        let group = groups.next().filter(|g| g.len() == 4 && g.bytes().all(|b| b.is_ascii_hexdigit()))?;
        pair.copy_from_slice(&u16::from_str_radix(group, 16).ok()?.to_be_bytes());
    }
    groups.next().is_none().then_some(bytes)
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for text in ["02:00:5e:10:00:FF", "02-00-5e-10-00-ff", "0200.5e10.00ff"] {
            assert_eq!(MacAddr::parse(text).map(|m| m.to_string()), Ok("02:00:5e:10:00:ff".to_owned()), "{text}");
        }
    }

    #[test]
    fn refused() {
        assert_eq!(MacAddr::parse("01:00:5e:00:00:01"), Err(MacError::Multicast));
        assert_eq!(MacAddr::parse("ff:ff:ff:ff:ff:ff"), Err(MacError::Broadcast));
        assert_eq!(MacAddr::parse("00:00:00:00:00:00"), Err(MacError::Zero));
        for text in
            ["02:00:00:00:00", "02:00:00:00:00:00:00", "", "0200.5e10", "0200.5e10.00ff.0000", "02:00:00-00:00:00", "0+00.5e10.00ff"]
        {
            assert_eq!(MacAddr::parse(text), Err(MacError::Syntax), "{text}");
        }
    }
}
