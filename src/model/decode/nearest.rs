//! The known name that a misspelt one was meant to be.

/// Longer keys are no misspelling of a field's name.
const LONGEST: usize = 64;

/// The candidate that takes the fewest changes of a character, if these are few: at most a third of the name.
pub fn nearest(text: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    if text.len() > LONGEST {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let ranked = candidates.map(|name| (distance(&lower, &name), name));
    ranked.filter(|(changes, name)| changes * 3 <= name.len()).min().map(|(_, name)| name)
}

/// Levenshtein distance in characters, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut last = i;
        let mut left = i + 1;
        for (to, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let replaced = last + usize::from(from != *to);
            last = *cell;
            left = replaced.min(last + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, changes) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("abc", "abc", 0), ("flaw", "lawn", 2)]
        {
            assert_eq!(distance(a, b), changes, "{a} {b}");
        }
    }

    #[test]
    fn only_near_ones_are_named() {
        let names = || ["ip_addresses", "mtu", "name", "namespace"].into_iter().map(str::to_owned);
        assert_eq!(nearest("ip_adresses", names()).as_deref(), Some("ip_addresses"));
        assert_eq!(nearest("IP-Addresses", names()).as_deref(), Some("ip_addresses"));
        assert_eq!(nearest("nmae_space", names()).as_deref(), Some("namespace"));
        assert_eq!(nearest("vlan", names()), None);
        assert_eq!(nearest(&"n".repeat(1_000_000), names()), None);
    }
}
