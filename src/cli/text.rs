//! Texts for a terminal: nothing from outside steers it or reads otherwise than it is.

use crate::telemetry::misleads;

/// The text with control, bidirectional and invisible characters escaped.
pub fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// The same for a text of several lines, with a line feed at its end.
pub fn safe_lines(text: &str) -> String {
    text.lines().map(|line| safe(line) + "\n").collect()
}

/// The same for text that is JSON already: line feeds between its parts stay, and escapes are JSON's.
pub fn safe_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // The serializer leaves no control character below U+0020 inside of strings, and all others that mislead have four digits.
        if misleads(c) && c != '\n' { safe.push_str(&format!("\\u{:04x}", u32::from(c))) } else { safe.push(c) }
    }
    safe
}

/// How long ago a moment was, in the largest unit that tells enough.
pub fn age(then: Option<&prost_types::Timestamp>, now: i64) -> String {
    let Some(then) = then else { return String::new() };
    let seconds = (now - then.seconds).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(safe("a\x1b[31m\nb\u{202e}c\u{9b}d"), "a\\u{1b}[31m\\nb\\u{202e}c\\u{9b}d");
        assert_eq!(safe("vêth-1 ✓"), "vêth-1 ✓");
        let evil = "a\u{202e}b\u{9b}\x1b\n";
        let json = safe_json(&serde_json::json!({ "name": evil }).to_string());
        assert!(!json.contains(misleads), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["name"], evil);
    }

    #[test]
    fn ages() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let shown: Vec<String> =
            [1000, 995, 881, 880, -6199, -6200, -171_799, -171_800, 2000].iter().map(|t| age(at(*t).as_ref(), 1000)).collect();
        assert_eq!(shown, ["0s", "5s", "119s", "2m", "119m", "2h", "47h", "2d", "0s"]);
        assert_eq!(age(None, 1000), "");
    }
}
