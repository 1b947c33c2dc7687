//! Wishes as users write them.

use serde_json::{Value, json};

/// One end of a pair in a named namespace (the agent's own if empty), up, with more fields set or replaced by `more`.
pub fn veth(name: &str, peer: &str, netns: &str, more: Value) -> Value {
    let mut wish = json!({"name": name, "type": "VETH", "enabled": true, "veth": {"peer_if_name": peer}});
    if !netns.is_empty() {
        wish["namespace"] = json!({"type": "NAMED_NS", "name": netns});
    }
    let Value::Object(more) = more else { panic!("more fields, as an object") };
    more.into_iter().for_each(|(field, value)| wish[field] = value);
    wish
}

/// "The pair" of the cases: the values of `examples/pair`, veth1 in `red` with 10.11.1.1/24 and veth2 in `blue` with 10.11.1.2/24.
pub fn the_pair() -> [Value; 2] {
    [include_str!("../../examples/pair/veth1.json"), include_str!("../../examples/pair/veth2.json")]
        .map(|text| serde_json::from_str(text).expect("the example is JSON"))
}

/// The n-th of many pairs, `a<n>` in one namespace and `b<n>` in the other, each with an address of its own subnet.
pub fn pair(n: usize, a: &str, b: &str) -> [Value; 2] {
    let (left, right) = (format!("a{n}"), format!("b{n}"));
    let net = format!("10.{}.{}", 100 + n / 250, n % 250);
    [
        veth(&left, &right, a, json!({"ip_addresses": [format!("{net}.1/24")]})),
        veth(&right, &left, b, json!({"ip_addresses": [format!("{net}.2/24")]})),
    ]
}

/// The logical name in a wish.
pub fn name(wish: &Value) -> &str {
    wish["name"].as_str().expect("a wish has a name")
}

/// A wish with some fields replaced.
pub fn with(wish: &Value, more: Value) -> Value {
    let mut wish = wish.clone();
    let Value::Object(more) = more else { panic!("more fields, as an object") };
    more.into_iter().for_each(|(field, value)| wish[field] = value);
    wish
}

/// A TAP that someone else makes under this name, for a named namespace (the agent's own if empty), up, with more fields set or replaced by `more`.
pub fn auto_tap(name: &str, netns: &str, temporary: &str, more: Value) -> Value {
    let wish = with(&json!({"name": name, "type": "AUTO_TAP", "enabled": true, "tap": {"temp_if_name": temporary}}), more);
    if netns.is_empty() { wish } else { with(&wish, json!({"namespace": {"type": "NAMED_NS", "name": netns}})) }
}

/// A TAP that the agent makes in a named namespace (its own if empty), up, with these settings, and more fields set or replaced by `more`.
pub fn tap(name: &str, netns: &str, settings: Value, more: Value) -> Value {
    let wish = with(&json!({"name": name, "type": "TAP", "enabled": true, "tap": settings}), more);
    if netns.is_empty() { wish } else { with(&wish, json!({"namespace": {"type": "NAMED_NS", "name": netns}})) }
}
