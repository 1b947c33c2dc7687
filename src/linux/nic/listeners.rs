//! Whether somebody still hears the raw frames of a link. A packet socket is bound to a link as long as that is in its namespace: once it has left, the
//! socket hears nothing any more, although the link comes back with name and index as they were.

use std::fs;
use std::io;

use crate::linux::nic::{NicKernel, sysctl};
use crate::linux::socket::Failure;
use crate::model::nic::NicLink;

/// All packet sockets of a namespace.
const SOCKETS: &str = "/proc/thread-self/net/packet";
/// `ETH_P_ALL`, as it is printed.
const ALL_FRAMES: &str = "0003";
/// The index that the kernel puts in the place of that of a link that has left.
const LEFT: &str = "-1";

/// Whether nobody hears a link, and somebody's link has left him. A kernel that cannot be asked says neither.
pub(super) fn is_unheard(kernel: &mut NicKernel, link: &NicLink) -> Result<bool, Failure> {
    let table = sysctl::inside(kernel, || match fs::read_to_string(SOCKETS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    })?;
    Ok(tells_of_loss(&table, link.ifindex))
}

/// Whether a table has no socket for all frames on this link, and one whose link has left.
fn tells_of_loss(table: &str, ifindex: u32) -> bool {
    // After a headline: address, references, type, protocol, index, …
    let bound = |line: &&str| line.split_whitespace().nth(3) == Some(ALL_FRAMES);
    let indexes: Vec<&str> = table.lines().skip(1).filter(bound).filter_map(|line| line.split_whitespace().nth(4)).collect();
    indexes.contains(&LEFT) && !indexes.iter().any(|index| index.parse() == Ok(ifindex))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sockets: &[(&str, &str)]) -> String {
        let line =
            |(protocol, index): &(&str, &str)| format!("000000007d8d6b7e 3      3    {protocol}   {index:<5} 1 0      0      79144416\n");
        let head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";
        [head.to_owned()].into_iter().chain(sockets.iter().map(line)).collect()
    }

    #[test]
    fn a_link_that_has_left_its_listener() {
        let tells = |sockets: &[(&str, &str)]| tells_of_loss(&table(sockets), 2);
        assert!(tells(&[("0003", "-1")]) && tells(&[("0003", "-1"), ("0000", "0"), ("0003", "22"), ("0800", "2")]));
        assert!(!tells(&[("0003", "-1"), ("0003", "2")]), "the one that has left was another link");
        assert!(!tells(&[]) && !tells(&[("0003", "7")]) && !tells(&[("88cc", "-1")]), "nobody has lost anything");
        assert!(!tells_of_loss("", 2));
    }
}
