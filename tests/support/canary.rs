//! Other people's links: planted where the agent works, under names and marks that almost are its own, and never to be touched.

use vnf_agent::model::{AgentLabel, Owner};

use super::Host;
use super::kernel::Link;

/// Foreign links of one host.
pub struct Canaries<'h> {
    host: &'h Host,
    planted: Vec<(String, Link)>,
}

impl<'h> Canaries<'h> {
    /// Plants bridges in these namespaces (the host's own if empty). Their names begin as `veth1` and `a1` do or differ in one letter;
    /// one has a neighbouring group, one another agent's alias, one an address.
    pub fn plant(host: &'h Host, namespaces: &[&str]) -> Self {
        let ours = Owner::new(AgentLabel::new("vpp1").expect("legal")).group();
        for netns in namespaces {
            let ip =
                |line: &str| if netns.is_empty() { host.run(&format!("ip {line}")) } else { host.run(&format!("ip -n {netns} {line}")) };
            for name in ["veth10", "veth", "veth1_", "Veth1", "a10000", "eth0"] {
                ip(&format!("link add {name} type bridge"));
            }
            ip(&format!("link set veth10 group {} up", ours ^ 1));
            ip("link set veth alias vnf-agent:vpp10:veth:veth1");
            ip("link set veth1_ alias vnf-agent");
            ip("address add 192.0.2.77/24 dev eth0");
        }
        let mut canaries = Self { host, planted: Vec::new() };
        canaries.planted = namespaces.iter().flat_map(|netns| canaries.read(netns)).collect();
        canaries
    }

    fn read(&self, netns: &str) -> Vec<(String, Link)> {
        self.host.links(netns).into_iter().filter(|link| link.kind == "bridge").map(|link| (netns.to_owned(), link)).collect()
    }

    /// # Panics
    /// When any of them is gone or differs, its index included.
    pub fn assert_untouched(&self) {
        // Each namespace is read once: tests ask this hundreds of times.
        for planted in self.planted.chunk_by(|a, b| a.0 == b.0) {
            let (netns, links) = (&planted[0].0, self.host.links(&planted[0].0));
            for (_, was) in planted {
                let is = links.iter().find(|link| link.name == was.name);
                assert_eq!(is, Some(was), "a foreign link in `{netns}` was touched");
            }
        }
    }
}
