//! The demonstration that the README promises.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_demo_works_and_leaves_nothing_behind() {
    let binaries = Path::new(env!("CARGO_BIN_EXE_vnf-agent")).parent().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo.sh");
    let output = Command::new(script).arg(binaries).stdin(Stdio::null()).output().expect("the script starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" 0% packet loss").count(), 2, "{said}");
    assert!(said.contains("PEER_MISSING"), "{said}");
}
