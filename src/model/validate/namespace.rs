//! References to namespaces. The message is a hand-made union: `type` says which field is read.
//!
//! Nothing is looked up here; what is refused could lead nowhere, or to where a name must not lead.

use std::path::{Path, PathBuf};

use super::Findings;
use crate::model::netns::{MICROSERVICE_LABEL_MAX, proc_pid};
use crate::model::{NetnsRef, Reason};
use crate::proto::ligato::{Namespace, namespace::Type};

/// Longest name of a file in bytes (`NAME_MAX`).
const NAME_MAX: usize = 255;
/// Longest path in bytes (`PATH_MAX` less the closing NUL).
const PATH_MAX: usize = 4095;
/// The kernel gives no larger PID (`PID_MAX_LIMIT`).
const PID_MAX: u32 = 4_194_304;

/// The reference; absent, or with nothing set, it is the agent's own namespace.
pub fn reference(message: Option<&Namespace>, findings: &mut Findings) -> Option<NetnsRef> {
    let Some(given) = message else { return Some(NetnsRef::Default) };
    if given.r#type.is_none() && set_fields(given).is_empty() {
        findings.warn(|| "namespace has nothing set: the agent's own namespace is meant; leave `namespace` out".to_owned());
        return Some(NetnsRef::Default);
    }
    let kind = given.r#type();
    for (field, value) in set_fields(given).into_iter().filter(|(field, _)| *field != field_of(kind)) {
        findings.warn(|| {
            let value = crate::model::decode::report::quoted(&value);
            format!("namespace.{field} {value} is ignored: namespace.type is {}", kind.as_str_name())
        });
    }
    let (value, read) = match kind {
        Type::PidRefNs => (given.pid.map(|p| p.to_string()).unwrap_or_default(), pid(given.pid)),
        Type::MicroserviceRefNs => (given.microservice.clone(), label(&given.microservice).map(NetnsRef::Microservice)),
        Type::NamedNs => (given.name.clone(), name(&given.name).map(NetnsRef::Named)),
        Type::FileRefNs => (given.filepath.clone(), path(&given.filepath).map(NetnsRef::File)),
    };
    let broken = |rule: String| {
        let hint = hint(given, kind);
        findings.error(Reason::BadNamespace, &format!("namespace.{}", field_of(kind)), &value, rule, hint);
    };
    read.map_err(broken).ok()
}

/// Kind and text of a reference that may be wrong.
pub fn outline(message: Option<&Namespace>) -> (&'static str, String) {
    let Some(given) = message.filter(|n| n.r#type.is_some() || !set_fields(n).is_empty()) else { return ("DEFAULT", String::new()) };
    match given.r#type() {
        Type::PidRefNs => ("PID", given.pid.map(|p| p.to_string()).unwrap_or_default()),
        Type::MicroserviceRefNs => ("MICROSERVICE", given.microservice.clone()),
        Type::NamedNs => ("NAMED", given.name.clone()),
        Type::FileRefNs => ("FILE", given.filepath.clone()),
    }
}

fn field_of(kind: Type) -> &'static str {
    match kind {
        Type::PidRefNs => "pid",
        Type::MicroserviceRefNs => "microservice",
        Type::NamedNs => "name",
        Type::FileRefNs => "filepath",
    }
}

/// The fields of the union that are set, with their texts.
fn set_fields(given: &Namespace) -> Vec<(&'static str, String)> {
    let texts = [("microservice", &given.microservice), ("name", &given.name), ("filepath", &given.filepath)];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(field, text)| (field, text.clone()));
    given.pid.map(|pid| ("pid", pid.to_string())).into_iter().chain(texts).collect()
}

/// A forgotten `type` is the usual mistake: it means PID_REF_NS.
fn hint(given: &Namespace, kind: Type) -> String {
    let fields = set_fields(given);
    let other = [Type::PidRefNs, Type::MicroserviceRefNs, Type::NamedNs, Type::FileRefNs]
        .into_iter()
        .find(|other| *other != kind && fields.iter().any(|(field, _)| *field == field_of(*other)));
    match other {
        Some(other) => {
            let given = if given.r#type.is_none() { "no `type` means" } else { "the `type` is" };
            let (kind, field, wanted) = (kind.as_str_name(), field_of(other), other.as_str_name());
            format!("{given} {kind}; if `{field}` is meant, write type {wanted}")
        }
        None => "correct it, or leave `namespace` out for the agent's own namespace".to_owned(),
    }
}

fn pid(given: Option<u32>) -> Result<NetnsRef, String> {
    match given {
        Some(pid @ 1..=PID_MAX) => Ok(NetnsRef::Pid(pid)),
        Some(_) => Err(format!("must be a process id, 1 to {PID_MAX}")),
        None => Err("must be given for type PID_REF_NS".to_owned()),
    }
}

/// A label of a container: any text that can be shown and compared.
fn label(text: &str) -> Result<String, String> {
    plain(text, MICROSERVICE_LABEL_MAX).map(str::to_owned)
}

/// A name in the netns folder must stay in that folder.
fn name(text: &str) -> Result<String, String> {
    plain(text, NAME_MAX)?;
    match text {
        "." | ".." => Err("must be the name of a file, not of a folder".to_owned()),
        _ if text.contains('/') => Err("must be one name without a slash; for a path, use type FILE_REF_NS".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn plain(text: &str, most: usize) -> Result<&str, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    if text.len() > most {
        return Err(format!("is {} bytes long, at most {most} are allowed", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain a control character".to_owned());
    }
    Ok(text)
}

/// The path in one spelling: `/var/run` is a link to `/run`; doubled and closing slashes and `.` go.
fn path(text: &str) -> Result<PathBuf, String> {
    if text.len() > PATH_MAX {
        return Err(format!("is {} bytes long, at most {PATH_MAX} are allowed", text.len()));
    }
    if !text.starts_with('/') {
        return Err("must be an absolute path".to_owned());
    }
    if text.contains('\0') {
        return Err("must not contain a NUL character".to_owned());
    }
    if text.split('/').any(|part| part == "..") {
        return Err("must not contain `..`".to_owned());
    }
    let path: PathBuf = Path::new(text).components().collect();
    let path = path.strip_prefix("/var/run").map_or(path.clone(), |rest| Path::new("/run").join(rest));
    let process = proc_pid(&path).filter(|pid| (1..=PID_MAX).contains(pid) && path == Path::new(&format!("/proc/{pid}/ns/net")));
    let below_run = path.strip_prefix("/run").is_ok_and(|rest| !rest.as_os_str().is_empty());
    if process.is_none() && !below_run {
        return Err("must lie below /run or /var/run, or be /proc/<pid>/ns/net with the number of a process".to_owned());
    }
    Ok(path)
}
