//! Faults of old etcd servers that concern what we rely on; told once per server version, never worked around by guessing.

/// The first version of the 3.4 line without the fault, and what it is.
const FAULTS: &[(u32, &str)] = &[
    (25, "progress notifications can overtake events (etcd #15220)"),
    (31, "a watch can lose events (etcd PR 17610)"),
    (34, "a compaction can bring deleted keys back (etcd PR 18475)"),
    (36, "a delete at the compacted revision is lost on resume (etcd #19179)"),
    (38, "a watch from a future revision can deliver old events (etcd #20221)"),
    (42, "role-based access can be evaded (CVE-2026-33343, CVE-2026-33413)"),
];

/// The known faults of a server version, as sentences; empty when none is known.
pub(super) fn known_faults(version: &str) -> Vec<&'static str> {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(3)), Some(Ok(4)), Some(Ok(patch))) => {
            FAULTS.iter().filter(|(repaired, _)| patch < *repaired).map(|(_, fault)| *fault).collect()
        }
        (Some(Ok(major)), Some(Ok(minor)), _) if (major, minor) < (3, 4) => vec!["it is older than 3.4 and has never been tried"],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_ends_with_its_repair() {
        assert_eq!(known_faults("3.4.23").len(), 6);
        assert_eq!(known_faults("3.4.41").len(), 1);
        assert_eq!(known_faults("3.4.42"), Vec::<&str>::new());
        assert_eq!(known_faults("3.6.1"), Vec::<&str>::new());
        assert_eq!(known_faults("3.3.10").len(), 1);
        assert_eq!(known_faults("3.4.23-rc1").len(), 6);
        assert_eq!(known_faults("unknown"), Vec::<&str>::new());
    }
}
