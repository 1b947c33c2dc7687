//! Cuts a stream of JSON values, which follow each other without any framing, into single messages.
//!
//! It looks at every byte once, however the stream is cut; what is between the braces is left to the JSON parser.

use super::value::Malformed;

/// Largest message that is taken (bytes). The first listing of a bridge with 10,000 ports has some 8 MiB.
pub(super) const LARGEST_MESSAGE: usize = 64 * 1024 * 1024;

/// Where in a message the last byte was.
#[derive(Debug, Default)]
pub(super) struct Framer {
    bytes: Vec<u8>,
    /// How much of `bytes` was looked at.
    seen: usize,
    depth: u32,
    in_text: bool,
    escaped: bool,
}

impl Framer {
    /// Takes what was read; hands out the messages that are complete now, each as the bytes of one JSON object.
    ///
    /// # Errors
    /// What no server says: something other than an object, or one that is longer than [`LARGEST_MESSAGE`].
    pub(super) fn push(&mut self, read: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        self.bytes.extend_from_slice(read);
        let mut messages = Vec::new();
        let mut begin = 0;
        while let Some(byte) = self.bytes.get(self.seen) {
            let ends = self.step(*byte)?;
            self.seen += 1;
            if ends {
                messages.push(self.bytes[begin..self.seen].to_vec());
                begin = self.seen;
            } else if self.depth == 0 {
                begin = self.seen;
            }
        }
        self.bytes.drain(..begin);
        self.seen -= begin;
        if self.bytes.len() > LARGEST_MESSAGE {
            return Err(Malformed::because(format!("a message of more than {LARGEST_MESSAGE} bytes")));
        }
        Ok(messages)
    }

    /// Looks at one byte; whether it ends a message.
    fn step(&mut self, byte: u8) -> Result<bool, Malformed> {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Ok(false);
        }
        match byte {
            b'{' => self.depth += 1,
            b'}' if self.depth > 0 => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            b'"' if self.depth > 0 => self.in_text = true,
            _ if self.depth > 0 || byte.is_ascii_whitespace() => {}
            other => return Err(Malformed::because(format!("a message that begins with byte {other:#04x}"))),
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn all(parts: &[&[u8]]) -> Vec<Value> {
        let mut framer = Framer::default();
        let messages = parts.iter().flat_map(|part| framer.push(part).unwrap());
        messages.map(|message| serde_json::from_slice(&message).unwrap()).collect()
    }

    #[test]
    fn braces_and_quotes_in_texts() {
        let tricky = json!({"a": "}{\"\\", "b": {"c": ["\\\"}", {"d": "ü"}]}});
        let text = format!("{tricky} \n{tricky}{{}}");
        assert_eq!(all(&[text.as_bytes()]), [tricky.clone(), tricky, json!({})]);
    }

    #[test]
    fn no_object_is_refused() {
        for bad in ["[1]", "1", "}", "\"a\"", "{}x", "\0"] {
            assert!(Framer::default().push(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let mut framer = Framer::default();
        framer.push(b"{\"a\":\"").unwrap();
        let part = vec![b'x'; 1 << 20];
        assert!((0..=LARGEST_MESSAGE >> 20).any(|_| framer.push(&part).is_err()));
    }

    proptest! {
        /// However the stream is cut, the same messages come out.
        #[test]
        fn any_cut(texts in prop::collection::vec(".{0,12}", 1..5), cuts in prop::collection::vec(1usize..9, 1..40)) {
            let wanted: Vec<Value> = texts.iter().map(|text| json!({text.as_str(): {"x": [text]}})).collect();
            let stream: Vec<u8> = wanted.iter().flat_map(|value| value.to_string().into_bytes()).collect();
            let (mut rest, mut parts) = (stream.as_slice(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (part, left) = rest.split_at((*cut).min(rest.len()));
                parts.push(part);
                rest = left;
            }
            prop_assert_eq!(all(&parts), wanted);
        }

        /// Whatever comes, it is taken or refused, and never more than once.
        #[test]
        fn any_bytes(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..10)) {
            let mut framer = Framer::default();
            for part in &parts {
                if framer.push(part).is_err() { break; }
            }
        }
    }
}
