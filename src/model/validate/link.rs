//! What belongs to the link itself: its kind and that kind's settings, its hardware address, its MTU.

use super::Findings;
use crate::model::interface::{MTU_DEFAULT, MTU_MAX, MTU_MAX_TAP, MTU_MIN, MTU_MIN_IPV6};
use crate::model::{HostIfName, InterfaceKind, InterfaceName, MacAddr, Reason, TapMode, TapSpec};
use crate::proto::ligato::interface::Type;
use crate::proto::ligato::{Interface, Tap, tap};

/// A uid or gid of all ones is "no change" to the kernel, which refuses it as an owner.
const NOBODY: u32 = u32::MAX;

/// The kind with its settings. `host_if_name` is the link's name, where it is legal.
pub fn kind(wish: &Interface, host_if_name: Option<&HostIfName>, findings: &mut Findings) -> Option<InterfaceKind> {
    let kind = wish.r#type();
    if kind != Type::Veth && wish.veth.is_some() {
        findings.warn(|| format!("veth is ignored: type is {}", kind.as_str_name()));
    }
    match kind {
        Type::Veth => {
            if wish.tap.is_some() {
                findings.warn(|| "tap is ignored: type is VETH".to_owned());
            }
            peer(wish, findings).map(|peer| InterfaceKind::Veth { peer })
        }
        Type::AutoTap => temporary(wish.tap.as_ref(), host_if_name, findings).map(|temporary| InterfaceKind::AutoTap { temporary }),
        Type::Tap => tap(wish.tap.as_ref(), findings).map(InterfaceKind::Tap),
    }
}

fn peer(wish: &Interface, findings: &mut Findings) -> Option<InterfaceName> {
    let text = wish.veth.as_ref().map_or("", |v| &v.peer_if_name);
    let peer = InterfaceName::new(text);
    let broken = match &peer {
        Err(_) if text.is_empty() => Some("must name the other end of the pair".to_owned()),
        Err(why) => Some(why.to_string()),
        Ok(peer) if peer.as_str() == wish.name => Some("is this interface itself".to_owned()),
        Ok(_) => None,
    };
    let Some(rule) = broken else { return peer.ok() };
    findings.error(Reason::BadPeer, "veth.peer_if_name", text, rule, "write the logical name of the other end");
    None
}

/// Under which name the TAP of someone else appears.
fn temporary(tap: Option<&Tap>, host_if_name: Option<&HostIfName>, findings: &mut Findings) -> Option<HostIfName> {
    let Some(tap) = tap else { return host_if_name.cloned() };
    for (field, set) in [
        ("mode", tap.mode != 0),
        ("owner", tap.owner.is_some()),
        ("group", tap.group.is_some()),
        ("multi_queue", tap.multi_queue),
        ("vnet_hdr", tap.vnet_hdr),
    ] {
        if set {
            findings.warn(|| format!("tap.{field} is ignored: type is AUTO_TAP, whose TAP is made by someone else"));
        }
    }
    if tap.temp_if_name.is_empty() {
        return host_if_name.cloned();
    }
    let broken = |why: crate::model::name::NameError| {
        let hint = "write the name under which the TAP appears";
        findings.error(Reason::BadName, "tap.temp_if_name", &tap.temp_if_name, why.to_string(), hint);
    };
    HostIfName::new(&tap.temp_if_name).map_err(broken).ok()
}

fn tap(tap: Option<&Tap>, findings: &mut Findings) -> Option<TapSpec> {
    let tap = tap.cloned().unwrap_or_default();
    if !tap.temp_if_name.is_empty() {
        findings.warn(|| "tap.temp_if_name is ignored: type is TAP, which is made under its own name".to_owned());
    }
    let ids = [("tap.owner", tap.owner), ("tap.group", tap.group)];
    let impossible = ids.into_iter().filter(|(_, id)| *id == Some(NOBODY));
    let mut legal = true;
    for (field, _) in impossible {
        legal = false;
        let rule = format!("must be less than {NOBODY}");
        findings.error(Reason::BadType, field, &NOBODY.to_string(), rule, "leave it out for nobody");
    }
    legal.then(|| TapSpec { mode: mode(&tap), owner: tap.owner, group: tap.group, multi_queue: tap.multi_queue, vnet_hdr: tap.vnet_hdr })
}

fn mode(tap: &Tap) -> TapMode {
    match tap.mode() {
        tap::Mode::Tap => TapMode::Tap,
        tap::Mode::Tun => TapMode::Tun,
    }
}

fn is_tun(wish: &Interface) -> bool {
    wish.r#type() == Type::Tap && wish.tap.as_ref().is_some_and(|tap| mode(tap) == TapMode::Tun)
}

/// Of a TAP, the header counts; of one that someone else makes it is not known beforehand whether it has one.
fn most_mtu(wish: &Interface) -> u32 {
    if wish.r#type() == Type::Tap && !is_tun(wish) { MTU_MAX_TAP } else { MTU_MAX }
}

/// The hardware address; `Some(None)` where none is wished.
#[allow(clippy::option_option, reason = "the outer one says whether the field is legal, as for every other field")]
pub fn mac(wish: &Interface, findings: &mut Findings) -> Option<Option<MacAddr>> {
    let text = &wish.phys_address;
    if text.is_empty() {
        return Some(None);
    }
    let tun = is_tun(wish);
    let rule = match MacAddr::parse(text) {
        Ok(_) if tun => "is given to a TUN, which has no hardware address".to_owned(),
        Ok(mac) => return Some(Some(mac)),
        Err(why) => why.to_string(),
    };
    findings.error(Reason::BadMac, "phys_address", text, rule, "correct it, or leave it out for a generated one");
    None
}

/// The MTU in bytes; 0 is the default.
pub fn mtu(wish: &Interface, ipv6: bool, findings: &mut Findings) -> Option<u32> {
    let (wished, most) = (wish.mtu, most_mtu(wish));
    let (least, why) = if ipv6 { (MTU_MIN_IPV6, ", the least that IPv6 works with,") } else { (MTU_MIN, "") };
    if wished == 0 {
        return Some(MTU_DEFAULT);
    }
    if (least..=most).contains(&wished) {
        return Some(wished);
    }
    let rule = format!("must be {least}{why} to {most}");
    findings.error(Reason::BadMtu, "mtu", &wished.to_string(), rule, format!("correct it, or leave it out for {MTU_DEFAULT}"));
    None
}
