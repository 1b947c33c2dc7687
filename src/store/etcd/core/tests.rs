//! Every message that etcd was seen to send, and some that it should not.

use super::*;

const ROOT: &str = "/vnf-agent/vpp1/";
const CLUSTER: u64 = 0xc1;

fn header(revision: i64) -> PbResponseHeader {
    PbResponseHeader { cluster_id: CLUSTER, revision, ..PbResponseHeader::default() }
}

fn pair(key: &str, revision: i64) -> PbKeyValue {
    PbKeyValue {
        key: format!("{ROOT}c/{key}").into_bytes(),
        value: b"v".to_vec(),
        create_revision: revision,
        mod_revision: revision,
        ..PbKeyValue::default()
    }
}

fn event(kind: i32, key: &str, revision: i64) -> PbEvent {
    PbEvent { r#type: kind, kv: Some(pair(key, revision)), ..PbEvent::default() }
}

fn put(key: &str, revision: i64) -> PbEvent {
    event(0, key, revision)
}

fn delete(key: &str, revision: i64) -> PbEvent {
    event(1, key, revision)
}

fn message(revision: i64, events: Vec<PbEvent>) -> PbWatchResponse {
    PbWatchResponse { header: Some(header(revision)), watch_id: 1, events, ..PbWatchResponse::default() }
}

fn created(revision: i64) -> PbWatchResponse {
    PbWatchResponse { created: true, ..message(revision, Vec::new()) }
}

fn apply(key: &str, revision: i64) -> StoreEvent {
    let value = Versioned { value: b"v".to_vec(), create_revision: revision, mod_revision: revision };
    StoreEvent::Apply(format!("c/{key}"), value)
}

fn gone(key: &str, revision: i64) -> StoreEvent {
    StoreEvent::Delete(format!("c/{key}"), revision)
}

fn nothing() -> Verdict {
    Verdict::Deliver(Vec::new())
}

/// Listed at revision 10 with the keys a and b, and watching.
fn watching() -> Core {
    let mut core = Core::new(ROOT, &["c/".to_owned()]);
    core.begin(StoreIdentity { cluster: CLUSTER, revision: 10 });
    assert_eq!(core.page(0, vec![pair("a", 5), pair("b", 6)]).len(), 2);
    assert!(!core.watching());
    assert_eq!(core.watch(created(10)), nothing());
    assert!(core.watching());
    core
}

#[test]
fn a_listing_is_told_with_relative_keys() {
    let mut core = Core::new(ROOT, &["c/".to_owned()]);
    core.begin(StoreIdentity { cluster: CLUSTER, revision: 10 });
    let value = Versioned { value: b"v".to_vec(), create_revision: 5, mod_revision: 5 };
    assert_eq!(core.page(0, vec![pair("a", 5)]), [StoreEvent::InitApply("c/a".to_owned(), value)]);
    assert_eq!((core.keys(), core.known()), (1, 10));
    assert_eq!(core.prefixes().collect::<Vec<_>>(), ["/vnf-agent/vpp1/c/"]);
}

#[test]
fn one_group_per_revision() {
    let events = vec![put("x", 11), delete("a", 11), put("x", 12), delete("x", 13), put("x", 14)];
    let groups = vec![vec![apply("x", 11), gone("a", 11)], vec![apply("x", 12)], vec![gone("x", 13)], vec![apply("x", 14)]];
    let mut core = watching();
    assert_eq!(core.watch(message(14, events)), Verdict::Deliver(groups));
    assert_eq!((core.known(), core.keys()), (14, 2));
}

#[test]
fn the_parts_of_a_revision_are_put_together() {
    let mut core = watching();
    let part = |fragment, events| PbWatchResponse { fragment, ..message(11, events) };
    assert_eq!(core.watch(part(true, vec![put("x", 11)])), nothing());
    assert_eq!(core.watch(part(true, vec![put("y", 11)])), nothing());
    let whole = vec![vec![apply("x", 11), apply("y", 11), gone("a", 11)]];
    assert_eq!(core.watch(part(false, vec![delete("a", 11)])), Verdict::Deliver(whole));
}

#[test]
fn a_new_listing_forgets_the_parts_of_an_old_watch() {
    let mut core = watching();
    core.watch(PbWatchResponse { fragment: true, ..message(11, vec![put("x", 11)]) });
    core.begin(StoreIdentity { cluster: CLUSTER, revision: 20 });
    assert_eq!(core.watch(created(20)), nothing());
    assert_eq!(core.watch(message(21, vec![put("y", 21)])), Verdict::Deliver(vec![vec![apply("y", 21)]]));
}

#[test]
fn a_cancelled_watch_is_never_waited_for() {
    let cancelled = |compact_revision, reason: &str| PbWatchResponse {
        canceled: true,
        compact_revision,
        cancel_reason: reason.to_owned(),
        // As etcd sends it.
        header: Some(PbResponseHeader::default()),
        watch_id: -1,
        ..PbWatchResponse::default()
    };
    let verdict = |message| watching().watch(message);
    assert!(matches!(verdict(cancelled(16, "")), Verdict::ListAgain(why) if why.contains("16")));
    let token = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
    assert_eq!(verdict(cancelled(0, token)), Verdict::NewToken(token.to_owned()));
    let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert_eq!(verdict(cancelled(0, denied)), Verdict::Leave(denied.to_owned()));
    assert_eq!(verdict(PbWatchResponse { created: true, ..cancelled(0, denied) }), Verdict::Leave(denied.to_owned()));
    assert!(matches!(verdict(cancelled(0, "")), Verdict::Leave(_)));
}

#[test]
fn another_history_means_listing_again() {
    let mut core = Core::new(ROOT, &["c/".to_owned()]);
    core.begin(StoreIdentity { cluster: CLUSTER, revision: 10 });
    // The data was wiped: etcd keeps its cluster id, and would keep silent for ever.
    assert!(matches!(core.watch(created(4)), Verdict::ListAgain(why) if why.contains("from 10 to 4")));
    let mut core = watching();
    assert!(matches!(core.counts(10, Some(&header(4)), &[2]), Verdict::ListAgain(why) if why.contains("from 10 to 4")));
    let other = PbResponseHeader { cluster_id: 0xc2, ..header(11) };
    let strange = PbWatchResponse { header: Some(other), ..message(11, vec![put("x", 11)]) };
    assert!(matches!(watching().watch(strange), Verdict::ListAgain(why) if why.contains("c2")));
    assert!(matches!(watching().counts(10, Some(&other), &[2]), Verdict::ListAgain(why) if why.contains("c2")));
}

#[test]
fn an_answer_may_be_as_old_as_its_question() {
    let mut core = watching();
    // The count overtakes events, and events overtake the answer to a question of earlier.
    assert_eq!(core.counts(10, Some(&header(30)), &[3]), nothing());
    assert_eq!(core.watch(message(25, vec![put("x", 25)])), Verdict::Deliver(vec![vec![apply("x", 25)]]));
    let asked_at = core.known();
    assert_eq!((asked_at, core.delivered()), (30, 25));
    assert!(matches!(core.watch(message(40, vec![put("y", 40)])), Verdict::Deliver(_)));
    assert_eq!(core.counts(asked_at, Some(&header(35)), &[4]), nothing());
}

#[test]
fn a_lost_change_is_found_by_counting() {
    let mut core = watching();
    // A third key was written at revision 11, and the watch never says so.
    assert_eq!(core.counts(10, Some(&header(11)), &[3]), nothing());
    assert_eq!(core.counts(11, Some(&header(11)), &[3]), nothing(), "once may be a slow watch");
    assert!(matches!(core.counts(11, Some(&header(11)), &[3]), Verdict::ListAgain(why) if why.contains("lost changes")));
}

#[test]
fn a_lost_change_is_found_also_while_others_arrive() {
    let mut core = watching();
    assert_eq!(core.counts(10, Some(&header(11)), &[3]), nothing());
    assert!(matches!(core.watch(message(12, vec![put("a", 12)])), Verdict::Deliver(_)));
    assert_eq!(core.counts(12, Some(&header(12)), &[3]), nothing());
    assert!(matches!(core.watch(message(13, vec![put("a", 13)])), Verdict::ListAgain(why) if why.contains("lost changes")));
}

#[test]
fn a_slow_watch_is_not_a_deaf_one() {
    let mut core = watching();
    // Each count runs ahead of the watch, which then tells what was counted.
    for revision in (11..40).step_by(2) {
        let known = core.known();
        let there = i64::try_from(core.keys()).unwrap();
        assert_eq!(core.counts(known, Some(&header(revision)), &[there + 1]), nothing());
        let name = format!("k{revision}");
        assert!(matches!(core.watch(message(revision, vec![put(&name, revision)])), Verdict::Deliver(_)));
        // Changes beyond the counted revision do not blur the comparison.
        let next = revision + 1;
        assert!(matches!(core.watch(message(next, vec![delete("a", next), delete(&name, next)])), Verdict::Deliver(_)));
    }
}

#[test]
fn one_difference_that_passes_is_forgotten() {
    let mut core = watching();
    core.counts(10, Some(&header(11)), &[3]);
    core.counts(11, Some(&header(11)), &[3]);
    assert!(matches!(core.watch(message(11, vec![put("late", 11)])), Verdict::Deliver(_)));
    for _ in 0..5 {
        assert_eq!(core.counts(11, Some(&header(11)), &[3]), nothing());
    }
}

#[test]
fn unknown_events_and_events_without_a_key_do_not_panic() {
    assert!(matches!(watching().watch(message(11, vec![event(7, "x", 11)])), Verdict::ListAgain(_)));
    let empty = PbEvent { r#type: 0, ..PbEvent::default() };
    assert!(matches!(watching().watch(message(11, vec![empty])), Verdict::ListAgain(_)));
    let foreign = PbWatchResponse { watch_id: 9, ..message(11, vec![put("x", 11)]) };
    assert!(matches!(watching().watch(foreign), Verdict::Leave(_)));
    let headless = PbWatchResponse { header: None, ..message(11, vec![put("x", 11)]) };
    assert!(matches!(watching().watch(headless), Verdict::Deliver(_)));
}

#[test]
fn keys_that_are_no_text_are_kept_apart_and_shown() {
    let mut core = watching();
    let raw = |last: u8, revision| PbKeyValue { key: [format!("{ROOT}c/").as_bytes(), &[last]].concat(), ..pair("", revision) };
    let event = |last, revision| PbEvent { kv: Some(raw(last, revision)), ..PbEvent::default() };
    core.watch(message(12, vec![event(0xfe, 11), event(0xff, 12)]));
    assert_eq!(core.keys(), 4);
    assert_eq!(relative(ROOT, &raw(0xff, 1).key), "c/\u{fffd}");
}

#[test]
fn each_prefix_is_confirmed_and_counted_for_itself() {
    let mut core = Core::new(ROOT, &["c/".to_owned(), "d/".to_owned()]);
    core.begin(StoreIdentity { cluster: CLUSTER, revision: 10 });
    core.page(0, vec![pair("a", 5)]);
    core.watch(created(10));
    assert!(!core.watching());
    // The first watch is already ahead when the second one is confirmed.
    core.watch(message(15, vec![put("x", 15)]));
    assert_eq!(core.watch(PbWatchResponse { watch_id: 2, ..created(12) }), nothing());
    assert!(core.watching());
    for _ in 0..2 {
        assert_eq!(core.counts(15, Some(&header(15)), &[2, 1]), nothing());
    }
    assert!(matches!(core.counts(15, Some(&header(15)), &[2, 1]), Verdict::ListAgain(why) if why.contains("/d/")));
}
