//! The walls inside the crate: reads `src/` and fails on an arrow or a word that must not be (ARCHITECTURE.md, "Who may use whom").
//!
//! Comments, texts and test modules are left out: the rules bind what runs.

use std::fmt;
use std::fs;
use std::path::Path;

/// Longest file, in lines, tests included.
const LONGEST_FILE: usize = 600;

/// One wall.
struct Rule {
    /// The files that it binds: beginnings of paths below `src/`.
    files: &'static [&'static str],
    /// Files among them that it does not bind.
    except: &'static [&'static str],
    /// What must not occur there, as beginnings of paths: `crate::agent`, `std::fs`, `setns`.
    forbidden: &'static [&'static str],
    /// Beginnings of paths that are allowed all the same.
    allowed: &'static [&'static str],
    why: &'static str,
}

const PURE_WORDS: &[&str] = &[
    "tokio",
    "tokio_stream",
    "tokio_util",
    "futures",
    "std::fs",
    "std::thread",
    "std::process",
    "std::env",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::os::unix::net",
    "SystemTime::now",
    "Instant::now",
    "tracing",
    "rtnetlink",
    "netlink_packet_core",
    "netlink_packet_route",
    "netlink_sys",
    "nix",
    "inotify",
    "etcd_client",
    "redb",
    "tonic",
    "axum",
];

const RULES: &[Rule] = &[
    Rule {
        files: &[
            "model/",
            "configurator/plan",
            "external_node/attachment",
            "external_node/phase",
            "external_node/plan",
            "external_node/identify",
            "external_node/selection",
            "external_node/suitability",
        ],
        except: &[],
        forbidden: PURE_WORDS,
        allowed: &[],
        why: "the pure parts do no I/O, know no clock and do not log",
    },
    Rule {
        files: &["model/"],
        except: &[],
        forbidden: &["crate"],
        allowed: &["crate::model", "crate::proto"],
        why: "the model knows nobody",
    },
    Rule {
        files: &["configurator/plan"],
        except: &[],
        forbidden: &["crate::store", "crate::namespace", "crate::linux", "crate::api", "crate::cli"],
        allowed: &[],
        why: "the planner knows only the model and observed values",
    },
    Rule {
        files: &["configurator/plan"],
        except: &[],
        forbidden: &[
            "crate::configurator::apply",
            "crate::configurator::book",
            "crate::configurator::inbox",
            "crate::configurator::memory",
            "crate::configurator::published",
            "crate::configurator::retry",
            "crate::configurator::status",
            "crate::configurator::task",
        ],
        allowed: &[],
        why: "the planner decides from wishes, places and what was observed, not from what was tried, kept or said",
    },
    Rule {
        files: &["linux/", "namespace/", "store/", "ovs/"],
        except: &[],
        forbidden: &["crate::configurator", "crate::api", "crate::cli", "crate::config"],
        allowed: &[],
        why: "the edges tell the configurator through sink traits of their own and know nobody above them",
    },
    Rule {
        files: &["ovs/"],
        except: &[],
        forbidden: &["crate", "tokio"],
        allowed: &["crate::ovs", "crate::model", "crate::backoff", "crate::program"],
        why: "Open vSwitch is a library of its own: it knows the model, and blocks its caller",
    },
    Rule {
        files: &["configurator/"],
        except: &[],
        forbidden: &["etcd_client", "redb", "tonic", "axum", "crate::api", "crate::cli", "crate::store::etcd", "crate::store::embedded"],
        allowed: &[],
        why: "the configurator knows traits, not stores or servers",
    },
    Rule {
        files: &["external_node/"],
        except: &[],
        forbidden: &[
            "etcd_client",
            "redb",
            "tonic",
            "axum",
            "crate::api",
            "crate::cli",
            "crate::config",
            "crate::configurator",
            "crate::store::etcd",
            "crate::store::embedded",
        ],
        allowed: &[],
        why: "the external node knows kernel, switch, journal and stores' traits, nobody above",
    },
    Rule {
        files: &["external_node/phase", "external_node/plan", "external_node/selection", "external_node/suitability"],
        except: &[],
        forbidden: &["crate::linux", "crate::ovs", "crate::store", "crate::namespace", "crate::external_node::journal"],
        allowed: &[],
        why: "what is to be done is decided from values, not from where they were read",
    },
    Rule {
        files: &["api/"],
        except: &[],
        forbidden: &[
            "crate::linux",
            "crate::namespace",
            "crate::store::etcd",
            "crate::store::embedded",
            "crate::cli",
            "etcd_client",
            "redb",
        ],
        allowed: &["crate::linux::KernelCounters", "crate::namespace::docker::RuntimeHealth"],
        why: "the API reads what the configurator publishes and asks through traits",
    },
    Rule {
        files: &["cli/", "bin/vnfctl.rs"],
        except: &[],
        forbidden: &[
            "crate::linux",
            "crate::namespace",
            "crate::store",
            "crate::configurator",
            "crate::api",
            "etcd_client",
            "redb",
            "rtnetlink",
            "nix",
        ],
        allowed: &[],
        why: "the client works from anywhere, through gRPC only",
    },
    Rule {
        files: &[""],
        except: &["main.rs"],
        forbidden: &["crate::agent", "vnf_agent::agent"],
        allowed: &[],
        why: "the wiring is nobody's library",
    },
    Rule {
        files: &[""],
        except: &["linux/netns_thread.rs"],
        forbidden: &["setns", "unshare"],
        allowed: &[],
        why: "a thread that entered a namespace must end there: linux/netns_thread.rs sees to it",
    },
];

/// A wall that was broken.
#[derive(PartialEq)]
struct Breach {
    file: String,
    line: usize,
    what: String,
    why: &'static str,
}

impl fmt::Debug for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}:{}: {} ({})", self.file, self.line, self.what, self.why)
    }
}

fn check(file: &str, text: &str) -> Vec<Breach> {
    let breach = |line, what: String, why| Breach { file: file.to_owned(), line, what, why };
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        breaches.push(breach(lines, format!("is longer than {LONGEST_FILE} lines"), "a long file holds more than one idea"));
    }
    if !text.starts_with("//!") {
        breaches.push(breach(1, "does not begin with `//!`".to_owned(), "each file says what it owns and what it refuses"));
    }
    let paths = paths(&without_tests(&without_comments_and_texts(text)));
    for rule in RULES.iter().filter(|rule| binds(rule, file)) {
        let broken = paths.iter().filter(|(_, path)| matches(path, rule.forbidden) && !matches(path, rule.allowed));
        breaches.extend(broken.map(|(line, path)| breach(*line, format!("uses `{path}`"), rule.why)));
    }
    breaches
}

fn binds(rule: &Rule, file: &str) -> bool {
    let under = |files: &[&str]| files.iter().any(|begin| file.starts_with(begin) || file == format!("{}.rs", begin.trim_end_matches('/')));
    under(rule.files) && !rule.except.contains(&file) && !file.ends_with("/tests.rs")
}

/// Whether the path, or the path from one of its later segments on, begins with one of these, segment by segment.
fn matches(path: &str, beginnings: &[&str]) -> bool {
    let segments: Vec<&str> = path.split("::").collect();
    beginnings.iter().any(|beginning| {
        let wanted: Vec<&str> = beginning.split("::").collect();
        // `crate` and crate names stand at the beginning only; types and functions are also written behind their module.
        let anywhere = !beginning.starts_with("crate") && (wanted.len() > 1 || ["setns", "unshare"].contains(beginning));
        segments.starts_with(&wanted) || (anywhere && segments.windows(wanted.len()).any(|window| window == wanted))
    })
}

/// The source with comments and the insides of texts blanked out, its lines kept.
fn without_comments_and_texts(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' if rest.starts_with("r\"") || rest.starts_with("r#") => raw_text_length(rest),
            '"' => text_length(rest),
            // A character, not a lifetime.
            '\'' if rest.starts_with("'\\") => 2 + rest[2..].chars().next().map_or(0, char::len_utf8),
            '\'' if rest.chars().nth(2) == Some('\'') => rest.char_indices().nth(3).map_or(rest.len(), |(end, _)| end),
            _ => 0,
        };
        if length == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    out
}

fn text_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

fn raw_text_length(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|b| *b == b'#').count();
    if rest.as_bytes().get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[2 + hashes..].find(&end).map_or(rest.len(), |at| 2 + hashes + at + end.len())
}

/// The source up to its test module, which stands last.
fn without_tests(text: &str) -> String {
    let cut = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..cut].to_owned()
}

/// Every path in the source with its line; the branches of a `use` tree one by one.
fn paths(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    while let Some(start) = text[at..].find(is_word).map(|begin| at + begin) {
        at = start + branches(&text[start..], "", &mut |path| found.push((1 + text[..start].matches('\n').count(), path.to_owned())));
    }
    found
}

/// Reads one path or `use` tree and reports its branches; returns how far it went.
fn branches(text: &str, before: &str, found: &mut dyn FnMut(&str)) -> usize {
    let word = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let path = if before.is_empty() { text[..word].to_owned() } else { format!("{before}::{}", &text[..word]) };
    let Some(mut at) = text[word..].starts_with("::").then_some(word + 2) else {
        found(&path);
        return word;
    };
    if !text[at..].starts_with('{') {
        return at + branches(&text[at..], &path, found);
    }
    at += 1;
    loop {
        at += text[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(text.len() - at);
        if text[at..].is_empty() || text[at..].starts_with('}') {
            return (at + 1).min(text.len());
        }
        at += branches(&text[at..], &path, found);
        // What may follow a branch is `*` or a new name; `self` and what stands before `*` were reported.
        at += text[at..].find([',', '}']).unwrap_or(text.len() - at);
    }
}

fn sources(folder: &Path, into: &mut Vec<(String, String)>, root: &Path) {
    for entry in fs::read_dir(folder).expect("a folder of src/") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into, root);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let name = path.strip_prefix(root).expect("below src/").display().to_string();
            into.push((name, fs::read_to_string(&path).expect("text")));
        }
    }
}

#[test]
fn the_walls_stand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files, &root);
    assert!(files.iter().any(|(name, _)| name == "model/mod.rs"), "src/ was not read");
    let breaches: Vec<Breach> = files.iter().flat_map(|(name, text)| check(name, text)).collect();
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(file: &str, code: &str) -> Vec<String> {
        check(file, &format!("//! Doc.\n{code}")).iter().map(|breach| format!("{}: {}", breach.line, breach.what)).collect()
    }

    #[test]
    fn each_wall_can_break() {
        for (file, code, what) in [
            ("model/x.rs", "use tokio::sync::watch;", "2: uses `tokio::sync::watch`"),
            ("model/x.rs", "fn f() { let t = std::time::Instant::now(); }", "2: uses `std::time::Instant::now`"),
            ("model/x.rs", "use std::{fmt, fs};", "2: uses `std::fs`"),
            ("model/x.rs", "use crate::linux::LinkChange;", "2: uses `crate::linux::LinkChange`"),
            ("configurator/plan.rs", "\nuse crate::{\n    model::X,\n    linux::{Kernel, Y},\n};", "3: uses `crate::linux::Kernel`"),
            ("configurator/plan/veth.rs", "fn f() { tracing::info!(1); }", "2: uses `tracing::info`"),
            ("configurator/plan/veth.rs", "use crate::configurator::retry::Retries;", "2: uses `crate::configurator::retry::Retries`"),
            ("ovs/x.rs", "use crate::linux::Kernel;", "2: uses `crate::linux::Kernel`"),
            ("linux/x.rs", "use crate::configurator::book::Book;", "2: uses `crate::configurator::book::Book`"),
            ("configurator/pass.rs", "use crate::store::etcd::Source;", "2: uses `crate::store::etcd::Source`"),
            ("configurator/pass.rs", "fn f() { etcd_client::Client::x() }", "2: uses `etcd_client::Client::x`"),
            ("api/x.rs", "use crate::linux::{KernelCounters, KernelOp};", "2: uses `crate::linux::KernelOp`"),
            ("cli/x.rs", "use crate::store::Write;", "2: uses `crate::store::Write`"),
            ("config.rs", "use crate::agent::run;", "2: uses `crate::agent::run`"),
            ("external_node/phase.rs", "use crate::linux::nic::NicKernel;", "2: uses `crate::linux::nic::NicKernel`"),
            ("external_node/controller/x.rs", "use crate::store::etcd::X;", "2: uses `crate::store::etcd::X`"),
            ("namespace/x.rs", "fn f() { nix::sched::setns(a, b); }", "2: uses `nix::sched::setns`"),
            ("namespace/x.rs", "use nix::sched::{self, unshare};", "2: uses `nix::sched::unshare`"),
        ] {
            assert!(broken(file, code).iter().any(|b| b == what), "{code}: {:?}", broken(file, code));
        }
    }

    #[test]
    fn what_is_allowed_stands() {
        for (file, code) in [
            ("model/x.rs", "// tokio and std::fs\nuse std::time::SystemTime;\nuse crate::proto::ligato;"),
            (
                "model/x.rs",
                "const A: &str = \"tokio::x\"; const B: &str = r#\"std::fs \"tracing::\" \"#; const C: char = '\"'; use std::fmt;",
            ),
            ("model/x.rs", "#[cfg(test)]\nmod tests { use std::fs; }"),
            ("configurator/pass.rs", "use crate::store::{StoreEvent, StoreSink}; use tokio::sync::watch;"),
            ("api/x.rs", "use crate::linux::KernelCounters;"),
            ("linux/netns_thread.rs", "fn f() { nix::sched::setns(a, b); }"),
            ("main.rs", "fn main() { vnf_agent::agent::run() }"),
        ] {
            assert_eq!(broken(file, code), Vec::<String>::new(), "{file}: {code}");
        }
    }

    #[test]
    fn a_file_says_what_it_is_and_stays_short() {
        assert_eq!(check("x.rs", "fn f() {}").len(), 1);
        assert_eq!(check("x.rs", &format!("//! Doc.\n{}", "\n".repeat(LONGEST_FILE))).len(), 1);
    }
}
