//! Which programs look after a NIC's addresses: what they leave in `/run`, and which DHCP clients run for it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::model::nic::NicLink;

/// DHCP clients by the names of their processes (the kernel keeps 15 bytes).
const DHCP_CLIENTS: [&str; 4] = ["dhclient", "dhcpcd", "udhcpc", "systemd-dhcpc"];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caretakers {
    /// systemd-networkd has configured it.
    pub networkd: bool,
    /// NetworkManager has a connection on it.
    pub network_manager: bool,
    /// DHCP clients that run for it.
    pub dhcp_clients: Vec<String>,
}

/// Looks for who looks after a NIC. `run` is where programs keep their state, `/run` but in tests.
#[must_use]
pub fn caretakers(link: &NicLink, run: &Path) -> Caretakers {
    let state = |path: &str| fs::read_to_string(run.join(path).join(link.ifindex.to_string())).unwrap_or_default();
    Caretakers {
        networkd: is_networkd(&state("systemd/netif/links")),
        network_manager: is_network_manager(&state("NetworkManager/devices")),
        dhcp_clients: dhcp_clients(&link.name),
    }
}

/// `ADMIN_STATE` is `unmanaged` for links that networkd leaves alone, and `pending` before it has looked.
fn is_networkd(state: &str) -> bool {
    state.lines().filter_map(|line| line.strip_prefix("ADMIN_STATE=")).any(|word| matches!(word, "configuring" | "configured" | "failed"))
}

fn is_network_manager(state: &str) -> bool {
    let value = |key: &str| state.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    value("managed=") != "false" && !value("connection-uuid=").is_empty()
}

/// Processes of this network namespace that have the link's name among their arguments.
fn dhcp_clients(link: &str) -> Vec<String> {
    let netns = |process: &str| fs::metadata(format!("/proc/{process}/ns/net")).map(|meta| meta.ino()).ok();
    let own = netns("thread-self");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.file_name().to_string_lossy().into_owned();
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        let name = name.trim_end();
        let arguments = || fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_for = |arguments: Vec<u8>| arguments.split(|byte| *byte == 0).any(|word| word == link.as_bytes());
        if DHCP_CLIENTS.contains(&name) && netns(&process) == own && is_for(arguments()) {
            found.push(name.to_owned());
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_leave_behind() {
        assert!(is_networkd("# This is private data.\nADMIN_STATE=configured\nOPER_STATE=routable\n"));
        assert!(!is_networkd("ADMIN_STATE=unmanaged\n") && !is_networkd(""));
        assert!(is_network_manager("[device]\nmanaged=true\nconnection-uuid=0f5c\n"));
        assert!(!is_network_manager("[device]\nmanaged=false\nconnection-uuid=0f5c\n") && !is_network_manager("[device]\nmanaged=true\n"));
    }
}
