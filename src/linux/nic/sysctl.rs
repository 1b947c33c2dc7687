//! The settings of a link below `net/ipv4/conf` and `net/ipv6/conf`. All that can be written are carried along, whichever they are.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::linux::netns_thread::in_netns;
use crate::linux::nic::NicKernel;
use crate::linux::socket::Failure;
use crate::model::nic::difference::STABLE_SECRET;
use std::os::fd::AsFd;

const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// How the kernel makes link-locals by itself.
pub(super) const ADDR_GEN_MODE: &str = "ipv6/addr_gen_mode";

/// By the link's secret.
const BY_SECRET: &str = "2";

/// The setting with which it makes none.
pub(super) fn no_link_local() -> (String, String) {
    (ADDR_GEN_MODE.to_owned(), "1".to_owned())
}

/// How a link's addresses are made by the kernel, to be written when all are there that it shall have.
pub(super) fn generation(wished: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let of = |path: &str| wished.get_key_value(path).map(|(path, value)| (path.clone(), value.clone()));
    let by_secret = wished.get(ADDR_GEN_MODE).is_some_and(|mode| mode == BY_SECRET);
    // It brings the mode along. The mode itself would have the kernel make a link-local at once, which is another one on each link.
    of(STABLE_SECRET).filter(|_| by_secret).or_else(|| of(ADDR_GEN_MODE)).into_iter().collect()
}

/// Reads all settings of a link: `ipv4/rp_filter` to value.
pub(super) fn read(kernel: &mut NicKernel, link: &str) -> Result<BTreeMap<String, String>, Failure> {
    inside(kernel, || {
        let mut found = BTreeMap::new();
        for family in FAMILIES {
            let Ok(entries) = fs::read_dir(folder(family, link)) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let writable = entry.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o200 != 0);
                // Some cannot be read before they were set (`stable_secret`).
                if let (true, Ok(value)) = (writable, fs::read_to_string(entry.path())) {
                    found.insert(format!("{family}/{name}"), value.trim_end().to_owned());
                }
            }
        }
        Ok(found)
    })
}

/// Writes settings of a link, each as far as it goes; returns those that were refused.
pub(super) fn write(kernel: &mut NicKernel, link: &str, values: &[(String, String)]) -> Result<Vec<(String, io::Error)>, Failure> {
    inside(kernel, || {
        let mut refused = Vec::new();
        for (path, value) in values {
            let Some((family, name)) = path.split_once('/').filter(|(f, n)| FAMILIES.contains(f) && !n.contains('/')) else { continue };
            let file = OpenOptions::new().write(true).open(folder(family, link).join(name));
            if let Err(error) = file.and_then(|mut file| file.write_all(format!("{value}\n").as_bytes())) {
                refused.push((path.clone(), error));
            }
        }
        Ok(refused)
    })
}

fn folder(family: &str, link: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf")).join(link)
}

/// Runs something on a thread inside of the NICs' namespace, where these files are its own.
pub(super) fn inside<T: Send>(kernel: &mut NicKernel, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, Failure> {
    let netns = kernel.socket()?.netns_file()?;
    Ok(in_netns(netns.as_fd(), work)?)
}
