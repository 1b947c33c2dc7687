//! What the kernel shows, read by iproute2: an observer that shares no code with the agent.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Host;

/// A link as `ip` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub index: u64,
    pub mac: String,
    pub mtu: u64,
    /// Administratively up.
    pub up: bool,
    /// `veth`, `bridge`, …; empty for `lo`.
    pub kind: String,
    pub group: String,
    pub alias: String,
    /// Addresses with prefix length, without the kernel's own link-locals, sorted.
    pub addresses: Vec<String>,
    /// Whether any of them cannot be used yet.
    pub tentative: bool,
}

impl Host {
    /// All links of a namespace (the host's own if empty), `lo` left out, sorted by name.
    pub fn links(&self, netns: &str) -> Vec<Link> {
        self.try_links(netns).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same of a namespace that may be gone: its links, or why they could not be read.
    pub fn try_links(&self, netns: &str) -> Result<Vec<Link>, String> {
        let readings = self.try_raw_readings(&[netns])?;
        let mut links: Vec<Link> = readings.iter().flatten().map(read).filter(|link| link.name != "lo").collect();
        links.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(links)
    }

    /// One link of a namespace.
    pub fn link(&self, netns: &str, name: &str) -> Option<Link> {
        self.links(netns).into_iter().find(|link| link.name == name)
    }

    /// The names of a namespace's links, `lo` left out.
    pub fn link_names(&self, netns: &str) -> Vec<String> {
        self.links(netns).into_iter().map(|link| link.name).collect()
    }

    /// The addresses of a link; none when it is not there.
    pub fn addresses(&self, netns: &str, name: &str) -> Vec<String> {
        self.link(netns, name).map_or_else(Vec::new, |link| link.addresses)
    }

    /// Everything that the kernel shows of these namespaces, in a form that can be compared: sorted, without indexes, counters and
    /// what settles by itself.
    pub fn digest(&self, namespaces: &[&str]) -> Value {
        self.digest_and_links(namespaces).0
    }

    /// The digest, and all links (`lo` included) of each of these namespaces as they were in the same reading.
    pub fn digest_and_links(&self, namespaces: &[&str]) -> (Value, Vec<Vec<Link>>) {
        let readings = self.raw_readings(namespaces);
        let digests = namespaces.iter().zip(&readings).map(|(netns, links)| {
            let mut links: Vec<Value> = links.iter().map(digest_link).collect();
            links.sort_by_key(|link| link["ifname"].to_string());
            (netns.to_string(), Value::from(links))
        });
        let digest = digests.collect::<serde_json::Map<_, _>>().into();
        (digest, readings.iter().map(|links| links.iter().map(read).collect()).collect())
    }

    fn raw_readings(&self, namespaces: &[&str]) -> Vec<Vec<Value>> {
        self.try_raw_readings(namespaces).unwrap_or_else(|error| panic!("{error}"))
    }

    /// One reading for each namespace, by one shell: some tests read thousands of times.
    fn try_raw_readings(&self, namespaces: &[&str]) -> Result<Vec<Vec<Value>>, String> {
        let show = |netns: &&str| match *netns {
            "" => "ip -d -j address show".to_owned(),
            path if path.starts_with('/') => format!("nsenter --net={path} ip -d -j address show"),
            name => format!("ip -n {name} -d -j address show"),
        };
        let script: Vec<String> = namespaces.iter().map(show).collect();
        let output = self.command("", "sh").args(["-c", &script.join(" && ")]).output().expect("nsenter starts");
        if !output.status.success() {
            return Err(format!("{script:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let all = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Vec<Value>>();
        // iproute2 leaves empty objects behind for what it filters out.
        let named = |links: Vec<Value>| links.into_iter().filter(|link| link["ifname"].is_string()).collect();
        Ok(all.map(|links| named(links.expect("ip prints JSON"))).collect())
    }
}

fn read(link: &Value) -> Link {
    let text = |field: &str| link[field].as_str().unwrap_or_default().to_owned();
    let all = link["addr_info"].as_array().cloned().unwrap_or_default();
    let addresses = all.iter().filter(|a| !is_link_local(a)).map(address_text).collect::<BTreeSet<_>>();
    Link {
        name: text("ifname"),
        index: link["ifindex"].as_u64().unwrap_or_default(),
        mac: text("address"),
        mtu: link["mtu"].as_u64().unwrap_or_default(),
        up: link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP"))),
        kind: link["linkinfo"]["info_kind"].as_str().unwrap_or_default().to_owned(),
        group: text("group"),
        alias: text("ifalias"),
        addresses: addresses.into_iter().collect(),
        tentative: all.iter().any(|a| !is_link_local(a) && a["tentative"] == json!(true)),
    }
}

fn is_link_local(address: &Value) -> bool {
    address["family"] == "inet6" && address["scope"] == "link"
}

fn address_text(address: &Value) -> String {
    format!("{}/{}", address["local"].as_str().unwrap_or_default(), address["prefixlen"])
}

fn digest_link(link: &Value) -> Value {
    let kept = ["ifname", "address", "mtu", "group", "ifalias"];
    let mut digest: serde_json::Map<String, Value> = kept.iter().map(|field| (field.to_string(), link[*field].clone())).collect();
    let up = link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP")));
    let addresses = link["addr_info"].as_array().cloned().unwrap_or_default();
    let addresses: BTreeSet<String> = addresses.iter().filter(|a| !is_link_local(a)).map(address_text).collect();
    digest.insert("up".to_owned(), up.into());
    digest.insert("kind".to_owned(), link["linkinfo"]["info_kind"].clone());
    digest.insert("addresses".to_owned(), addresses.into_iter().collect());
    if link["linkinfo"]["info_kind"] == "tun" {
        let made = ["type", "user", "group", "multi_queue", "persist"];
        let made = made.iter().map(|field| (field.to_string(), link["linkinfo"]["info_data"][*field].clone()));
        digest.insert("tun".to_owned(), made.collect::<serde_json::Map<_, _>>().into());
    }
    digest.into()
}
