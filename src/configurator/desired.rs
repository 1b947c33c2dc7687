//! What users want: every interface key with its decoded value, and who is related to whom.
//!
//! Pure. Indexes answer in the time of what they return, so that one change costs the same with ten keys as with ten thousand.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::decode::{Decoded, Outline};
use crate::model::{FieldError, HostIfName, InterfaceKind, InterfaceSpec, NetnsSlot};

/// Last part of an interface's config key, verbatim. For a valid wish it is the logical name.
pub type Key = Arc<str>;

/// One key and what its value says.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Last part of its key.
    pub key: Key,
    /// Revision at which the key came into being.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
    /// The valid wish, or everything that is wrong with it.
    pub spec: Result<Arc<InterfaceSpec>, Arc<Vec<FieldError>>>,
    /// What is odd about the value.
    pub warnings: Vec<String>,
    /// What could be read even of an invalid value; of a valid one the wish itself tells it.
    pub outline: Option<Box<Outline>>,
    /// Not in the store's listing any more, but kept because removals are held back.
    pub kept: bool,
    /// May take over an unmarked pair that stands under the wished names.
    pub adoptable: bool,
    /// The header of a TAP was changed by its user since the wish was last fulfilled.
    pub new_header: bool,
}

impl Wish {
    /// A wish as decoded from a value of these revisions.
    #[must_use]
    pub fn new(key: Key, decoded: Decoded, create_revision: i64, mod_revision: i64) -> Self {
        let spec = decoded.spec.map(Arc::new).map_err(Arc::new);
        let outline = spec.is_err().then(|| Box::new(decoded.outline));
        let warnings = decoded.warnings;
        Self { key, create_revision, mod_revision, spec, warnings, outline, kept: false, adoptable: false, new_header: false }
    }

    /// Takes over from the wish that stood under this key before.
    pub fn replace(&mut self, before: &Self) {
        let header = |wish: &Self| match wish.spec.as_ref().map(|spec| &spec.kind) {
            Ok(InterfaceKind::Tap(tap)) => Some(tap.vnet_hdr),
            _ => None,
        };
        let (both, old) = (header(before).zip(header(self)), before.new_header);
        self.new_header = both.is_some_and(|(before, now)| before != now || old);
    }

    /// The namespace slot that it needs; `None` for an invalid wish.
    #[must_use]
    pub fn slot(&self) -> Option<NetnsSlot> {
        self.spec.as_ref().ok().map(|spec| NetnsSlot::new(spec.netns.clone(), self.mod_revision))
    }

    /// The name under which the TAP appears that someone else makes for it.
    #[must_use]
    pub fn temporary(&self) -> Option<&HostIfName> {
        match self.spec.as_ref().map(|spec| &spec.kind) {
            Ok(InterfaceKind::AutoTap { temporary }) => Some(temporary),
            _ => None,
        }
    }

    /// The logical name of the other end that it names.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.spec.as_ref().ok().and_then(|spec| spec.peer()).map(|name| name.as_str())
    }
}

/// A few keys in order: nearly always one, for which a tree would take ten times the memory.
#[derive(Debug, Default)]
struct Few(Vec<Key>);

/// Keys under one heading of an index.
trait Keys: Default {
    fn insert(&mut self, key: &Key);
    fn remove(&mut self, key: &str);
    fn is_empty(&self) -> bool;
}

impl Keys for Few {
    fn insert(&mut self, key: &Key) {
        if let Err(at) = self.0.binary_search(key) {
            self.0.reserve_exact(1);
            self.0.insert(at, key.clone());
        }
    }

    fn remove(&mut self, key: &str) {
        if let Ok(at) = self.0.binary_search_by(|have| (**have).cmp(key)) {
            self.0.remove(at);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Keys for BTreeSet<Key> {
    fn insert(&mut self, key: &Key) {
        Self::insert(self, key.clone());
    }

    fn remove(&mut self, key: &str) {
        Self::remove(self, key);
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

/// All wishes, indexed.
#[derive(Debug, Default)]
pub struct Desired {
    wishes: BTreeMap<Key, Wish>,
    by_slot: HashMap<NetnsSlot, BTreeSet<Key>>,
    by_peer: HashMap<Box<str>, Few>,
    by_place: HashMap<(NetnsSlot, HostIfName), Few>,
    by_ip: HashMap<(NetnsSlot, IpAddr), Few>,
    /// By the name under which someone else's TAP appears.
    by_temporary: HashMap<HostIfName, Few>,
}

impl Desired {
    /// Sets a wish; the one that was there before is returned.
    pub fn put(&mut self, wish: Wish) -> Option<Wish> {
        let before = self.remove(&wish.key.clone());
        if let (Some(slot), Ok(spec)) = (wish.slot(), &wish.spec) {
            file(&mut self.by_place, (slot.clone(), spec.host_if_name.clone()), &wish.key);
            for address in &spec.addresses {
                file(&mut self.by_ip, (slot.clone(), address.ip()), &wish.key);
            }
            file(&mut self.by_slot, slot, &wish.key);
        }
        if let Some(peer) = wish.peer() {
            file(&mut self.by_peer, peer.into(), &wish.key);
        }
        if let Some(temporary) = wish.temporary() {
            file(&mut self.by_temporary, temporary.clone(), &wish.key);
        }
        self.wishes.insert(wish.key.clone(), wish);
        before
    }

    /// Removes a wish.
    pub fn remove(&mut self, key: &str) -> Option<Wish> {
        let wish = self.wishes.remove(key)?;
        if let (Some(slot), Ok(spec)) = (wish.slot(), &wish.spec) {
            unfile(&mut self.by_place, &(slot.clone(), spec.host_if_name.clone()), key);
            for address in &spec.addresses {
                unfile(&mut self.by_ip, &(slot.clone(), address.ip()), key);
            }
            unfile(&mut self.by_slot, &slot, key);
        }
        if let Some(peer) = wish.peer() {
            unfile(&mut self.by_peer, &Box::from(peer), key);
        }
        if let Some(temporary) = wish.temporary() {
            unfile(&mut self.by_temporary, temporary, key);
        }
        Some(wish)
    }

    /// One wish.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Wish> {
        self.wishes.get(key)
    }

    /// One wish, to change its flags.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Wish> {
        self.wishes.get_mut(key)
    }

    /// All wishes in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Wish> {
        self.wishes.values()
    }

    /// The number of wishes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wishes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wishes.is_empty()
    }

    /// Wishes that need this namespace slot.
    pub fn at_slot(&self, slot: &NetnsSlot) -> impl Iterator<Item = &Key> {
        self.by_slot.get(slot).into_iter().flatten()
    }

    /// All slots that wishes need.
    pub fn slots(&self) -> impl Iterator<Item = &NetnsSlot> {
        self.by_slot.keys()
    }

    /// How many wishes need this slot.
    #[must_use]
    pub fn slot_users(&self, slot: &NetnsSlot) -> usize {
        self.by_slot.get(slot).map_or(0, BTreeSet::len)
    }

    /// Wishes that name this one as their other end.
    pub fn naming(&self, key: &str) -> impl Iterator<Item = &Key> {
        self.by_peer.get(key).into_iter().flat_map(|few| &few.0)
    }

    /// Wishes for this link name in this slot.
    pub fn claims(&self, slot: &NetnsSlot, name: &HostIfName) -> impl Iterator<Item = &Key> {
        self.by_place.get(&(slot.clone(), name.clone())).into_iter().flat_map(|few| &few.0)
    }

    /// Wishes for the TAP that appears under this name.
    pub fn expecting(&self, temporary: &HostIfName) -> impl Iterator<Item = &Key> {
        self.by_temporary.get(temporary).into_iter().flat_map(|few| &few.0)
    }

    /// Wishes for a TAP that someone else makes.
    pub fn expecting_any(&self) -> impl Iterator<Item = &Key> {
        self.by_temporary.values().flat_map(|few| &few.0)
    }

    /// Wishes for this address in this slot.
    pub fn with_ip(&self, slot: &NetnsSlot, ip: IpAddr) -> impl Iterator<Item = &Key> {
        self.by_ip.get(&(slot.clone(), ip)).into_iter().flat_map(|few| &few.0)
    }
}

fn file<H: Hash + Eq, K: Keys>(index: &mut HashMap<H, K>, heading: H, key: &Key) {
    index.entry(heading).or_default().insert(key);
}

fn unfile<H: Hash + Eq, K: Keys>(index: &mut HashMap<H, K>, heading: &H, key: &str) {
    if let Some(keys) = index.get_mut(heading) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(heading);
        }
    }
}
