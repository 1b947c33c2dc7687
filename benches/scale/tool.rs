//! What a user of `ip` can do at best: one `ip -batch` for all pairs, then one in each namespace.

use std::fmt::Write as _;
use std::fs;

use crate::support::Host;
use crate::work::{End, MTU, PREFIX, Pair, alias, netns_name};

/// Whose links these are, as far as their marks say.
pub const LABEL: &str = "bench-tool";
const GROUP: u32 = 0x5600_0f11;

/// Command lines that are ready to run.
pub struct Script<'h> {
    host: &'h Host,
    lines: String,
}

impl<'h> Script<'h> {
    /// Writes the files for these pairs.
    pub fn new(host: &'h Host, pairs: &[Pair], spaces: usize) -> Self {
        let mut first = String::new();
        let mut inside = vec![String::new(); spaces];
        let link = |end: &End| {
            let (name, netns, mac) = (&end.name, netns_name(end.netns), end.mac_text());
            format!("name {name} netns {netns} address {mac} mtu {MTU} group {GROUP} numtxqueues 1 numrxqueues 1")
        };
        for pair in pairs {
            let [a, b] = &pair.ends;
            writeln!(first, "link add {} type veth peer {}", link(a), link(b)).unwrap();
            for end in [a, b] {
                let text = &mut inside[end.netns];
                writeln!(text, "link set dev {} up alias {}", end.name, alias(LABEL, "veth", &end.name)).unwrap();
                writeln!(text, "address add {}/{PREFIX} dev {}", end.ip, end.name).unwrap();
            }
        }
        let write = |name: String, text: &str| {
            let path = host.path(&name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let mut lines = format!("set -e\nip -batch {}\n", write("batch".to_owned(), &first));
        for (place, text) in inside.iter().enumerate() {
            writeln!(lines, "ip -n {} -batch {}", netns_name(place), write(format!("batch{place}"), text)).unwrap();
        }
        Self { host, lines }
    }

    /// Runs them, in one shell.
    pub fn run(&self) {
        let output = self.host.command("", "sh").args(["-c", &self.lines]).output().unwrap();
        assert!(output.status.success(), "ip -batch: {}", String::from_utf8_lossy(&output.stderr));
    }
}
