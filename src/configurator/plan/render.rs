//! Plans as text: one line per step, for the log, the history, the dry run and the golden tests.

use std::fmt;

use super::{Action, Plan, Step, Verdict};
use crate::model::{LinkChange, NewTap, TapMode};

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.subject.escape_debug();
        match &self.action {
            Action::CreateVeth { a, b, a_up, .. } => {
                write!(f, "create-veth {subject} names {} {}", a.name, b.name)?;
                write!(f, " mtu {} {}", a.mtu, b.mtu)?;
                for mac in [a.mac, b.mac].into_iter().flatten() {
                    write!(f, " mac {mac}")?;
                }
                f.write_str(if *a_up { " up" } else { "" })
            }
            Action::CreateTap(new) => write!(f, "create-tap {subject}{}", Tap(new)),
            Action::SetLink(_, change) => write!(f, "set-link {subject}{}", Changes(change)),
            Action::MoveLink { change, .. } => write!(f, "move-link {subject}{}", Changes(change)),
            Action::EnableIpv6(_, _) => write!(f, "enable-ipv6 {subject}"),
            Action::AddAddress(_, new) => {
                let how = if new.restore.is_some() { " as it was" } else { "" };
                write!(f, "add-address {subject} {}{how}", new.address)
            }
            Action::RemoveAddress(_, address) => write!(f, "remove-address {subject} {address}"),
            Action::DeleteLink { link, because, open, .. } => {
                write!(f, "delete-link {subject} index {}", link.ifindex)?;
                f.write_str(if *open { " under the program that has it open" } else { "" })?;
                if because.is_empty() { Ok(()) } else { write!(f, " to make it anew: {because}") }
            }
        }
    }
}

struct Tap<'a>(&'a NewTap);

impl fmt::Display for Tap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewTap { link, tap, up, .. } = self.0;
        write!(f, " name {} mode {}", link.name, if tap.mode == TapMode::Tap { "tap" } else { "tun" })?;
        for (what, id) in [("owner", tap.owner), ("group", tap.group)] {
            if let Some(id) = id {
                write!(f, " {what} {id}")?;
            }
        }
        f.write_str(if tap.multi_queue { " multi-queue" } else { "" })?;
        f.write_str(if tap.vnet_hdr { " vnet-hdr" } else { "" })?;
        write!(f, " mtu {}", link.mtu)?;
        if let Some(mac) = link.mac {
            write!(f, " mac {mac}")?;
        }
        f.write_str(if *up { " up" } else { "" })
    }
}

struct Changes<'a>(&'a LinkChange);

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkChange { name, mac, mtu, up, group, alias } = self.0;
        if let Some(name) = name {
            write!(f, " name {name}")?;
        }
        if let Some(mac) = mac {
            write!(f, " mac {mac}")?;
        }
        if let Some(mtu) = mtu {
            write!(f, " mtu {mtu}")?;
        }
        if let Some(up) = up {
            f.write_str(if *up { " up" } else { " down" })?;
        }
        if group.is_some() {
            f.write_str(" mark-group")?;
        }
        match alias.as_deref() {
            Some("") => f.write_str(" unmark")?,
            Some(_) => f.write_str(" mark-alias")?,
            None => {}
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            write!(f, "{:>3} {step}", number + 1)?;
            if !step.after.is_empty() {
                let after: Vec<String> = step.after.iter().map(|id| (id + 1).to_string()).collect();
                write!(f, " after {}", after.join(","))?;
            }
            writeln!(f)?;
        }
        for key in &self.queued {
            writeln!(f, "    {}: waits for the next pass", key.escape_debug())?;
        }
        for notice in &self.notices {
            writeln!(f, "    {notice}")?;
        }
        for (key, verdict) in &self.verdicts {
            writeln!(f, "    {}: {verdict}", key.escape_debug())?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolving => f.write_str("resolving"),
            Self::Invalid(errors) => write!(f, "invalid {}", errors.first().map_or("", |e| e.reason.word())),
            Self::Pending(waiting) => {
                write!(f, "pending {} for {}", waiting.reason.map_or("", |r| r.word()), waiting.waits_for.join(", "))
            }
            Self::Failed(reason, message) => write!(f, "failed {reason}: {message}"),
            Self::Finishing(what) => write!(f, "finishing: {what}"),
            Self::InWork(_) => f.write_str("in work"),
            Self::Settled(link) => write!(f, "settled, index {}", link.ifindex),
        }
    }
}
