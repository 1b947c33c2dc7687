//! Encodings: what is taken in which spelling, what is refused and where the error lies; and properties that hold for all input.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::model::{HostIfName, InterfaceKind, InterfaceName, NetnsRef, interface};
use crate::proto::ligato::{Interface, Namespace, Tap, Veth};

/// A good value with some text put in after the name.
fn with(more: &str) -> String {
    format!(r#"{{"name":"veth1","veth":{{"peer_if_name":"veth2"}}{more}}}"#)
}

fn decode(value: &[u8]) -> Decoded {
    decode_interface("veth1", value)
}

/// The spec of a good value without warnings.
fn taken(value: &str) -> InterfaceSpec {
    let decoded = decode(value.as_bytes());
    assert_eq!(decoded.warnings, Vec::<String>::new(), "{value}");
    decoded.spec.unwrap_or_else(|e| panic!("{value}: {e:?}"))
}

/// Field and text of the only error, which is BAD_ENCODING.
fn refused(value: &[u8]) -> (String, String) {
    let errors = decode(value).spec.expect_err(&String::from_utf8_lossy(&value[..value.len().min(200)]));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].reason, Reason::BadEncoding);
    assert!(errors[0].value.chars().count() <= report::SHOWN_MAX + 1);
    (errors[0].field.clone(), errors[0].to_string())
}

#[test]
fn undecodable_values_say_where() {
    let utf16: Vec<u8> = [0xfeff_u16].into_iter().chain(with("").encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
    let junk = with("") + "}";
    let (size, junk_at) = ("A".repeat(1_000_000), format!("at byte {}", junk.len() - 1));
    let rows: [(&[u8], &str); 18] = [
        (b"", "empty (byte 0)"),
        (b" ", "blank (bytes 0 to 0)"),
        (b" \n\t ", "blank (bytes 0 to 3)"),
        (b"{", "at byte 1"),
        (b"null", "not null (at byte 0)"),
        (b"[]", "not a list (at byte 0)"),
        (b"  []", "not a list (at byte 2)"),
        (b"\"veth1\"", "not a string (at byte 0)"),
        (b"17", "not a number (at byte 0)"),
        (b"true", "not a boolean (at byte 0)"),
        (&utf16, "UTF-16"),
        (&utf16[2..], "UTF-16"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (size.as_bytes(), "at byte 0"),
        (junk.as_bytes(), &junk_at),
        (deep.as_bytes(), "recursion limit"),
        (b"{\"name\":\"\xff\"}", "at byte 9"),
        (b"name: veth1\n", "neither JSON"),
    ];
    for (value, says) in rows {
        let (field, text) = refused(value);
        assert_eq!(field, "", "{text}");
        assert!(text.contains(says), "{text:?} does not say {says:?}");
    }
}

#[test]
fn keys_in_every_spelling() {
    let plain = taken(&with(r#","ip_addresses":["10.0.0.1/24"],"host_if_name":"eth1""#));
    for more in [
        r#","ipAddresses":["10.0.0.1/24"],"hostIfName":"eth1""#,
        r#","Ip_Addresses":["10.0.0.1/24"],"HOST_IF_NAME":"eth1""#,
        r#","IPADDRESSES":["10.0.0.1/24"],"HostIfName":"eth1""#,
    ] {
        assert_eq!(taken(&with(more)), plain, "{more}");
    }
}

#[test]
fn ambiguous_keys_are_named() {
    for (more, field, says) in [
        (r#","ip_addresses":[],"ipAddresses":[]"#, "ip_addresses", "as `ip_addresses` and as `ipAddresses`"),
        (r#","mtu":1500,"mtu":1500"#, "mtu", "is given twice"),
        (r#","mtu":1500,"MTU":null"#, "mtu", "as `mtu` and as `MTU`"),
        (r#","namespace":{"pid":1,"pid":2}"#, "namespace.pid", "is given twice"),
        (r#","foo":1,"foo":2"#, "foo", "is given twice"),
        (r#","foo":[{"a":1,"a":2}]"#, "foo[0].a", "is given twice"),
    ] {
        let (at, text) = refused(with(more).as_bytes());
        assert_eq!(at, field, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn enums_by_name_or_number() {
    let plain = taken(&with(""));
    for more in [r#","type":0"#, r#","type":"VETH""#, r#","type":"veth""#, r#","type":"Veth""#, r#","type":null"#] {
        assert_eq!(taken(&with(more)), plain, "{more}");
    }
    for kind in ["99", "-1", "\"BRIDGE\"", "\"\"", "\"0\"", "1.0", "true", "[]", "4294967296"] {
        let (field, text) = refused(with(&format!(r#","type":{kind}"#)).as_bytes());
        assert_eq!(field, "type", "{kind}");
        assert!(text.contains("VETH (0), AUTO_TAP (1), TAP (2)"), "{text}");
    }
    let (field, _) = refused(with(r#","namespace":{"type":"NSID"}"#).as_bytes());
    assert_eq!(field, "namespace.type");
}

#[test]
fn types_are_not_coerced() {
    for more in [r#","mtu":1500"#, r#","mtu":"1500""#, r#","mtu":null"#, r#","ip_addresses":null"#, r#","namespace":null,"tap":null"#] {
        taken(&with(more));
    }
    for (more, field) in [
        (r#","mtu":-1"#, "mtu"),
        (r#","mtu":1500.0"#, "mtu"),
        (r#","mtu":1.5e3"#, "mtu"),
        (r#","mtu":-0"#, "mtu"),
        (r#","mtu":4294967296"#, "mtu"),
        (r#","mtu":99999999999999999999999"#, "mtu"),
        (r#","mtu":true"#, "mtu"),
        (r#","mtu":"+1500""#, "mtu"),
        (r#","mtu":" 1500""#, "mtu"),
        (r#","mtu":"01500""#, "mtu"),
        (r#","mtu":"-0""#, "mtu"),
        (r#","mtu":"""#, "mtu"),
        (r#","mtu":"1500.0""#, "mtu"),
        (r#","enabled":"true""#, "enabled"),
        (r#","enabled":1"#, "enabled"),
        (r#","host_if_name":7"#, "host_if_name"),
        (r#","ip_addresses":"10.0.0.1/24""#, "ip_addresses"),
        (r#","ip_addresses":{}"#, "ip_addresses"),
        (r#","ip_addresses":["10.0.0.1/24",null]"#, "ip_addresses[1]"),
        (r#","ip_addresses":[1]"#, "ip_addresses[0]"),
        (r#","namespace":"red""#, "namespace"),
        (r#","namespace":[]"#, "namespace"),
        (r#","namespace":{"pid":"x"}"#, "namespace.pid"),
        (r#","tap":{"multi_queue":0}"#, "tap.multi_queue"),
    ] {
        assert_eq!(refused(with(more).as_bytes()).0, field, "{more}");
    }
    let errors = decode(with(r#","mtu":true,"enabled":"x","host_if_name":"a b""#).as_bytes()).spec.unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["mtu", "enabled"], "all of the wrong types, and nothing about the meaning");
}

#[test]
fn unknown_fields_are_taken_with_a_warning() {
    for (more, says) in [
        (r#","ip_adresses":["10.0.0.1/24"]"#, "`ip_adresses` is not known and was ignored; did you mean `ip_addresses`?"),
        (
            r#","namespace":{"type":2,"name":"a","file_path":"/x"}"#,
            "`namespace.file_path` is not known and was ignored; did you mean `filepath`?",
        ),
        (r#","vlan":{"id":7,"x":[null,1.5]}"#, "`vlan` is not known and was ignored"),
    ] {
        let decoded = decode(with(more).as_bytes());
        assert!(decoded.spec.is_ok(), "{more}: {:?}", decoded.spec);
        assert_eq!(decoded.warnings.len(), 1, "{more}");
        assert!(decoded.warnings[0].contains(says), "{:?}", decoded.warnings);
    }
    let many: String = (0..50_000).map(|i| format!(r#","x{i}":{i}"#)).collect();
    let decoded = decode(with(&many).as_bytes());
    assert!(decoded.spec.is_ok());
    assert_eq!((decoded.warnings.len(), &*decoded.warnings[64]), (65, "49936 more warnings"));
}

fn message() -> Interface {
    Interface { name: "veth1".into(), veth: Some(Veth { peer_if_name: "veth2".into() }), ..Interface::default() }
}

#[test]
fn binary_values() {
    let whole = Interface { mtu: 9000, ip_addresses: vec!["10.0.0.1/24".into()], ..message() }.encode_to_vec();
    assert_eq!(decode(&whole).spec.unwrap(), taken(&with(r#","mtu":9000,"ip_addresses":["10.0.0.1/24"]"#)));

    // Field 77, a varint: unknown, at the top and inside of `veth`.
    let decoded = decode(&[&*whole, &[0xe8, 0x04, 1], &[0x52, 3, 0xe8, 0x04, 1]].concat());
    assert!(decoded.spec.is_ok(), "{:?}", decoded.spec);
    assert_eq!(decoded.warnings.len(), 2, "{:?}", decoded.warnings);
    assert!(decoded.warnings.iter().any(|w| w.contains("`veth.77`")), "{:?}", decoded.warnings);

    let strange = Interface { r#type: 99, ..message() }.encode_to_vec();
    let (field, text) = refused(&strange);
    assert!(field == "type" && text.contains("`99`") && text.contains("AUTO_TAP (1)"), "{text}");
    let nested = Namespace { r#type: Some(7), ..Namespace::default() };
    assert_eq!(refused(&Interface { namespace: Some(nested), ..message() }.encode_to_vec()).0, "namespace.type");

    let zero = Namespace { pid: Some(0), ..Namespace::default() };
    let errors = decode(&Interface { namespace: Some(zero), ..message() }.encode_to_vec()).spec.unwrap_err();
    assert_eq!((errors[0].reason, &*errors[0].field), (Reason::BadNamespace, "namespace.pid"));

    let (_, text) = refused(&whole[..whole.len() - 1]);
    assert!(text.contains("binary protobuf") && text.contains("byte"), "{text}");
    assert!(refused(&[0xe8, 0x04, 1]).1.contains("no field in it is known"));
}

#[test]
fn a_name_that_looks_like_json() {
    // 0x0a and the length 123 read as a line feed and `{`; 0x0a and the length 10 as two line feeds.
    for name in ["n".repeat(123), "{bcdefghij".to_owned(), "[bcdefghij".to_owned()] {
        let value = Interface { name: name.clone(), host_if_name: "eth1".into(), ..message() }.encode_to_vec();
        assert_eq!(decode_interface(&name, &value).spec.unwrap().name.as_str(), name);
    }
    assert_eq!(taken(&format!("\n \t{}\n", with(""))), taken(&with("")));
}

/// Texts that are now and then legal.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("veth1".to_owned()),
        Just("veth2".to_owned()),
        Just("10.0.0.1/24".to_owned()),
        Just("fd00::1/64".to_owned()),
        Just("02:00:00:00:00:01".to_owned()),
        Just("/run/netns/a".to_owned()),
        Just("/proc/1/ns/net".to_owned()),
        Just(String::new()),
        "[a-z]{1,8}",
        "\\PC{0,20}",
        any::<String>()
    ]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1500), any::<u32>()]
}

prop_compose! {
    fn namespaces()(kind in of(0..4), pid in of(number()), texts in [text(), text(), text()]) -> Namespace {
        let [microservice, name, filepath] = texts;
        Namespace { r#type: kind, pid, microservice, name, filepath }
    }
}

prop_compose! {
    fn taps()(temp_if_name in text(), mode in 0..2, ids in [of(number()), of(number())], flags in any::<[bool; 2]>()) -> Tap {
        Tap { temp_if_name, mode, owner: ids[0], group: ids[1], multi_queue: flags[0], vnet_hdr: flags[1] }
    }
}

prop_compose! {
    fn wishes()(
        (r#type, enabled, mtu) in (0..3, any::<bool>(), number()),
        texts in [text(), text(), text(), text()],
        ip_addresses in vec(text(), 0..4),
        (namespace, veth, tap) in (of(namespaces()), of(text()), of(taps())),
    ) -> Interface {
        let [name, description, phys_address, host_if_name] = texts;
        let veth = veth.map(|peer_if_name| Veth { peer_if_name });
        Interface { name, description, r#type, enabled, ip_addresses, phys_address, mtu, host_if_name, namespace, veth, tap }
    }
}

/// The message as JSON: camelCase or snake_case, enums by number or name, fields in reverse order or not.
fn as_json(wish: &Interface, snake: bool, reverse: bool) -> Vec<u8> {
    let mut message = DynamicMessage::new(descriptor(&Interface::full_name()).unwrap());
    message.transcode_from(wish).unwrap();
    let options = prost_reflect::SerializeOptions::new().use_proto_field_name(snake).use_enum_numbers(snake);
    let value = message.serialize_with_options(serde_json::value::Serializer, &options).unwrap();
    let serde_json::Value::Object(map) = value else { panic!("{value}") };
    let mut entries: Vec<_> = map.into_iter().collect();
    if reverse {
        entries.reverse();
    }
    serde_json::to_vec(&entries.into_iter().collect::<serde_json::Map<_, _>>()).unwrap()
}

/// Holds again, by the constructors, what a wish must hold.
fn assert_legal(key: &str, spec: &InterfaceSpec) {
    assert_eq!(spec.name.as_str(), key);
    assert!(InterfaceName::new(key).is_ok() && HostIfName::new(spec.host_if_name.as_str()).is_ok());
    let least = if spec.has_ipv6() { interface::MTU_MIN_IPV6 } else { interface::MTU_MIN };
    assert!((least..=interface::MTU_MAX).contains(&spec.mtu), "{spec:?}");
    for (i, address) in spec.addresses.iter().enumerate() {
        assert!(!address.ip().is_multicast() && !address.ip().is_unspecified(), "{address}");
        let same = |other: &crate::model::InterfaceAddress| other == address || (other.is_ipv6() && other.ip() == address.ip());
        assert!(!spec.addresses[..i].iter().any(same), "{spec:?}");
    }
    match &spec.kind {
        InterfaceKind::Veth { peer } => assert_ne!(peer, &spec.name),
        InterfaceKind::AutoTap { temporary } => assert!(HostIfName::new(temporary.as_str()).is_ok()),
        InterfaceKind::Tap(tap) => assert!(tap.owner != Some(u32::MAX) && tap.group != Some(u32::MAX)),
    }
    match &spec.netns {
        NetnsRef::Default => {}
        NetnsRef::Named(name) => assert!(!name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."),
        NetnsRef::Pid(pid) => assert_ne!(*pid, 0),
        NetnsRef::File(path) => assert!(path.is_absolute() && !path.components().any(|c| c == std::path::Component::ParentDir)),
        NetnsRef::Microservice(label) => assert!(!label.is_empty() && label.len() <= 253),
    }
}

fn assert_sound(key: &str, decoded: &Decoded) {
    match &decoded.spec {
        Ok(spec) => assert_legal(key, spec),
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|e| e.value.chars().count() <= 65 && !e.rule.is_empty() && !e.hint.is_empty()), "{errors:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn no_bytes_do_harm(value in vec(any::<u8>(), 0..200)) {
        assert_sound("veth1", &decode(&value));
    }

    #[test]
    fn damaged_values_do_no_harm(wish in wishes(), json in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut value = if json { as_json(&wish, true, false) } else { wish.encode_to_vec() };
        if !value.is_empty() {
            let at = at.index(value.len());
            value[at] = byte;
        }
        assert_sound(&wish.name, &decode_interface(&wish.name, &value));
    }

    #[test]
    fn every_encoding_says_the_same(wish in wishes(), reverse in any::<bool>()) {
        let binary = wish.encode_to_vec();
        prop_assume!(!binary.is_empty());
        let decoded = decode_interface(&wish.name, &binary);
        assert_sound(&wish.name, &decoded);
        prop_assert_eq!(&decode_interface(&wish.name, &as_json(&wish, true, reverse)), &decoded);
        prop_assert_eq!(&decode_interface(&wish.name, &as_json(&wish, false, reverse)), &decoded);
    }

    #[test]
    fn addresses_mean_what_the_standard_parser_reads(ip in any::<std::net::IpAddr>(), prefix in 0..=128u8) {
        let spec = decode(with(&format!(r#","ip_addresses":["{ip}/{prefix}"]"#)).as_bytes()).spec;
        if let Ok(spec) = spec {
            prop_assert_eq!(spec.addresses[0], crate::model::InterfaceAddress::new(ip, prefix).unwrap());
        } else {
            let odd = ip.is_multicast() || ip.is_unspecified() || ip.to_string().starts_with("::") || ip.to_string() == "255.255.255.255";
            prop_assert!(odd || (ip.is_ipv4() && prefix > 32), "{}", ip);
        }
    }
}
