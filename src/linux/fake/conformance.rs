//! A fixed series of requests whose answers must be the same from the fake kernel and from a real one.
//!
//! It holds no expectations: whoever runs it on two kernels compares the texts. Left out is what a real kernel settles later or by its own
//! numbers: indexes, generated hardware addresses, operational states, link-locals, duplicate address detection, deletions.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::linux::{Done, ExpectedMark, Kernel, KernelError, KernelOp, LinkChange, NewAddress, NewLink, NewTap};
use crate::model::{HostIfName, IfIndex, InterfaceAddress, LinkId, LinkKind, MacAddr, NetnsId, TapMode, TapSpec};

/// Group of the links that the script makes.
const GROUP: u32 = 0x5600_0001;

struct Script<'a> {
    kernel: &'a mut dyn Kernel,
    a: NetnsId,
    b: NetnsId,
    text: String,
}

/// Runs the series in two attached namespaces that hold nothing but `lo`, and writes down every answer and what then stands there.
///
/// # Errors
/// When a namespace cannot be read, or a link that the script needs is not there.
pub fn transcript(kernel: &mut dyn Kernel, a: NetnsId, b: NetnsId) -> Result<String> {
    let mut script = Script { kernel, a, b, text: String::new() };
    script.creations()?;
    script.changes()?;
    script.ipv4()?;
    script.ipv6()?;
    script.taps()?;
    script.moves()?;
    Ok(script.text)
}

fn address(text: &str) -> Result<InterfaceAddress> {
    let (ip, prefix) = text.split_once('/').context("no prefix length")?;
    InterfaceAddress::new(ip.parse()?, prefix.parse()?).context("prefix too long")
}

fn name(text: &str) -> Result<Option<HostIfName>> {
    Ok(Some(HostIfName::new(text)?))
}

impl Script<'_> {
    fn creations(&mut self) -> Result<()> {
        let (a, b) = (self.a, self.b);
        self.create(("a0", a, 1500), ("b0", b, 9000), true)?;
        self.create(("same1", a, 1500), ("same2", a, 1500), false)?;
        for (first, second) in [
            (("a0", a, 1500), ("b1", b, 1500)),
            (("a1", a, 1500), ("b0", b, 1500)),
            (("lo", a, 1500), ("b1", b, 1500)),
            (("a1", a, 1500), ("a1", a, 1500)),
            (("a1", a, 67), ("b1", b, 1500)),
            (("a1", a, 1500), ("b1", b, 65536)),
        ] {
            self.create(first, second, false)?;
        }
        self.create(("low", a, 68), ("high", b, 65535), false)
    }

    fn changes(&mut self) -> Result<()> {
        let mac = Some(MacAddr::new([2, 0, 0, 0, 0, 7])?);
        let all = LinkChange { name: name("same2")?, mac, mtu: Some(1400), up: Some(true), group: Some(77), alias: Some("first".into()) };
        self.set("same1", all.clone())?;
        self.set("same1", LinkChange { mtu: Some(67), group: Some(78), ..all.clone() })?;
        self.set("same1", LinkChange { name: name("same1")?, ..all })?;
        self.set("same1", LinkChange { alias: Some("x".repeat(255)), ..LinkChange::default() })?;
        self.set("same1", LinkChange { alias: Some("x".repeat(256)), ..LinkChange::default() })?;
        self.set("same1", LinkChange { alias: Some(String::new()), ..LinkChange::default() })?;
        self.set("same1", LinkChange { up: Some(false), name: name("renamed")?, ..LinkChange::default() })?;
        let link = self.link("a0")?;
        let expected = ExpectedMark { group: 5, alias: None };
        self.run("delete what has another mark", &KernelOp::DeleteLink { link, doomed_group: 6, expected })?;
        let ifindex = IfIndex::new(9999).context("an index")?;
        let nobody = LinkId { netns: self.a, ifindex };
        let change = LinkChange { mtu: Some(1400), ..LinkChange::default() };
        self.run("set a link that is not there", &KernelOp::SetLink { link: nobody, change })
    }

    fn ipv4(&mut self) -> Result<()> {
        for text in ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/25", "10.0.0.1/24", "10.0.0.1/32", "10.5.0.1/16", "10.0.0.4/24"] {
            self.add("a0", text)?;
        }
        for text in ["10.9.9.9/24", "10.0.0.1/25", "10.0.0.2/24", "10.0.0.1/24", "10.0.0.1/24"] {
            self.remove("a0", text)?;
        }
        Ok(())
    }

    fn ipv6(&mut self) -> Result<()> {
        for text in ["fd00::1/64", "fd00::2/64", "fd00::1/64", "fd00::1/65", "::1/128"] {
            self.add("a0", text)?;
        }
        self.remove("a0", "fd00::2/65")?;
        let mac = Some(MacAddr::new([2, 0, 0, 0, 0, 9])?);
        self.set("a0", LinkChange { mac, ..LinkChange::default() })?;
        self.set("a0", LinkChange { up: Some(false), ..LinkChange::default() })?;
        self.add("a0", "fd00::3/64")?;
        self.set("a0", LinkChange { up: Some(true), ..LinkChange::default() })?;
        self.enable("a0")?;
        self.set("a0", LinkChange { mtu: Some(1279), ..LinkChange::default() })?;
        self.add("a0", "fd00::4/64")?;
        self.enable("a0")?;
        self.set("a0", LinkChange { mtu: Some(1280), ..LinkChange::default() })?;
        self.add("a0", "fd00::4/64")
    }

    fn taps(&mut self) -> Result<()> {
        use TapMode::{Tap, Tun};
        let plain = TapSpec { mode: Tap, owner: None, group: None, multi_queue: false, vnet_hdr: false };
        self.tap("t0", &plain, 1500, None, "first")?;
        self.tap("t0", &plain, 1500, None, "name taken")?;
        self.tap("a0", &plain, 1500, None, "name taken by a veth")?;
        let all = TapSpec { mode: Tap, owner: Some(1000), group: Some(0), multi_queue: true, vnet_hdr: true };
        self.tap("t1", &all, 65521, Some(7), "all set")?;
        self.tap("t2", &plain, 65522, None, "too large")?;
        self.tap("t2", &plain, 67, None, "too small")?;
        self.tap("t2", &plain, 1500, None, &"x".repeat(256))?;
        let tun = TapSpec { mode: Tun, ..plain };
        self.tap("u0", &tun, 1500, Some(8), "a TUN has no hardware address")?;
        self.tap("u0", &tun, 65535, None, "as large as can be")?;
        let mac = Some(MacAddr::new([2, 0, 0, 0, 0, 8])?);
        self.set("u0", LinkChange { mac, mtu: Some(1400), ..LinkChange::default() })?;
        self.set("t1", LinkChange { name: name("t2")?, mac, mtu: Some(1400), up: Some(false), group: Some(5), alias: None })?;
        self.set("t2", LinkChange { mtu: Some(65522), ..LinkChange::default() })?;
        self.add("t0", "10.1.0.1/24")?;
        self.add("t0", "fd00:1::1/64")?;
        self.add("u0", "10.2.0.1/24")
    }

    /// What is refused may have been moved all the same.
    fn moves(&mut self) -> Result<()> {
        let (a, b) = (self.a, self.b);
        let plain = TapSpec { mode: TapMode::Tap, owner: None, group: None, multi_queue: false, vnet_hdr: false };
        for name in ["m0", "m1", "m2", "m3"] {
            self.tap(name, &plain, 1500, None, name)?;
        }
        self.add("m0", "10.3.0.1/24")?;
        let mac = Some(MacAddr::new([2, 0, 0, 0, 0, 9])?);
        let all = LinkChange { name: name("eth0")?, mac, mtu: Some(1400), up: Some(true), group: Some(9), alias: Some("moved".into()) };
        self.move_to("m0", b, all.clone(), "moved")?;
        self.move_to("m1", b, LinkChange { name: name("eth0")?, alias: Some("never".into()), ..LinkChange::default() }, "never")?;
        self.move_to("m2", b, LinkChange { name: name("eth2")?, mtu: Some(65522), alias: Some("never".into()), ..all }, "never")?;
        self.run_move("eth0", b, a, LinkChange { name: name("m3")?, alias: Some(String::new()), ..LinkChange::default() }, None)?;
        let back = LinkChange { name: name("m1")?, up: Some(false), alias: Some(String::new()), ..LinkChange::default() };
        self.run_move("m1", b, a, back, None)
    }

    fn move_to(&mut self, link: &str, to: NetnsId, change: LinkChange, alias: &str) -> Result<()> {
        self.run_move(link, self.a, to, change, Some(alias))
    }

    fn run_move(&mut self, link: &str, from: NetnsId, to: NetnsId, change: LinkChange, alias: Option<&str>) -> Result<()> {
        let what = format!("move {link} {change:?}");
        let Ok(link) = self.link_in(from, link) else { return Ok(writeln!(self.text, "{what}: not there")?) };
        self.run(&what, &KernelOp::MoveLink { link, to, change, alias: alias.map(Into::into) })
    }

    fn tap(&mut self, name: &str, tap: &TapSpec, mtu: u32, mac: Option<u8>, alias: &str) -> Result<()> {
        let mac = mac.map(|last| MacAddr::new([2, 0, 0, 0, 0, last])).transpose()?;
        let link = NewLink { netns: self.a, name: HostIfName::new(name)?, mac, mtu };
        let what = format!("make {name} {tap:?} {mtu} {}", alias.get(..40).unwrap_or(alias));
        self.run(&what, &KernelOp::CreateTap(NewTap { link, tap: tap.clone(), group: GROUP, alias: alias.to_owned(), up: true }))
    }

    fn create(&mut self, a: (&str, NetnsId, u32), b: (&str, NetnsId, u32), a_up: bool) -> Result<()> {
        let end = |(name, netns, mtu)| anyhow::Ok(NewLink { netns, name: HostIfName::new(name)?, mac: None, mtu });
        let op = KernelOp::CreateVeth { a: end(a)?, b: end(b)?, group: GROUP, a_up };
        self.run(&format!("create {} {} / {} {}", a.0, a.2, b.0, b.2), &op)
    }

    fn set(&mut self, link: &str, change: LinkChange) -> Result<()> {
        let what = format!("set {link} {change:?}");
        let link = self.link(link)?;
        self.run(&what, &KernelOp::SetLink { link, change })
    }

    fn add(&mut self, link: &str, text: &str) -> Result<()> {
        let new = NewAddress { address: address(text)?, proto: 118, nodad: true, restore: None };
        let op = KernelOp::AddAddress { link: self.link(link)?, address: new };
        self.run(&format!("add {text} to {link}"), &op)
    }

    fn remove(&mut self, link: &str, text: &str) -> Result<()> {
        let op = KernelOp::RemoveAddress { link: self.link(link)?, address: address(text)? };
        self.run(&format!("remove {text} from {link}"), &op)
    }

    fn enable(&mut self, name: &str) -> Result<()> {
        let op = KernelOp::EnableIpv6 { link: self.link(name)?, name: name.into() };
        self.run(&format!("enable IPv6 on {name}"), &op)
    }

    fn link(&mut self, name: &str) -> Result<LinkId> {
        self.link_in(self.a, name)
    }

    fn link_in(&mut self, netns: NetnsId, name: &str) -> Result<LinkId> {
        let links = self.kernel.read_netns(netns)?.links;
        let link = links.iter().find(|link| &*link.name == name).with_context(|| format!("there is no link `{name}`"))?;
        Ok(LinkId { netns, ifindex: link.ifindex })
    }

    /// Runs one operation and writes down the answer and all links.
    fn run(&mut self, what: &str, op: &KernelOp) -> Result<()> {
        let answer = match self.kernel.execute(std::slice::from_ref(op)).pop() {
            Some(Ok(Done::Created { .. } | Done::CreatedTap(_))) => "created".to_owned(),
            Some(Ok(Done::Moved(_))) => "moved".to_owned(),
            Some(Ok(Done::Ok)) => "ok".to_owned(),
            Some(Ok(Done::AlreadySo)) => "already so".to_owned(),
            Some(Err(error)) => KernelError::errno_name(&error),
            None => "no answer".to_owned(),
        };
        writeln!(self.text, "{what}: {answer}")?;
        for (place, netns) in [("a", self.a), ("b", self.b)] {
            let mut links = self.kernel.read_netns(netns)?.links;
            // Which index a link gets is nobody's to rely on.
            links.sort_by(|one, other| one.name.cmp(&other.name));
            for link in links.iter().filter(|link| &*link.name != "lo") {
                let peer = link.peer.map_or("none", |peer| if peer.nsid.is_some() { "elsewhere" } else { "here" });
                let (up, alias) = (if link.admin_up { "up" } else { "down" }, link.alias.as_deref().unwrap_or("-"));
                write!(self.text, "    {place} {} mtu={} group={:#x} alias={alias} {up} peer={peer}", link.name, link.mtu, link.group)?;
                if let LinkKind::Tun(info) = link.kind {
                    write!(self.text, " {info:?}")?;
                }
                for address in link.addresses.iter().filter(|address| !address.kernel_made) {
                    let secondary = if address.secondary { " secondary" } else { "" };
                    write!(self.text, " [{} proto={}{secondary}]", address.address, address.proto)?;
                }
                writeln!(self.text)?;
            }
        }
        Ok(())
    }
}
