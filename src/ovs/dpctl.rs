//! Takes devices out of the kernel's datapath past a switch that is dead, by running `ovs-dpctl`, which speaks to the kernel alone.
//!
//! A datapath in user space dies with its process. The kernel's goes on and keeps its ports: a NIC among them hears nothing by itself, and an internal port
//! cannot be removed as other links are (the kernel answers `EOPNOTSUPP`).

use std::path::PathBuf;
use std::time::Duration;

use crate::program::{self, Failure};

/// The only datapath that Open vSwitch has in a kernel.
const DATAPATH: &str = "ovs-system";
/// How long the program may take: it asks nobody but the kernel.
const WITHIN: Duration = Duration::from_secs(5);

/// Runs `ovs-dpctl`.
#[derive(Clone, Debug)]
pub struct Dpctl {
    program: PathBuf,
}

impl Default for Dpctl {
    fn default() -> Self {
        Self { program: "ovs-dpctl".into() }
    }
}

impl Dpctl {
    /// With another program in the place of `ovs-dpctl`.
    #[must_use]
    pub fn with_program(program: PathBuf) -> Self {
        Self { program }
    }

    /// Takes a device out of the kernel's datapath; an internal port ends with that.
    ///
    /// # Errors
    /// One sentence. A device that is no port of it, or no datapath at all, is no error.
    pub fn remove(&self, device: &str) -> Result<(), String> {
        match program::run(&self.program, &["del-if", DATAPATH, device], String::new(), &|| WITHIN) {
            Ok(_) => Ok(()),
            // The words for ENODEV and ENOENT, which is all that the program has for them.
            Err(Failure::Refused(cause)) if ["No such device", "no port named", "No such file"].iter().any(|gone| cause.contains(gone)) => {
                Ok(())
            }
            Err(failure) => {
                let cause = match failure {
                    Failure::NotRun(cause) => format!("ovs-dpctl cannot be run: {cause}"),
                    Failure::NoAnswer => format!("ovs-dpctl did not end within {} s", WITHIN.as_secs()),
                    Failure::Refused(cause) => cause,
                };
                Err(format!("take {device} out of the datapath {DATAPATH}: {cause}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_not_there_is_removed_and_other_failures_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("ovs-dpctl");
        let script = "#!/bin/sh\necho \"$*\" >&2\n[ \"$3\" = free ]";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let dpctl = Dpctl::with_program(program);
        assert_eq!(dpctl.remove("free"), Ok(()));
        assert_eq!(dpctl.remove("No such device"), Ok(()));
        let busy = dpctl.remove("busy").unwrap_err();
        assert_eq!(busy, "take busy out of the datapath ovs-system: del-if ovs-system busy");
        let none = Dpctl::with_program("/nowhere/ovs-dpctl".into()).remove("eth9").unwrap_err();
        assert!(none.contains("ovs-dpctl cannot be run"), "{none}");
    }
}
