//! Rules for traffic that no policy may stop: what one is, and why a text is none.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Traffic that no policy may stop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BypassRule {
    direction: Direction,
    protocol: Protocol,
    network: IpNet,
    port: Option<u16>,
}

/// Direction in which a connection is opened, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards the host.
    Ingress,
    /// From the host.
    Egress,
}

/// Protocol of a bypass rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, of the network's family.
    Icmp,
    /// Everything.
    Ip,
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: value `{}` {rule}", value.escape_debug())]
pub struct BypassRuleError {
    /// The field at fault: `direction`, `protocol`, `cidr` or `port`.
    pub field: &'static str,
    /// What it holds.
    pub value: String,
    /// The rule that it breaks, as a phrase that follows the value.
    pub rule: &'static str,
}

impl BypassRule {
    /// Reads the four fields as they are written; an empty `port` stands for all ports.
    ///
    /// The words are those of Antrea's `policyBypassRules`. Other than there, a port goes with `tcp` and `udp` only (Open vSwitch
    /// refuses the rest), and IPv6 networks work.
    ///
    /// # Errors
    /// The first field that is wrong, with its rule.
    pub fn parse(direction: &str, protocol: &str, cidr: &str, port: &str) -> Result<Self, BypassRuleError> {
        let bad = |field, value: &str, rule| BypassRuleError { field, value: value.to_owned(), rule };
        let direction = match direction {
            "ingress" => Direction::Ingress,
            "egress" => Direction::Egress,
            other => return Err(bad("direction", other, "must be one of `ingress`, `egress`")),
        };
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "icmp" => Protocol::Icmp,
            "ip" => Protocol::Ip,
            other => return Err(bad("protocol", other, "must be one of `tcp`, `udp`, `icmp`, `ip`")),
        };
        let rule = "must be a network with its prefix length, as in `192.0.2.0/24` or `2001:db8::/32`";
        let network = network(cidr).ok_or_else(|| bad("cidr", cidr, rule))?;
        let port = match (port, protocol) {
            ("", _) => None,
            (text, Protocol::Tcp | Protocol::Udp) => {
                let number = text.parse::<u16>().ok().filter(|number| *number > 0);
                Some(number.ok_or_else(|| bad("port", text, "must be 1 to 65535; leave it out for all ports"))?)
            }
            (text, Protocol::Icmp | Protocol::Ip) => return Err(bad("port", text, "goes with protocol `tcp` or `udp` only")),
        };
        Ok(Self { direction, protocol, network, port })
    }

    /// The four fields as [`BypassRule::parse`] reads them.
    #[must_use]
    pub fn fields(&self) -> [String; 4] {
        let port = self.port.map(|port| port.to_string()).unwrap_or_default();
        [self.direction.to_string(), self.protocol.to_string(), self.network.to_string(), port]
    }

    /// Which way, seen from the host.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Which protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The other side's network, without host bits.
    #[must_use]
    pub fn network(&self) -> IpNet {
        self.network
    }

    /// The host's port (ingress) or the other side's (egress); `None`: all. Only TCP and UDP have one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

/// A network; leading zeros, which some readers take for octal, are refused by the address parser of the standard library.
fn network(text: &str) -> Option<IpNet> {
    let (ip, length) = text.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = length.parse().ok().filter(|_| digits)?;
    IpNet::new(ip, length).map(|net| net.trunc()).ok()
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Ip => "ip",
        })
    }
}

impl fmt::Display for BypassRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.direction, self.protocol, self.network)?;
        self.port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_rules() {
        for (fields, text) in [
            (["ingress", "tcp", "192.0.2.7/24", "22"], "ingress tcp 192.0.2.0/24 port 22"),
            (["egress", "udp", "2001:db8::1/32", "65535"], "egress udp 2001:db8::/32 port 65535"),
            (["egress", "icmp", "::/0", ""], "egress icmp ::/0"),
            (["ingress", "ip", "0.0.0.0/0", ""], "ingress ip 0.0.0.0/0"),
            (["ingress", "tcp", "1.1.1.1/32", ""], "ingress tcp 1.1.1.1/32"),
        ] {
            let [direction, protocol, cidr, port] = fields;
            let rule = BypassRule::parse(direction, protocol, cidr, port).unwrap();
            assert_eq!(rule.to_string(), text);
            let [direction, protocol, cidr, port] = rule.fields();
            assert_eq!(BypassRule::parse(&direction, &protocol, &cidr, &port), Ok(rule));
        }
    }

    /// C86.
    #[test]
    fn each_bad_rule_names_its_field() {
        for (direction, protocol, cidr, port, field) in [
            ("in", "tcp", "::/0", "", "direction"),
            ("Ingress", "tcp", "::/0", "", "direction"),
            ("ingress", "tcpp", "::/0", "", "protocol"),
            ("ingress", "", "::/0", "", "protocol"),
            ("ingress", "tcp", "1.1.1.1", "", "cidr"),
            ("ingress", "tcp", "1.1.1.1/33", "", "cidr"),
            ("ingress", "tcp", "1.1.1.1/+8", "", "cidr"),
            ("ingress", "tcp", "1.1.1.01/8", "", "cidr"),
            ("ingress", "tcp", "::/129", "", "cidr"),
            ("ingress", "tcp", "", "", "cidr"),
            ("ingress", "icmp", "::/0", "1", "port"),
            ("ingress", "ip", "::/0", "1", "port"),
            ("ingress", "tcp", "::/0", "0", "port"),
            ("ingress", "udp", "::/0", "70000", "port"),
            ("ingress", "udp", "::/0", "-1", "port"),
        ] {
            let error = BypassRule::parse(direction, protocol, cidr, port).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }
}
