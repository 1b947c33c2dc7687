//! Nexthop objects with all their attributes (`struct nhmsg` and `NHA_*`).

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::IfIndex;
use crate::model::nic::message::{Attribute, Message, ip, number_at};
use crate::model::nic::route::{ONLINK, split};

const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_GROUP_TYPE: u16 = 3;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
const NHA_FDB: u16 = 11;
const NHA_RES_GROUP: u16 = 12;
/// Its buckets and timers; how long it has been out of balance is only told.
const NHA_RES_GROUP_GIVEN: RangeInclusive<u16> = 1..=3;
/// `NLA_F_NESTED`, which the kernel leaves out when it tells, and asks for.
const NESTED: u16 = 0x8000;
/// Length of `struct nexthop_grp`, which begins with the member's number.
const GROUP_ENTRY: usize = 8;
/// Places in `struct nhmsg`.
const NH_SCOPE: usize = 1;
const NH_FLAGS: usize = 4;

/// A nexthop object that leads through the NIC, or a group with one that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicNexthop(Message);

impl NicNexthop {
    /// Wraps an `RTM_NEWNEXTHOP`.
    #[must_use]
    pub fn new(message: Message) -> Option<Self> {
        (message.header.len() == 8 && message.number(NHA_ID).is_some()).then_some(Self(message))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.number(NHA_ID).unwrap_or_default()
    }

    /// Whether it leads through this link.
    #[must_use]
    pub fn leads_through(&self, link: u32) -> bool {
        self.0.number(NHA_OIF) == Some(link)
    }

    /// The gateway that the kernel looks for among the neighbours of the link.
    #[must_use]
    pub fn gateway(&self) -> Option<IpAddr> {
        let is_sought = number_at(&self.0.header, NH_FLAGS).unwrap_or_default() & ONLINK == 0;
        self.0.attribute(NHA_GATEWAY).filter(|_| is_sought).and_then(ip)
    }

    /// The numbers of a group's members; none where it is no group.
    #[must_use]
    pub fn members(&self) -> Vec<u32> {
        self.entries().filter_map(|entry| number_at(entry, 0)).collect()
    }

    fn entries(&self) -> impl Iterator<Item = &[u8]> {
        self.0.attribute(NHA_GROUP).unwrap_or_default().chunks_exact(GROUP_ENTRY)
    }

    /// A group with those of its members only that are there.
    #[must_use]
    pub fn with_members(&self, are_there: impl Fn(u32) -> bool) -> Self {
        let mut message = self.0.clone();
        let entries = self.entries().filter(|entry| number_at(entry, 0).is_some_and(&are_there));
        message.set(NHA_GROUP, entries.flatten().copied().collect());
        Self(message)
    }

    /// The message that makes it lead through another link; routes that use it follow. A group leads where its members do.
    #[must_use]
    pub fn to_add(&self, to: IfIndex) -> Message {
        let mut message = self.0.clone();
        if message.attribute(NHA_GROUP).is_some() {
            // The kernel tells more of a group than it takes.
            message.attributes.retain(|attribute| [NHA_ID, NHA_GROUP, NHA_GROUP_TYPE, NHA_FDB, NHA_RES_GROUP].contains(&attribute.0));
            for resilient in message.attributes.iter_mut().filter(|attribute| attribute.0 == NHA_RES_GROUP) {
                let given = split(&resilient.1).into_iter().filter(|part| NHA_RES_GROUP_GIVEN.contains(&part.0));
                *resilient = Attribute(NHA_RES_GROUP | NESTED, given.flat_map(Attribute::into_bytes).collect());
            }
            return message;
        }
        // `RTNH_F_…`, of which only this one is given.
        let flags = number_at(&message.header, NH_FLAGS).unwrap_or_default();
        message.set_header_number(NH_FLAGS, flags & ONLINK);
        if let Some(scope) = message.header.get_mut(NH_SCOPE) {
            // Told, but refused when given.
            *scope = 0;
        }
        message.attributes.iter_mut().filter(|attribute| attribute.0 == NHA_ENCAP).for_each(|attribute| attribute.0 |= NESTED);
        message.set(NHA_OIF, to.get().to_ne_bytes().to_vec());
        message
    }

    /// What must be equal for two objects to need no repair.
    #[must_use]
    pub fn key(&self) -> (Vec<u8>, Vec<Attribute>) {
        let mut message = self.0.clone();
        let flags = number_at(&message.header, NH_FLAGS).unwrap_or_default();
        message.set_header_number(NH_FLAGS, flags & ONLINK);
        message.drop_attributes(&[NHA_OIF]);
        message.attributes.sort();
        (message.header, message.attributes)
    }
}

impl fmt::Display for NicNexthop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nexthop {}", self.id())
    }
}

super::message_json!(NicNexthop, NicNexthop::new);

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel tells of a group with buckets, with the time that it is out of balance, which is refused when given.
    #[test]
    fn a_group_with_buckets_is_made_with_them() {
        let told = [6, 0, 1, 0, 8, 0, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4, 8, 0, 3, 0, 5, 6, 7, 8];
        let balance = [12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let attributes = vec![
            Attribute(NHA_ID, vec![32, 0, 0, 0]),
            Attribute(NHA_GROUP, vec![31, 0, 0, 0, 0, 0, 0, 0]),
            Attribute(NHA_GROUP_TYPE, vec![1, 0]),
            Attribute(NHA_RES_GROUP, [told.as_slice(), &balance].concat()),
        ];
        let group = NicNexthop::new(Message { header: vec![0; 8], attributes }).unwrap();
        let given = group.to_add(IfIndex::new(7).unwrap());
        assert_eq!(given.attribute(NHA_RES_GROUP | NESTED), Some(told.as_slice()));
    }

    #[test]
    fn an_encapsulation_is_nested() {
        let attributes = vec![Attribute(NHA_ID, vec![12, 0, 0, 0]), Attribute(NHA_ENCAP, vec![8, 0, 1, 0, 0, 0, 0, 9])];
        let object = NicNexthop::new(Message { header: vec![0; 8], attributes }).unwrap();
        let nested: Vec<u16> = object.to_add(IfIndex::new(7).unwrap()).attributes.iter().map(|attribute| attribute.0).collect();
        assert_eq!(nested, [NHA_ID, NHA_ENCAP | NESTED, NHA_OIF]);
    }
}
