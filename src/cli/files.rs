//! Files for `put` and `apply`: what they hold, as keys and values for the store. YAML becomes JSON here; the store never sees it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::{Failure, json};
use crate::model::key::{INTERFACE_CONFIG_PREFIX, NODE_CONFIG_PREFIX};
use crate::proto::agent::apply_request::Put;

const STDIN: &str = "-";

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e: std::io::Error| Failure::Usage(format!("{} cannot be read: {e}", path.display()));
    if path.as_os_str() == STDIN {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(failed)?;
        return Ok(bytes);
    }
    std::fs::read(path).map_err(failed)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}

fn is_yaml(path: &Path) -> bool {
    matches!(extension(path), "yaml" | "yml")
}

/// The value for one key: the file's bytes as they are, or the JSON of a YAML file.
pub fn value(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = read(path)?;
    if !is_yaml(path) {
        return Ok(bytes);
    }
    match documents(path, &bytes)?.as_slice() {
        [one] => Ok(one.to_string().into_bytes()),
        several => Err(Failure::Usage(format!("{} must hold one document, not {}", path.display(), several.len()))),
    }
}

/// Everything that files and directories hold, each key once.
pub fn puts(paths: &[PathBuf]) -> Result<Vec<Put>, Failure> {
    let mut puts: Vec<Put> = Vec::new();
    let mut origin: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in files(paths)? {
        for document in documents(&path, &read(&path)?)? {
            let objects = match document {
                Value::Array(items) => items,
                Value::Null => Vec::new(),
                other => vec![other],
            };
            for object in objects {
                let put = put(&path, object)?;
                if let Some(first) = origin.insert(put.key.clone(), path.clone()) {
                    let (key, first, second) = (&put.key, first.display(), path.display());
                    return Err(Failure::Usage(format!("key `{key}` occurs twice: in {first} and in {second}")));
                }
                puts.push(put);
            }
        }
    }
    if puts.is_empty() { Err(Failure::Usage("the files hold no objects".to_owned())) } else { Ok(puts) }
}

/// The files of directories, in the order of their names.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>());
        let mut found = entries.map_err(|e| Failure::Usage(format!("{} cannot be read: {e}", path.display())))?;
        found.retain(|file| file.is_file() && (is_yaml(file) || extension(file) == "json"));
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// The documents of a file. JSON is a subset of YAML, but its own reader has the better errors; the name decides, else the first character.
fn documents(path: &Path, bytes: &[u8]) -> Result<Vec<Value>, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Usage(format!("{}: {e}", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|e| failed(&format!("is not UTF-8: {e}")))?;
    let json = extension(path) == "json" || (!is_yaml(path) && text.trim_start().starts_with(['{', '[']));
    if json {
        return json::values(text).map_err(|e| failed(&e));
    }
    serde_saphyr::from_multiple(text).map_err(|e| failed(&e))
}

/// A `key` with its `value`, or an interface or a node, whose name makes the key. Only a node has `interfaces`.
fn put(path: &Path, mut object: Value) -> Result<Put, Failure> {
    let failed = |what: &str| {
        let path = path.display();
        Failure::Usage(format!("{path}: {what}; an object is an interface or a node with its `name`, or has a `key` and a `value`"))
    };
    let fields = object.as_object_mut().ok_or_else(|| failed("a list holds something that is no object"))?;
    match (fields.get("key").cloned(), fields.get_mut("value").map(Value::take)) {
        (Some(Value::String(key)), Some(Value::String(text))) => Ok(Put { key, value: text.into_bytes() }),
        (Some(Value::String(key)), Some(value)) if !value.is_null() => Ok(Put { key, value: value.to_string().into_bytes() }),
        (None, None) => match fields.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) {
            Some(name) => {
                let prefix = if fields.contains_key("interfaces") { NODE_CONFIG_PREFIX } else { INTERFACE_CONFIG_PREFIX };
                Ok(Put { key: format!("{prefix}{name}"), value: object.to_string().into_bytes() })
            }
            None => Err(failed("an object has no `name`")),
        },
        _ => Err(failed("an object has only one of `key` and `value`, or no text as its `key`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<Vec<(String, String)>, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Ok(puts(&[path])?.into_iter().map(|p| (p.key, String::from_utf8(p.value).unwrap())).collect())
    }

    #[test]
    fn forms() {
        let veth1 = ("linux/config/v1/interface/veth1".to_owned(), r#"{"name":"veth1","mtu":1500,"enabled":true}"#.to_owned());
        let tap = ("vpp/config/v1/interface/tap".to_owned(), r#"{"a":1}"#.to_owned());
        assert_eq!(of("a.json", r#"{"name":"veth1","mtu":1500,"enabled":true}"#).unwrap(), std::slice::from_ref(&veth1));
        assert_eq!(of("a", r#" [{"name":"veth1","mtu":1500,"enabled":true}]"#).unwrap(), std::slice::from_ref(&veth1));
        let yaml = "name: veth1\nmtu: 1500\nenabled: true\n---\n- key: vpp/config/v1/interface/tap\n  value: {a: 1}\n";
        assert_eq!(of("a.yaml", yaml).unwrap(), [veth1, tap]);
        let node = ("external/config/v1/node/h".to_owned(), r#"{"name":"h","interfaces":[{"name":"eth0"}]}"#.to_owned());
        assert_eq!(of("a.json", r#"{"name":"h","interfaces":[{"name":"eth0"}]}"#).unwrap(), [node]);
        let mac = of("a.yml", "name: v\nphys_address: 02:00:00:00:00:01\n").unwrap();
        assert_eq!(mac[0].1, r#"{"name":"v","phys_address":"02:00:00:00:00:01"}"#);
    }

    #[test]
    fn refused() {
        for (name, text) in [
            ("a.json", "{"),
            ("a.json", "{}"),
            ("a.json", "[1]"),
            ("a.json", r#"{"name":"a","name":"b"}"#),
            ("a.yaml", "name: a\nname: b\n"),
            ("a.json", r#"{"key":"k"}"#),
            ("a.json", r#"{"key":1,"value":{}}"#),
            ("a.json", r#"[{"name":"a"},{"name":"a"}]"#),
            ("a.yaml", "a: [1"),
            ("a.yaml", ""),
        ] {
            assert!(matches!(of(name, text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
