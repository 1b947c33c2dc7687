//! How a link says whose it is. Rendered and parsed here only.
//!
//! Every link that we make carries a group from its first moment (an alias in a creating request is silently ignored by the kernel), and an
//! alias right after. What carries none of the marks is never changed or removed.

use crate::model::{AgentLabel, HostIfName, InterfaceName, LinkKind, ObservedLink};

const ALIAS_WORD: &str = "vnf-agent";
const OWNED: u32 = 0x5600_0000;
const DOOMED: u32 = 0x5700_0000;
/// The bits of a group that tell labels apart.
const GROUP_HASH: u32 = 0x00ff_ffff;

/// Longest alias that the kernel takes, in bytes (`IFALIASZ` less the closing NUL).
const ALIAS_MAX: usize = 255;
/// Room that is kept in every alias for the words of any kind and a temporary link name.
const ALIAS_WORDS: usize = "autotap".len() + 1 + 1 + super::name::HOST_IF_NAME_MAX;

/// `IFA_PROTO` of addresses that we add: only those are ours to remove.
pub const ADDRESS_PROTO: u8 = 118;

/// Which kind of object a mark stands on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum MarkKind {
    /// An end of a veth pair that we made.
    Veth,
    /// A TAP that we made.
    Tap,
    /// Someone else's TAP that we moved: only ever given back, never deleted.
    AutoTap,
}

impl MarkKind {
    fn word(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Tap => "tap",
            Self::AutoTap => "autotap",
        }
    }
}

/// What a link's marks say, seen by one agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Not ours: no mark, or another agent's.
    Foreign,
    /// Ours, made a moment ago: the group is there, the alias not yet.
    Unnamed,
    /// Ours, with its logical name.
    Named(MarkKind, InterfaceName),
    /// Ours and on its way out, whatever its alias says.
    Doomed(Option<(MarkKind, InterfaceName)>),
}

/// One agent as an owner of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    label: AgentLabel,
    hash: u32,
    alias_prefix: String,
}

impl Owner {
    /// The owner with this label.
    #[must_use]
    pub fn new(label: AgentLabel) -> Self {
        let hash = fnv1a_32(label.as_str().as_bytes()) & GROUP_HASH;
        let alias_prefix = format!("{ALIAS_WORD}:{label}:");
        Self { label, hash, alias_prefix }
    }

    /// The label.
    #[must_use]
    pub fn label(&self) -> &AgentLabel {
        &self.label
    }

    /// Link group of everything that we make.
    #[must_use]
    pub fn group(&self) -> u32 {
        OWNED | self.hash
    }

    /// Link group of what is being deleted; the only one ever deleted by group.
    #[must_use]
    pub fn doomed_group(&self) -> u32 {
        DOOMED | self.hash
    }

    /// The alias of a link that we made. A name that does not fit stands there as [`Owner::written_name`].
    #[must_use]
    pub fn alias(&self, kind: MarkKind, name: &InterfaceName) -> String {
        format!("{}{}:{}", self.alias_prefix, kind.word(), self.written_name(name))
    }

    /// The alias of someone else's TAP that serves a wish; it says under which name the TAP was found and is given back.
    #[must_use]
    pub fn auto_tap_alias(&self, name: &InterfaceName, temporary: &HostIfName) -> String {
        format!("{}:{temporary}", self.alias(MarkKind::AutoTap, name))
    }

    /// The name under which a TAP with such an alias was found.
    #[must_use]
    pub fn temporary(&self, link: &ObservedLink) -> Option<HostIfName> {
        let (kind, _) = self.parse_alias(link.alias.as_deref()?)?;
        let (_, temporary) = link.alias.as_deref()?.rsplit_once(':')?;
        HostIfName::new(temporary).ok().filter(|_| kind == MarkKind::AutoTap)
    }

    /// A logical name as it stands in aliases: itself, or its beginning and a hash of the whole where an alias (255 bytes) has no room for it.
    #[must_use]
    pub fn written_name(&self, name: &InterfaceName) -> InterfaceName {
        let room = ALIAS_MAX - self.alias_prefix.len() - ALIAS_WORDS;
        let text = name.as_str();
        if text.len() <= room {
            return name.clone();
        }
        let hash = format!("~{:016x}", fnv1a_64(text.as_bytes()));
        let mut cut = room - hash.len();
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        // Shorter than a legal name and made of its parts: always legal.
        InterfaceName::new(&format!("{}{hash}", &text[..cut])).unwrap_or_else(|_| name.clone())
    }

    /// Reads the marks of a link. On a kind that we never make (`lo`, a bridge, a NIC) they are someone's forgery or mistake and mean nothing.
    #[must_use]
    pub fn mark(&self, link: &ObservedLink) -> Mark {
        if matches!(link.kind, LinkKind::Other(_)) {
            return Mark::Foreign;
        }
        let named = link.alias.as_deref().and_then(|alias| self.parse_alias(alias));
        // Only a TAP can be one that someone else made for a wish.
        let named = named.filter(|(kind, _)| *kind != MarkKind::AutoTap || matches!(link.kind, LinkKind::Tun(_)));
        let others = named.is_none() && link.alias.as_deref().is_some_and(has_our_words);
        if others {
            // Another agent's alias; two labels may share a group (24 bits).
            Mark::Foreign
        } else if link.group == self.doomed_group() {
            Mark::Doomed(named)
        } else if let Some((kind, name)) = named {
            Mark::Named(kind, name)
        } else if link.group == self.group() {
            Mark::Unnamed
        } else {
            Mark::Foreign
        }
    }

    fn parse_alias(&self, alias: &str) -> Option<(MarkKind, InterfaceName)> {
        let (kind, name) = alias.strip_prefix(&self.alias_prefix)?.split_once(':')?;
        let (kind, name) = match kind {
            "veth" => (MarkKind::Veth, name),
            "tap" => (MarkKind::Tap, name),
            // The temporary name holds no colon (no link name does), so it is what follows the last one.
            "autotap" => (MarkKind::AutoTap, name.rsplit_once(':')?.0),
            _ => return None,
        };
        Some((kind, InterfaceName::new(name).ok()?))
    }
}

/// What marks a link as some agent's, whichever agent that is, in words; `None` when nothing does.
#[must_use]
pub fn mark_of_any(group: u32, alias: &str) -> Option<String> {
    if has_our_words(alias) {
        return Some(format!("its alias `{}`", alias.escape_debug()));
    }
    let is_ours = [OWNED, DOOMED].contains(&(group & !GROUP_HASH));
    is_ours.then(|| format!("its group {group:#x}"))
}

/// Whether a link carries a mark of any agent.
#[must_use]
pub fn is_marked(link: &ObservedLink) -> bool {
    mark_of_any(link.group, link.alias.as_deref().unwrap_or_default()).is_some()
}

/// Whether an alias is that of some agent.
fn has_our_words(alias: &str) -> bool {
    alias.strip_prefix(ALIAS_WORD).is_some_and(|rest| rest.starts_with(':'))
}

/// FNV-1a, 32 bits (draft-eastlake-fnv): the same in every version of this program, so it may be written down.
#[must_use]
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

/// FNV-1a, 64 bits.
fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{IfIndex, TunInfo};

    fn owner(label: &str) -> Owner {
        Owner::new(AgentLabel::new(label).unwrap())
    }

    fn link(group: u32, alias: Option<&str>) -> ObservedLink {
        ObservedLink { group, alias: alias.map(Into::into), ..ObservedLink::bare(IfIndex::new(7).unwrap(), "x", LinkKind::Veth) }
    }

    #[test]
    fn known_hash() {
        // Reference vectors of the FNV draft.
        assert_eq!(fnv1a_32(b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
        assert_eq!(owner("foobar").group(), 0x569c_f968);
        assert_eq!(owner("foobar").doomed_group(), 0x579c_f968);
    }

    #[test]
    fn long_names_fit_and_stay_apart() {
        let o = owner(&"l".repeat(63));
        let name = |last: &str| InterfaceName::new(&format!("{}{last}", "ü".repeat(126))).unwrap();
        for kind in [MarkKind::Veth, MarkKind::Tap] {
            assert!(o.alias(kind, &name("a")).len() <= ALIAS_MAX);
        }
        assert_ne!(o.alias(MarkKind::Veth, &name("a")), o.alias(MarkKind::Veth, &name("b")));
        let written = o.written_name(&name("a"));
        assert_eq!(o.mark(&link(0, Some(&o.alias(MarkKind::Veth, &name("a"))))), Mark::Named(MarkKind::Veth, written.clone()));
        assert_eq!(o.written_name(&written), written, "a written name is written as it is");
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn what_we_never_make_is_never_ours() {
        let o = owner("vpp1");
        for kind in ["", "bridge", "vlan"] {
            for (group, alias) in [(o.group(), None), (o.doomed_group(), None), (0, Some("vnf-agent:vpp1:veth:x"))] {
                let forged = ObservedLink { kind: LinkKind::Other(kind.into()), ..link(group, alias) };
                assert_eq!(o.mark(&forged), Mark::Foreign, "{forged:?}");
            }
        }
    }

    #[test]
    fn marks() {
        let o = owner("vpp1");
        let name = InterfaceName::new("a:b c").unwrap();
        let alias = o.alias(MarkKind::Veth, &name);
        assert_eq!(alias, "vnf-agent:vpp1:veth:a:b c");
        assert_eq!(o.mark(&link(0, None)), Mark::Foreign);
        assert_eq!(o.mark(&link(0, Some(&alias))), Mark::Named(MarkKind::Veth, name.clone()));
        assert_eq!(o.mark(&link(o.group(), None)), Mark::Unnamed);
        assert_eq!(o.mark(&link(o.group(), Some("a user's words"))), Mark::Unnamed);
        assert_eq!(o.mark(&link(o.doomed_group(), Some(&alias))), Mark::Doomed(Some((MarkKind::Veth, name))));
        // Another agent's link stays foreign even where the groups collide.
        assert_eq!(o.mark(&link(o.group(), Some("vnf-agent:vpp10:veth:x"))), Mark::Foreign);
        assert_eq!(owner("vpp10").mark(&link(0, Some("vnf-agent:vpp1:veth:x"))), Mark::Foreign);
        let of_any = [link(0, Some(&alias)), link(owner("vpp10").group(), None), link(o.doomed_group(), Some("a user's words"))];
        assert!(of_any.iter().all(is_marked) && !is_marked(&link(0, Some("vnf-agents: mine"))) && !is_marked(&link(7, None)));
        let alias = "vnf-agent:vpp1:autotap:t:1:tmp0";
        assert_eq!(o.mark(&link(0, Some(alias))), Mark::Foreign, "a veth is nobody's TAP");
        let tap = ObservedLink { kind: LinkKind::Tun(TunInfo::default()), ..link(0, Some(alias)) };
        let (name, temporary) = (InterfaceName::new("t:1").unwrap(), HostIfName::new("tmp0").unwrap());
        assert_eq!(o.mark(&tap), Mark::Named(MarkKind::AutoTap, name.clone()));
        assert_eq!((o.temporary(&tap), o.auto_tap_alias(&name, &temporary).as_str()), (Some(temporary), alias));
        assert_eq!(o.temporary(&link(0, Some("vnf-agent:vpp1:tap:t:1:tmp0"))), None);
    }
}
