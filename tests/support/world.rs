//! A host with etcd, an agent and strangers' links, and what all of it must look like for given wishes: computed from the wishes, not from
//! what the agent once did.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vnf_agent::model::{AgentLabel, Owner};

use super::etcd::status_key;
use super::tun::{NO_PI, TAP, Tap};
use super::{Agent, Canaries, Etcd, Host, eventually_ok, wish};

/// The namespaces of a [`World`]; the empty name is the agent's own.
pub const SPACES: [&str; 4] = ["", "red", "blue", "green"];

/// Namespaces, store, agent and strangers.
pub struct World<'h> {
    pub host: &'h Host,
    pub etcd: Etcd<'h>,
    pub agent: Agent<'h>,
    canaries: Canaries<'h>,
    /// The host without any link of the agent.
    bare: Value,
    /// TAPs of someone else, held open.
    taps: Vec<Tap>,
    /// All names that were ever written.
    names: BTreeSet<String>,
}

impl<'h> World<'h> {
    /// Strangers everywhere, new links without IPv6 in `red` and `green`, and an agent without a wish.
    pub fn new(host: &'h Host) -> Self {
        SPACES[1..].iter().for_each(|netns| host.add_netns(netns));
        let canaries = Canaries::plant(host, &SPACES);
        plant_pairs(host);
        for netns in ["red", "green"] {
            host.run(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        }
        let bare = host.digest(&SPACES);
        let etcd = host.start_etcd();
        let agent = host.agent().on_etcd().started();
        Self { host, etcd, agent, canaries, bare, taps: Vec::new(), names: BTreeSet::new() }
    }

    /// Someone else makes a TAP in the agent's own namespace, while there is no wish. Its hardware address and MTU are those that wishes give it: the
    /// agent does not know what they were before.
    pub fn add_tap(&mut self, name: &str, address: &str, mtu: u32) {
        self.taps.push(self.host.open_tap("", name, TAP | NO_PI));
        self.host.run(&format!("ip link set {name} address {address} mtu {mtu}"));
        self.bare = self.host.digest(&SPACES);
    }

    /// Makes these the only wishes in the store. It does not matter whether the agent runs.
    pub fn write(&mut self, wishes: &[Value]) {
        let wished: BTreeSet<String> = wishes.iter().map(|wish| wish::name(wish).to_owned()).collect();
        let gone: Vec<&str> = self.names.difference(&wished).map(String::as_str).collect();
        if !gone.is_empty() {
            self.etcd.delete_all(&gone);
        }
        if !wishes.is_empty() {
            self.etcd.put_all(wishes);
        }
        self.names = wished;
    }

    /// Whether kernel and statuses are what these wishes say, strangers included; if not, where they differ.
    pub fn compare(&self, wishes: &[Value]) -> Result<(), Value> {
        let (seen, links) = self.host.digest_and_links(&SPACES);
        let wanted = self.wanted(wishes);
        for netns in SPACES {
            if seen[netns] != wanted[netns] {
                return Err(difference(netns, &seen[netns], &wanted[netns]));
            }
        }
        let statuses = self.agent.vnfctl(&["-o", "json", "interfaces"]);
        let statuses: Vec<Value> = serde_json::from_str(&statuses.stdout).map_err(|error| error.to_string())?;
        if statuses.len() != wishes.len() {
            return Err(json!({"statuses": statuses, "wishes": wishes.len()}));
        }
        let index = |netns: &str, name: &Value| {
            let place = SPACES.iter().position(|place| *place == netns)?;
            links[place].iter().find(|link| link.name == *name).map(|link| link.index)
        };
        wishes.iter().try_for_each(|wish| compare_status(wish, &statuses, &index))?;
        self.compare_published(&statuses)
    }

    /// Whether the store holds these statuses and no others, all under one lease: one of an agent that died takes its statuses away.
    fn compare_published(&self, statuses: &[Value]) -> Result<(), Value> {
        let published = self.etcd.values(&status_key(""));
        let leases: BTreeSet<i64> = published.iter().map(|(_, lease)| *lease).collect();
        let known: BTreeMap<String, &Value> = statuses.iter().map(|status| (status["name"].to_string(), status)).collect();
        let right = |(published, _): &(Value, i64)| {
            let same = |status: &&Value| ["state", "if_index", "revision"].iter().all(|field| status[*field] == published[*field]);
            known.get(&published["name"].to_string()).is_some_and(same)
        };
        let all = published.len() == statuses.len() && published.iter().all(right) && leases.len() <= 1 && !leases.contains(&0);
        if all { Ok(()) } else { Err(json!({"published": published, "said": statuses})) }
    }

    /// The whole host as these wishes want it.
    fn wanted(&self, wishes: &[Value]) -> Value {
        let mut all = self.bare.clone();
        for wish in wishes {
            if let Some(temporary) = wish["tap"]["temp_if_name"].as_str() {
                let home = all[""].as_array_mut().expect("a list of links");
                home.retain(|link| link["ifname"] != temporary);
            }
            all[netns(wish)].as_array_mut().expect("a list of links").push(wanted_link(wish));
        }
        for netns in SPACES {
            all[netns].as_array_mut().expect("a list of links").sort_by_key(|link| link["ifname"].to_string());
        }
        all
    }

    /// Waits until everything is what these wishes say.
    ///
    /// # Panics
    /// When it is not, or only after so long that a periodic look must have helped: the agent's beat (10 s), the end of a lease (15 s), the
    /// regular reading of a namespace (24 to 36 s).
    pub fn settle(&self, wishes: &[Value], when: &str) {
        let begin = Instant::now();
        eventually_ok(&format!("everything is as wished, {when}"), || self.compare(wishes));
        assert!(begin.elapsed() < Duration::from_secs(9), "as wished only after {:?}, {when}", begin.elapsed());
        self.canaries.assert_untouched();
    }

    /// Starts the agent again after it was killed.
    pub fn recover(&mut self) {
        self.agent.wait();
        self.agent.start();
        self.agent.wait_ready();
    }
}

/// Whether a status says what its wish says; links have these indexes.
fn compare_status(wish: &Value, statuses: &[Value], index: &dyn Fn(&str, &Value) -> Option<u64>) -> Result<(), Value> {
    let status = statuses.iter().find(|status| status["name"] == wish["name"]).ok_or("a status is missing")?;
    let link = wanted_link(wish);
    let netns = netns(wish);
    let index = index(netns, &link["ifname"]);
    let addresses = |list: &Value| list.as_array().into_iter().flatten().map(Value::to_string).collect::<BTreeSet<_>>();
    let right = status["state"] == "CONFIGURED"
        && status["if_index"].as_u64() == index
        && status["host_if_name"] == link["ifname"]
        && status["phys_address"] == link["address"]
        && status["mtu"] == link["mtu"]
        && status["admin"] == if link["up"] == true { "UP" } else { "DOWN" }
        && (netns.is_empty() || status["namespace"]["reference"] == netns)
        && addresses(&status["ip_addresses"]) == addresses(&link["addresses"]);
    if right { Ok(()) } else { Err(json!({"status": status, "link": link, "index": index})) }
}

/// Strangers' pairs: names and marks near the agent's, across namespaces and within one.
fn plant_pairs(host: &Host) {
    let other = Owner::new(AgentLabel::new("vpp10").expect("legal"));
    host.run("ip -n red link add veth11 type veth peer name veth21 netns blue");
    host.run(&format!("ip -n red link set veth11 group {} up", other.doomed_group()));
    host.run("ip -n blue link set veth21 alias vnf-agent:vpp10:veth:veth2");
    host.run("ip -n green link add eth11 type veth peer name a11");
    host.run(&format!("ip -n green link set a11 group {}", other.group()));
    host.run("ip link add b11 type veth peer name a21 netns green");
}

fn netns(wish: &Value) -> &str {
    wish["namespace"]["name"].as_str().unwrap_or_default()
}

/// The link that a wish means, as in [`Host::digest`].
fn wanted_link(wish: &Value) -> Value {
    let name = wish::name(wish);
    let addresses: BTreeSet<&str> = wish["ip_addresses"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if wish["type"] == "AUTO_TAP" {
        return wanted_auto_tap(wish, &addresses);
    }
    let tap = wish["type"] == "TAP";
    let mut link = json!({
        "ifname": wish["host_if_name"].as_str().unwrap_or(name),
        "address": wish["phys_address"],
        "mtu": wish["mtu"].as_u64().filter(|mtu| *mtu != 0).unwrap_or(1500),
        "group": Owner::new(AgentLabel::new("vpp1").expect("legal")).group().to_string(),
        "ifalias": format!("vnf-agent:vpp1:{}:{name}", if tap { "tap" } else { "veth" }),
        "up": wish["enabled"],
        "kind": if tap { "tun" } else { "veth" },
        "addresses": addresses,
    });
    if tap {
        let made = &wish["tap"];
        link["tun"] = json!({
            "type": "tap", "user": made["owner"], "group": made["group"], "persist": true,
            "multi_queue": made["multi_queue"].as_bool().unwrap_or_default(),
        });
    }
    link
}

fn wanted_auto_tap(wish: &Value, addresses: &BTreeSet<&str>) -> Value {
    let (name, temporary) = (wish::name(wish), wish["tap"]["temp_if_name"].as_str().expect("a name"));
    json!({
        "ifname": wish["host_if_name"].as_str().unwrap_or(name),
        "address": wish["phys_address"],
        "mtu": wish["mtu"],
        "group": "default",
        "ifalias": format!("vnf-agent:vpp1:autotap:{name}:{temporary}"),
        "up": wish["enabled"],
        "kind": "tun",
        "addresses": addresses,
        "tun": {"type": "tap", "user": null, "group": null, "multi_queue": false, "persist": false},
    })
}

/// The links of a namespace that are not wanted, and those that are not seen.
fn difference(netns: &str, seen: &Value, wanted: &Value) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (seen, wanted) = (list(seen), list(wanted));
    let without = |these: &[Value], those: &[Value]| these.iter().filter(|link| !those.contains(link)).cloned().collect::<Vec<_>>();
    json!({"namespace": netns, "seen": without(&seen, &wanted), "wanted": without(&wanted, &seen)})
}
