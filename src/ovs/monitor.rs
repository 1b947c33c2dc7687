//! What the switch is asked to tell of flows, and which flows it tells of: pure (OpenFlow 1.4 and 1.5, "flow monitoring").

/// Types of messages.
pub(super) const MULTIPART_REQUEST: u8 = 18;
pub(super) const MULTIPART_REPLY: u8 = 19;
/// The first version of OpenFlow that has this.
pub(super) const SINCE: u8 = 5;

const FLOW_MONITOR: [u8; 2] = [0, 16];
/// `OFPFMF_REMOVED | OFPFMF_MODIFY`: of what is added beside ours nobody needs to hear at once.
const FLAGS: [u8; 2] = [0, 1 << 2 | 1 << 3];
/// Events: a flow was removed, a flow has other actions, and news are held back because there are too many.
const REMOVED: u16 = 2;
const MODIFIED: u16 = 3;
const PAUSED: u16 = 5;
/// Where a flow's update has its cookie.
const COOKIE: std::ops::Range<usize> = 16..24;

/// The body of a request to tell of flows that are removed or changed, in all tables, by whomever.
pub(super) fn request() -> Vec<u8> {
    let (number, any, all_tables, add, match_all) = ([0, 0, 0, 1], [0xff; 4], 0xff, 0, [0, 1, 0, 4, 0, 0, 0, 0]);
    let head = [FLOW_MONITOR.as_slice(), &[0; 6], &number, &any, &any, &FLAGS, &[all_tables, add]].concat();
    [head.as_slice(), &match_all].concat()
}

/// Whether the body of an answer tells of a flow whose cookie is one of these, or of so many that it does not say which.
pub(super) fn tells_of(body: &[u8], is_ours: impl Fn(u64) -> bool) -> bool {
    let Some(mut updates) = body.strip_prefix(&FLOW_MONITOR).and_then(|rest| rest.get(6..)) else { return false };
    while let [high, low, event_high, event_low, ..] = *updates {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(update) = updates.get(..length).filter(|update| update.len() >= 4) else { return false };
        let cookie = || update.get(COOKIE).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        match u16::from_be_bytes([event_high, event_low]) {
            REMOVED | MODIFIED if cookie().is_some_and(&is_ours) => return true,
            PAUSED => return true,
            _ => {}
        }
        updates = &updates[length..];
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn update(event: u16, cookie: u64) -> Vec<u8> {
        [
            &[0, 32],
            event.to_be_bytes().as_slice(),
            &[205, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 0],
            &cookie.to_be_bytes(),
            &[0, 1, 0, 4, 0, 0, 0, 0],
        ]
        .concat()
    }

    fn body(updates: &[Vec<u8>]) -> Vec<u8> {
        [[0, 16, 0, 0, 0, 0, 0, 0].as_slice(), &updates.concat()].concat()
    }

    #[test]
    fn flows_of_ours_among_others() {
        let ours = |cookie| cookie == 7;
        assert!(tells_of(&body(&[update(REMOVED, 8), update(MODIFIED, 7)]), ours) && tells_of(&body(&[update(REMOVED, 7)]), ours));
        assert!(!tells_of(&body(&[update(REMOVED, 8), update(1, 7)]), ours) && !tells_of(&body(&[]), ours));
        assert!(tells_of(&body(&[vec![0, 8, 0, 5, 0, 0, 0, 0]]), ours));
        // Another kind of answer, and one that ends early.
        assert!(!tells_of(&[0, 13], ours) && !tells_of(&body(&[update(REMOVED, 7)[..20].to_vec()]), ours));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _never_panics = tells_of(&[FLOW_MONITOR.as_slice(), &bytes].concat(), |cookie| cookie == 7);
        }
    }
}
