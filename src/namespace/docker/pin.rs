//! Opening the namespace of a container's run, on the tracker's thread.
//!
//! The runtime's sandbox file is the namespace itself. The number of the first process is only a number: it may belong to someone else by the time it
//! is used, or to another set of numbers than ours. Where both lead to one namespace the process is the right one, and its end is the run's. Where there
//! is no file (`--network container:…`, or a runtime with mounts of its own) the process must be in a control group of the container.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use super::book::{NoPin, Pinned, Run};
use crate::namespace::place::{Place, Sight};
use crate::namespace::process::{Found, Process, is_gone};
use crate::namespace::resolve::Resolver;
use crate::namespace::{NetnsHandle, OpenNetns};

/// A run's namespace, with what tells of its end.
pub struct Pin {
    /// The namespace.
    pub handle: NetnsHandle,
    /// The run's first process, where it can be watched.
    pub process: Option<Arc<Process>>,
    /// The runtime's file, and its mount where the kernel tells it.
    pub sandbox: Option<(Arc<Place>, Option<u64>)>,
}

impl Pin {
    /// What the book needs to know.
    pub fn outline(&self) -> Pinned {
        Pinned { own: self.handle.own, born: self.process.as_ref().map(|process| process.started()) }
    }

    /// Whether the runtime has taken its file away, or put another namespace there. `false` where that cannot be told.
    pub fn is_over(&self) -> bool {
        match &self.sandbox {
            Some((place, Some(mount))) => !place.still_shows(*mount) && matches!(place.look(), Sight::Missing | Sight::Stub),
            Some((place, None)) => matches!(place.look(), Sight::Missing | Sight::Stub),
            None => false,
        }
    }
}

/// Opens the namespace of a run of this container. `same_numbers`: the runtime's processes are known to have the same numbers here.
///
/// # Errors
/// The run is over, or its namespace cannot be reached from here.
pub fn pin(resolver: &Resolver, id: &str, run: Run, sandbox: Option<&Path>, same_numbers: bool) -> Result<Pin, NoPin> {
    let by_file = sandbox.ok_or_else(|| "there is no sandbox file".to_owned()).and_then(|path| open_file(resolver, path));
    let by_process = match open_process(resolver, run.pid) {
        Ok(None) if same_numbers => return Err(NoPin::Over),
        Ok(None) => Err(format!("process {} is not here", run.pid)),
        Ok(Some(found)) => Ok(found),
        Err(error) => Err(format!("process {} cannot be looked at: {error}", run.pid)),
    };
    let (by_file, by_process) = match (by_file, by_process) {
        (Err(no_file), by_process) => match by_process.and_then(|found| belonging(found, id, run.pid)) {
            Err(no_process) => return Err(NoPin::Unreachable(format!("{no_file}; {no_process}"))),
            found => (None, found.ok()),
        },
        (by_file, by_process) => (by_file.ok(), by_process.ok()),
    };
    match (by_file, by_process) {
        (Some((file, place, mount)), Some((other, process))) if file.id == other.id => {
            let opener = if file.own { file.opener } else { Arc::new(Either(place.clone(), process.clone())) };
            Ok(Pin { handle: NetnsHandle { opener, ..file }, process: Some(process), sandbox: Some((place, mount)) })
        }
        // The number means another process here: only the file and the runtime tell of the end.
        (Some((file, place, mount)), _) => Ok(Pin { handle: file, process: None, sandbox: Some((place, mount)) }),
        (None, Some((handle, process))) => Ok(Pin { handle, process: Some(process), sandbox: None }),
        (None, None) => Err(NoPin::Over),
    }
}

fn open_file(resolver: &Resolver, path: &Path) -> Result<(NetnsHandle, Arc<Place>, Option<u64>), String> {
    let shown = path.display();
    // The runtime is trusted with its paths: it may keep its files anywhere.
    let place = Place::file(path, &[], &["/".into()]).map(Arc::new).map_err(|what| format!("sandbox file {shown} {what}"))?;
    match place.look() {
        Sight::Netns(ns, mount) => match resolver.handle(ns.as_fd(), place.clone()) {
            Ok(handle) => Ok((handle, place, mount)),
            Err(error) => Err(format!("sandbox file {shown} cannot be looked at: {error}")),
        },
        Sight::Missing => Err(format!("sandbox file {shown} does not exist")),
        Sight::Stub => Err(format!("sandbox file {shown} is not mounted")),
        Sight::Useless(what) => Err(format!("sandbox file {shown} {what}")),
        Sight::Unknown(error) => Err(format!("sandbox file {shown} cannot be looked at: {error}")),
    }
}

/// The process, if it is one of this container's: its number alone may mean somebody else.
fn belonging(found: (NetnsHandle, Arc<Process>), id: &str, pid: i32) -> Result<(NetnsHandle, Arc<Process>), String> {
    match found.1.is_in_group_of(id) {
        Ok(true) => Ok(found),
        Ok(false) => Err(format!("process {pid} is here, but in no control group of this container: the number means somebody else")),
        Err(error) => Err(format!("process {pid} cannot be looked at: {error}")),
    }
}

/// The process with this number; `None`: there is none, or it has ended.
fn open_process(resolver: &Resolver, pid: i32) -> io::Result<Option<(NetnsHandle, Arc<Process>)>> {
    let Found::Process(process) = Process::find(pid)? else { return Ok(None) };
    let process = Arc::new(process);
    match process.open() {
        Ok(ns) => Ok(Some((resolver.handle(ns.as_fd(), process.clone())?, process))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Two ways to one namespace: a file can be opened with fewer rights, a process is there for as long as the run.
struct Either(Arc<Place>, Arc<Process>);

impl OpenNetns for Either {
    fn open(&self) -> io::Result<OwnedFd> {
        match self.0.open() {
            Err(error) if error.raw_os_error() == Some(Errno::EMFILE as i32) => Err(error),
            Err(_) => self.1.open(),
            opened => opened,
        }
    }
}
