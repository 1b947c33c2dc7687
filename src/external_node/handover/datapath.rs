//! What a dead switch leaves behind in the kernel. A datapath in user space died with it; the kernel's own goes on with its ports.

use nix::errno::Errno;

use crate::external_node::handover::{Handover, HandoverError, Seen};
use crate::linux::KernelError;
use crate::model::nic::NicLink;

impl Handover {
    /// Frees a NIC that the kernel's datapath still has: as long as it is a port there, the host's own stack hears nothing from it. A failure is told and no
    /// more: whatever comes next looks at what stands.
    pub(super) fn leave_datapath(&self, seen: &Seen, nic: &NicLink) {
        // A NIC that needs a guard is one that its datapath only listens to.
        if seen.observation.guard_needed {
            return;
        }
        if let Err(problem) = self.settings.dpctl.remove(&nic.name) {
            tracing::warn!(nic = nic.name, problem, "the NIC may still belong to the kernel's datapath");
        }
    }

    /// Removes a port that no row names any more. An internal port of the kernel's datapath ends only with its place in it.
    pub(super) fn remove_leftover(&mut self, port: &NicLink) -> Result<(), HandoverError> {
        match self.kernel.remove_link(port) {
            Err(error) if error.is(Errno::EOPNOTSUPP) => self.settings.dpctl.remove(&port.name).map_err(|problem| {
                let text = if error.text.is_empty() { problem } else { format!("{}; {problem}", error.text) };
                KernelError { text, ..error }.into()
            }),
            done => Ok(done?),
        }
    }
}
