//! What each field may say, one row per case, through the whole of decoding.

use serde_json::{Value, json};

use crate::model::{Decoded, FieldError, InterfaceKind, InterfaceSpec, NetnsRef, Reason, TapMode, decode_interface};

/// Decodes a good veth with some fields exchanged; `null` takes one away.
fn decode(changes: &Value) -> Decoded {
    let mut wish = json!({"name": "veth1", "veth": {"peer_if_name": "veth2"}});
    for (key, value) in changes.as_object().unwrap() {
        wish[key] = value.clone();
    }
    decode_interface("veth1", wish.to_string().as_bytes())
}

/// The wish and its warnings; no error may be there.
fn good(changes: &Value) -> (InterfaceSpec, Vec<String>) {
    let decoded = decode(changes);
    (decoded.spec.unwrap_or_else(|e| panic!("{changes}: {e:?}")), decoded.warnings)
}

fn plain(changes: &Value) -> InterfaceSpec {
    let (spec, warnings) = good(changes);
    assert_eq!(warnings, Vec::<String>::new(), "{changes}");
    spec
}

fn errors(changes: &Value) -> Vec<FieldError> {
    decode(changes).spec.expect_err(&changes.to_string())
}

/// The only error's reason, field and text.
fn error(changes: &Value) -> (Reason, String, String) {
    let errors = errors(changes);
    assert_eq!(errors.len(), 1, "{changes}: {errors:?}");
    assert!(!errors[0].rule.is_empty() && !errors[0].hint.is_empty(), "{errors:?}");
    (errors[0].reason, errors[0].field.clone(), errors[0].to_string())
}

fn assert_error(changes: &Value, reason: Reason, field: &str, says: &str) {
    let (found, at, text) = error(changes);
    assert_eq!((found, at.as_str()), (reason, field), "{text}");
    assert!(text.contains(says), "{text:?} does not say {says:?}");
}

#[test]
fn a_whole_wish() {
    let spec = plain(&json!({
        "description": "to the core", "type": "VETH", "enabled": true, "ip_addresses": ["10.0.0.1/24", "fd00::1/64"],
        "phys_address": "02-00-00-00-00-0A", "mtu": 9000, "host_if_name": "eth1", "namespace": {"type": "NAMED_NS", "name": "red"},
    }));
    let addresses: Vec<String> = spec.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!((spec.name.as_str(), spec.host_if_name.as_str(), spec.enabled, spec.mtu), ("veth1", "eth1", true, 9000));
    assert_eq!(spec.mac.map(|m| m.to_string()).as_deref(), Some("02:00:00:00:00:0a"));
    assert_eq!(spec.netns, NetnsRef::Named("red".into()));
    assert_eq!(spec.peer().map(|p| p.as_str()), Some("veth2"));

    let least = plain(&json!({}));
    assert_eq!((least.host_if_name.as_str(), least.enabled, least.mtu, least.mac), ("veth1", false, 1500, None));
    assert_eq!((least.netns, least.addresses.len()), (NetnsRef::Default, 0));
}

#[test]
fn names_of_links() {
    for name in ["123456789012345", "eth0.100-x_y", "0"] {
        assert_eq!(plain(&json!({"host_if_name": name})).host_if_name.as_str(), name);
    }
    for (name, says) in [
        ("1234567890123456", "is 16 bytes long, at most 15"),
        ("üüüüüüüü", "is 16 bytes long"),
        (".", "reserved"),
        ("..", "reserved"),
        ("a/b", "a slash"),
        ("a:b", "a colon"),
        ("a b", "a blank"),
        ("a\tb", "a control character"),
        ("rl%d", "a percent sign"),
        ("x\u{202e}y", "bidirectional"),
    ] {
        assert_error(&json!({"host_if_name": name}), Reason::BadName, "host_if_name", says);
    }
}

#[test]
fn logical_names() {
    let wish = |name: &str, more: &str| format!(r#"{{"name":"{name}","veth":{{"peer_if_name":"b"}}{more}}}"#);
    let first = |key: &str, value: String| decode_interface(key, value.as_bytes()).spec.map_err(|e| (e.len(), e[0].clone()));
    let long = "n".repeat(40);
    assert_eq!(first(&long, wish(&long, r#","host_if_name":"eth1""#)).unwrap().name.as_str(), long);

    let (count, e) = first(&long, wish(&long, "")).unwrap_err();
    assert_eq!((count, e.reason, e.field.as_str(), e.value.as_str()), (1, Reason::BadName, "host_if_name", &*long));
    assert!(e.rule.contains("40 bytes") && e.rule.contains("`name` is used"), "{e}");

    for (key, value, says) in [
        ("a/b", wish("a/b", ""), "a slash"),
        ("", wish("", ""), "empty"),
        ("a", wish("", ""), "empty"),
        ("a", r#"{"veth":{"peer_if_name":"b"}}"#.to_owned(), "empty"),
        (&*"x".repeat(254), wish(&"x".repeat(254), ""), "254 bytes"),
    ] {
        let (count, e) = first(key, value).unwrap_err();
        assert_eq!((count, e.reason, e.field.as_str()), (1, Reason::BadName, "name"), "{key:?} {e}");
        assert!(e.rule.contains(says), "{e}");
    }
}

#[test]
fn the_key_and_the_name_agree() {
    let decoded = decode_interface("veth1", br#"{"name":"veth9","mtu":7,"host_if_name":"a b","veth":{"peer_if_name":"x"}}"#);
    let errors = decoded.spec.unwrap_err();
    let reasons: Vec<Reason> = errors.iter().map(|e| e.reason).collect();
    assert_eq!(reasons, [Reason::KeyMismatch, Reason::BadName, Reason::BadMtu]);
    assert!(errors[0].to_string().contains("veth9") && errors[0].to_string().contains("veth1"), "{}", errors[0]);
    // Names are compared byte by byte.
    assert_eq!(decode_interface("veth1", br#"{"name":"VETH1"}"#).spec.unwrap_err()[0].reason, Reason::KeyMismatch);
}

#[test]
fn addresses_without_prefix_and_repeated_ones() {
    let (spec, warnings) = good(&json!({"ip_addresses": ["10.0.0.1", "fd00::1", "10.0.0.2/24"]}));
    let texts: Vec<String> = spec.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.0.1/32", "fd00::1/128", "10.0.0.2/24"]);
    assert!(warnings[0].contains("ip_addresses[0] `10.0.0.1`") && warnings[0].contains("10.0.0.1/32"), "{warnings:?}");
    assert_eq!(warnings.len(), 2);

    let (spec, warnings) = good(&json!({"ip_addresses": ["10.0.0.1/24", "10.0.0.1/24", "fd00::1/64", "FD00:0::1/64"]}));
    let texts: Vec<String> = spec.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[1].contains("ip_addresses[3] `FD00:0::1/64` is the same as ip_addresses[2]"), "{warnings:?}");

    // The kernel keeps one IPv4 address with two prefix lengths, but not so for IPv6.
    assert_eq!(plain(&json!({"ip_addresses": ["10.0.0.1/24", "10.0.0.1/32"]})).addresses.len(), 2);
    assert_error(&json!({"ip_addresses": ["fd00::1/64", "fd00::1/48"]}), Reason::BadAddress, "ip_addresses[1]", "ip_addresses[0]");
}

#[test]
fn addresses_at_the_edge() {
    for text in ["127.0.0.5/8", "10.0.0.0/24", "10.0.0.1/0", "240.0.0.1/24", "fe80::5/64", "fd00::1/0", "169.254.1.1/16", "10.0.0.1/31"] {
        assert_eq!(plain(&json!({"ip_addresses": [text]})).addresses[0].to_string(), text);
    }
    for (text, says) in [
        ("10.0.0.1/33", "0 to 32"),
        ("1.1.1.1/50000000", "0 to 32"),
        ("10.0.0.1/-1", "0 to 32"),
        ("10.0.0.1/+24", "0 to 32"),
        ("10.0.0.1/024", "0 to 32"),
        ("10.0.0.1/", "0 to 32"),
        ("10.0.0.1/255.255.255.0", "0 to 32"),
        ("10.0.0.1/24/24", "0 to 32"),
        ("fd00::1/129", "0 to 128"),
        ("224.0.0.1/24", "multicast"),
        ("ff02::1/64", "multicast"),
        ("0.0.0.0/0", "unspecified"),
        ("::/64", "unspecified"),
        ("255.255.255.255/32", "broadcast"),
        ("::1/128", "loopback"),
        ("::ffff:10.0.0.1/96", "write it as 10.0.0.1"),
        ("100.000.000.001/024", "leading zeros"),
        ("010.0.0.1/8", "leading zeros"),
        (" 10.0.0.1/24 ", "blanks"),
        ("10.0.0.1/24\n", "blanks"),
        ("fe80::1%eth0/64", "zone"),
        ("", "no IP address"),
        ("/24", "no IP address"),
        ("10.0.0/24", "no IP address"),
        ("alloc:net1", "no IP address"),
        ("host.example/24", "no IP address"),
    ] {
        let list = json!({"ip_addresses": ["10.9.9.9/24", text]});
        assert_error(&list, Reason::BadAddress, "ip_addresses[1]", says);
    }
}

#[test]
fn hardware_addresses() {
    for text in ["02:00:5e:10:00:FF", "02-00-5e-10-00-ff", "0200.5e10.00ff"] {
        assert_eq!(plain(&json!({"phys_address": text})).mac.map(|m| m.to_string()).as_deref(), Some("02:00:5e:10:00:ff"));
    }
    for (text, says) in [
        ("01:00:5e:00:00:01", "multicast"),
        ("ff:ff:ff:ff:ff:ff", "broadcast"),
        ("00:00:00:00:00:00", "all zero"),
        ("02:00:00:00:00", "six bytes"),
        ("02:00:00:00:00:00:00", "six bytes"),
    ] {
        assert_error(&json!({"phys_address": text}), Reason::BadMac, "phys_address", says);
    }
}

#[test]
fn mtus() {
    let v6 = json!(["fd00::1/64"]);
    for (mtu, addresses, taken) in
        [(0, json!([]), 1500), (68, json!(["10.0.0.1/24"]), 68), (65535, json!([]), 65535), (1280, v6.clone(), 1280)]
    {
        assert_eq!(plain(&json!({"mtu": mtu, "ip_addresses": addresses})).mtu, taken);
    }
    for (mtu, addresses, says) in [
        (1, json!([]), "68 to 65535"),
        (67, json!([]), "68"),
        (65536, json!([]), "65535"),
        (u32::MAX, json!([]), "65535"),
        (1279, v6, "1280"),
    ] {
        assert_error(&json!({"mtu": mtu, "ip_addresses": addresses}), Reason::BadMtu, "mtu", says);
    }
}

#[test]
fn peers() {
    for (veth, says) in [
        (json!(null), "must name"),
        (json!({}), "must name"),
        (json!({"peer_if_name": ""}), "must name"),
        (json!({"peer_if_name": "veth1"}), "itself"),
        (json!({"peer_if_name": "a/b"}), "slash"),
        (json!({"peer_if_name": "x".repeat(254)}), "254 bytes"),
    ] {
        assert_error(&json!({"veth": veth}), Reason::BadPeer, "veth.peer_if_name", says);
    }
}

#[test]
fn kinds() {
    let auto = |tap: Value| good(&json!({"type": "AUTO_TAP", "veth": null, "host_if_name": "eth1", "tap": tap}));
    let temporary = |spec: InterfaceSpec| match spec.kind {
        InterfaceKind::AutoTap { temporary } => temporary.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(temporary(auto(json!(null)).0), "eth1");
    assert_eq!(temporary(auto(json!({"temp_if_name": "tap7"})).0), "tap7");
    let (_, warnings) = auto(json!({"owner": 0, "mode": "TUN"}));
    assert!(warnings.len() == 2 && warnings[0].contains("tap.mode") && warnings[1].contains("tap.owner"), "{warnings:?}");
    assert_error(&json!({"type": 1, "veth": null, "tap": {"temp_if_name": "a b"}}), Reason::BadName, "tap.temp_if_name", "a blank");

    let made = plain(&json!({"type": "tap", "veth": null, "tap": {"mode": "TUN", "owner": 0, "multi_queue": true}}));
    let InterfaceKind::Tap(tap) = made.kind else { panic!("{made:?}") };
    assert_eq!((tap.mode, tap.owner, tap.group, tap.multi_queue, tap.vnet_hdr), (TapMode::Tun, Some(0), None, true, false));
    let bare = plain(&json!({"type": 2, "veth": null}));
    assert!(matches!(bare.kind, InterfaceKind::Tap(t) if t.mode == TapMode::Tap && t.owner.is_none()));

    let tun = json!({"type": 2, "veth": null, "tap": {"mode": 1}, "phys_address": "02:00:00:00:00:01"});
    assert_error(&tun, Reason::BadMac, "phys_address", "no hardware address");
    let mtu = |mode: u8, mtu: u32| json!({"type": 2, "veth": null, "tap": {"mode": mode}, "mtu": mtu});
    assert_eq!((plain(&mtu(0, 65521)).mtu, plain(&mtu(1, 65535)).mtu), (65521, 65535));
    assert_error(&mtu(0, 65522), Reason::BadMtu, "mtu", "65521");
    assert_error(&json!({"type": 2, "veth": null, "tap": {"group": u32::MAX}}), Reason::BadType, "tap.group", "nobody");

    for (changes, says) in [
        (json!({"tap": {}}), "tap is ignored"),
        (json!({"type": 2}), "veth is ignored"),
        (json!({"type": 1}), "veth is ignored"),
        (json!({"type": 2, "veth": null, "tap": {"temp_if_name": "x"}}), "tap.temp_if_name is ignored"),
    ] {
        let (_, warnings) = good(&changes);
        assert!(warnings.len() == 1 && warnings[0].contains(says), "{changes}: {warnings:?}");
    }
}

#[test]
fn namespaces() {
    let file = |path: &str| NetnsRef::File(path.into());
    for (namespace, wanted) in [
        (json!(null), NetnsRef::Default),
        (json!({"type": 2, "name": "red"}), NetnsRef::Named("red".into())),
        (json!({"type": "NAMED_NS", "name": "a b"}), NetnsRef::Named("a b".into())),
        (json!({"type": 2, "name": "n".repeat(255)}), NetnsRef::Named("n".repeat(255))),
        (json!({"type": 1, "microservice": "ms/1"}), NetnsRef::Microservice("ms/1".into())),
        (json!({"pid": 7}), NetnsRef::Pid(7)),
        (json!({"type": 0, "pid": 999_999}), NetnsRef::Pid(999_999)),
        (json!({"type": 3, "filepath": "/var/run/netns/red"}), file("/run/netns/red")),
        (json!({"type": 3, "filepath": "/run//docker/./netns/ab12/"}), file("/run/docker/netns/ab12")),
        (json!({"type": 3, "filepath": "/proc/12/ns/net"}), file("/proc/12/ns/net")),
    ] {
        let spec = plain(&json!({"namespace": namespace}));
        assert_eq!(spec.netns, wanted);
        if let NetnsRef::File(path) = &wanted {
            assert_eq!(spec.netns.reference(), path.display().to_string(), "one spelling");
        }
    }
}

#[test]
fn namespaces_that_are_odd() {
    for namespace in [json!({}), json!({"name": "", "filepath": null}), json!({"type": null})] {
        let (spec, warnings) = good(&json!({"namespace": namespace}));
        assert_eq!(spec.netns, NetnsRef::Default);
        assert!(warnings.len() == 1 && warnings[0].contains("nothing set"), "{warnings:?}");
    }
    let (spec, warnings) = good(&json!({"namespace": {"type": 2, "name": "red", "pid": 0, "filepath": "/x"}}));
    assert_eq!(spec.netns, NetnsRef::Named("red".into()));
    assert!(warnings.len() == 2 && warnings[0].contains("namespace.pid `0` is ignored: namespace.type is NAMED_NS"), "{warnings:?}");
}

#[test]
fn namespaces_that_are_refused() {
    let long_path = format!("/run/{}", "a".repeat(4095));
    for (namespace, field, says) in [
        (json!({"pid": 0}), "pid", "1 to 4194304"),
        (json!({"type": 0, "pid": 0}), "pid", "1 to 4194304"),
        (json!({"type": 0}), "pid", "must be given"),
        (json!({"pid": u32::MAX}), "pid", "1 to 4194304"),
        // Without `type` it is a PID; the default namespace would be a bad guess.
        (json!({"name": "red"}), "pid", "no `type` means PID_REF_NS; if `name` is meant, write type NAMED_NS"),
        (json!({"type": 2}), "name", "must not be empty"),
        (json!({"type": 2, "name": "."}), "name", "folder"),
        (json!({"type": 2, "name": ".."}), "name", "folder"),
        (json!({"type": 2, "name": "../x"}), "name", "slash"),
        (json!({"type": 2, "name": "a\u{0}b"}), "name", "control"),
        (json!({"type": 2, "name": "a\nb"}), "name", "control"),
        (json!({"type": 2, "name": "n".repeat(256)}), "name", "256 bytes"),
        (json!({"type": 1}), "microservice", "must not be empty"),
        (json!({"type": 1, "microservice": "m".repeat(254)}), "microservice", "254 bytes"),
        (json!({"type": 1, "microservice": "a\u{1b}[31m"}), "microservice", "control"),
        (json!({"type": 3}), "filepath", "absolute"),
        (json!({"type": 3, "filepath": "run/netns/a"}), "filepath", "absolute"),
        (json!({"type": 3, "filepath": "/run/../etc/passwd"}), "filepath", "`..`"),
        (json!({"type": 3, "filepath": "/run/netns/.."}), "filepath", "`..`"),
        (json!({"type": 3, "filepath": "/run/a\u{0}b"}), "filepath", "NUL"),
        (json!({"type": 3, "filepath": long_path}), "filepath", "4100 bytes"),
        (json!({"type": 3, "filepath": "/"}), "filepath", "below /run"),
        (json!({"type": 3, "filepath": "/run"}), "filepath", "below /run"),
        (json!({"type": 3, "filepath": "/var/run/"}), "filepath", "below /run"),
        (json!({"type": 3, "filepath": "/runx/a"}), "filepath", "below /run"),
        (json!({"type": 3, "filepath": "/tmp/a"}), "filepath", "below /run"),
        (json!({"type": 3, "filepath": "/proc/self/ns/net"}), "filepath", "/proc/<pid>/ns/net"),
        (json!({"type": 3, "filepath": "/proc/thread-self/ns/net"}), "filepath", "/proc/<pid>/ns/net"),
        (json!({"type": 3, "filepath": "/proc/1/ns/ipc"}), "filepath", "/proc/<pid>/ns/net"),
        (json!({"type": 3, "filepath": "/proc/1/root/run/netns/a"}), "filepath", "/proc/<pid>/ns/net"),
        (json!({"type": 3, "filepath": "/proc/012/ns/net"}), "filepath", "/proc/<pid>/ns/net"),
        (json!({"type": 3, "filepath": "/proc/0/ns/net"}), "filepath", "/proc/<pid>/ns/net"),
    ] {
        assert_error(&json!({"namespace": namespace}), Reason::BadNamespace, &format!("namespace.{field}"), says);
    }
}

#[test]
fn every_reason_at_once() {
    let found = errors(&json!({
        "host_if_name": "a/b", "ip_addresses": ["x", "10.0.0.1/24", "y"], "phys_address": "z", "mtu": 3,
        "namespace": {"type": 2}, "veth": {"peer_if_name": "veth1"},
    }));
    let fields: Vec<&str> = found.iter().map(|e| e.field.as_str()).collect();
    let wanted = ["host_if_name", "ip_addresses[0]", "ip_addresses[2]", "phys_address", "mtu", "namespace.name", "veth.peer_if_name"];
    assert_eq!(fields, wanted);

    let names_first = errors(&json!({"type": 1, "veth": null, "mtu": 3, "tap": {"temp_if_name": "a b"}}));
    assert_eq!((names_first[0].reason, names_first[1].reason), (Reason::BadName, Reason::BadMtu));

    let many = errors(&json!({"ip_addresses": vec!["x"; 100_000], "host_if_name": "a b"}));
    assert_eq!((many.len(), many[0].field.as_str()), (65, "host_if_name"));
    assert_eq!(many[64].rule, "has 99937 more errors");
}

#[test]
fn what_a_bad_value_still_tells() {
    let outline = decode(&json!({"mtu": 3, "host_if_name": "e".repeat(100), "namespace": {"type": 2, "name": "red"}})).outline;
    assert_eq!((outline.host_if_name.chars().count(), outline.namespace_kind, &*outline.namespace_reference), (65, "NAMED", "red"));
    assert_eq!(outline.peer, "veth2");
    // Also where a field has the wrong type.
    let outline = decode(&json!({"mtu": true, "namespace": {"pid": 5}})).outline;
    assert_eq!((&*outline.host_if_name, outline.namespace_kind, &*outline.namespace_reference), ("veth1", "PID", "5"));
    // And of a good one everything, unshortened.
    let path = format!("/run/{}", "a".repeat(200));
    let outline = decode(&json!({"namespace": {"type": 3, "filepath": format!("/var{path}")}})).outline;
    assert_eq!((outline.namespace_kind, &*outline.namespace_reference), ("FILE", &*path));
    assert_eq!(decode_interface("veth1", b"{").outline.namespace_kind, "");
}
