//! Reads what `ovs-ofctl --no-stats --no-names dump-flows` and `dump-ports-desc` print: pure.

use std::collections::BTreeSet;

use super::flows::{Cookie, Flow, FlowSet, OWNER_BITS, Standing};
use super::view::OfPort;

/// Priority of a flow that does not say one.
const DEFAULT_PRIORITY: u16 = 32768;

/// The flows in this text; lines that are none (some versions print a heading) are left out.
pub(super) fn read(text: &str) -> Vec<Standing> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Standing> {
    let (matches, actions) = line.trim().split_once(" actions=").or_else(|| Some(("", line.trim().strip_prefix("actions=")?)))?;
    let mut standing = Standing {
        cookie: Cookie(0),
        flow: Flow { table: 0, priority: DEFAULT_PRIORITY, matches: String::new(), actions: actions.trim().to_owned() },
    };
    let mut rest = Vec::new();
    for token in matches.split(',').map(str::trim).filter(|token| !token.is_empty()) {
        match token.split_once('=') {
            Some(("cookie", value)) => standing.cookie = Cookie(hexadecimal(value)?),
            Some(("table", value)) => standing.flow.table = value.parse().ok()?,
            Some(("priority", value)) => standing.flow.priority = value.parse().ok()?,
            _ => rest.push(token),
        }
    }
    standing.flow.matches = rest.join(",");
    Some(standing)
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Those among them that are ours.
pub(super) fn ours(standing: Vec<Standing>, owner: u64) -> BTreeSet<Standing> {
    standing.into_iter().filter(|standing| standing.cookie.0 & OWNER_BITS == owner).collect()
}

/// A flow of somebody else that matches the same at the same priority as one of these: adding ours would replace it.
pub(super) fn in_the_way(standing: &[Standing], owner: u64, wanted: &FlowSet) -> Option<Standing> {
    let key = |flow: &Flow| (flow.table, flow.priority, flow.matches.split(',').map(str::to_owned).collect::<BTreeSet<_>>());
    let wanted: BTreeSet<_> = wanted.iter().map(|(_, flow)| key(flow)).collect();
    standing.iter().find(|standing| standing.cookie.0 & OWNER_BITS != owner && wanted.contains(&key(&standing.flow))).cloned()
}

/// The ports in this text that take no packets, or send none. Each begins with its number and its name, and says further below how it is set.
pub(super) fn closed_ports(text: &str) -> BTreeSet<OfPort> {
    let (mut closed, mut port) = (BTreeSet::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(set) = line.strip_prefix("config:") {
            let is_closed = set.split_whitespace().any(|word| ["NO_RECV", "NO_FWD"].contains(&word));
            closed.extend(port.take().filter(|_| is_closed));
        } else if let Some((number, _)) = line.split_once('(').filter(|(_, rest)| rest.contains("): addr:")) {
            port = number.parse().ok().and_then(OfPort::new);
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AgentLabel, Owner};
    use crate::ovs::flows::PairNumbers;

    #[test]
    fn as_it_prints() {
        let text = "OFPST_FLOW reply (OF1.5) (xid=0x2):\n cookie=0x5600000000000002, table=201, priority=200,ct_state=-new+est actions=goto_table:205\n \
                    priority=0 actions=NORMAL\n cookie=0x7, actions=drop\n table=3, in_port=1 actions=resubmit(,4),output:2\n\n";
        let flow = |table, priority, matches: &str, actions: &str| Flow {
            table,
            priority,
            matches: matches.to_owned(),
            actions: actions.to_owned(),
        };
        let seen: Vec<(u64, Flow)> = read(text).into_iter().map(|standing| (standing.cookie.0, standing.flow)).collect();
        assert_eq!(
            seen,
            [
                (0x5600_0000_0000_0002, flow(201, 200, "ct_state=-new+est", "goto_table:205")),
                (0, flow(0, 0, "", "NORMAL")),
                (7, flow(0, 32768, "", "drop")),
                (0, flow(3, 32768, "in_port=1", "resubmit(,4),output:2")),
            ]
        );
    }

    #[test]
    fn ports_that_are_closed() {
        let port =
            |number: &str, set: &str| format!(" {number}(n): addr:02:00:00:00:00:01\n     config:     {set}\n     state:      LIVE\n");
        let ports = [port("1", "NO_FWD"), port("2", "PORT_DOWN NO_RECV NO_PACKET_IN"), port("3", "PORT_DOWN"), port("4", "0")];
        let text = format!("OFPST_PORT_DESC reply (OF1.5) (xid=0x2):\n{}{}", ports.concat(), port("LOCAL", "NO_FWD"));
        assert_eq!(closed_ports(&text).into_iter().map(|port| port.to_string()).collect::<Vec<_>>(), ["1", "2"]);
    }

    #[test]
    fn strangers_in_the_way() {
        let owner = Owner::new(AgentLabel::new("vpp1").unwrap());
        let pair = PairNumbers { host: OfPort::new(2).unwrap(), uplink: OfPort::new(1).unwrap() };
        let wanted = FlowSet::new(&owner, &[pair], &[]);
        let ours = Cookie::ours(&owner);
        let found = |text: &str| in_the_way(&read(text), ours, &wanted).map(|standing| standing.flow.actions);
        assert_eq!(found("table=0, priority=200,in_port=1,ip actions=drop"), Some("drop".to_owned()), "in any order");
        for free in ["priority=0 actions=NORMAL", "priority=200,in_port=3,ip actions=drop", "table=203, priority=100,ip actions=drop"] {
            assert_eq!(found(free), None, "{free}");
        }
        let own = format!("cookie={:#x}, priority=200,ip,in_port=1 actions=drop", ours | 5);
        assert_eq!(found(&own), None);
        let found: Vec<Cookie> = super::ours(read(&own), ours).into_iter().map(|standing| standing.cookie).collect();
        assert_eq!(found, [Cookie(ours | 5)]);
    }
}
