//! Reads a range in pages that all show one revision, however large the range or its values are.

use etcd_client::proto::{PbKeyValue, PbRangeResponse};
use etcd_client::{Client, GetOptions, KvClient};

use super::error::{Failure, Kind, within};
use super::options::CALL_LIMIT;
use crate::store::StoreIdentity;

/// Keys per page; fewer when a page of large values is more than we decode.
const PAGE: i64 = 500;
/// Largest message that we decode: 500 values of 64 KiB and some room, or 40 of the largest that etcd stores.
pub(super) const DECODE_LIMIT: usize = 64 << 20;

/// Reads the keys below one prefix, in order.
pub(super) struct Pager {
    kv: KvClient,
    attempted: String,
    start: Vec<u8>,
    end: Vec<u8>,
    revision: i64,
    limit: i64,
    done: bool,
}

impl Pager {
    /// Reads at this revision, or at the present one when it is 0: then the first page fixes it for the others.
    pub(super) fn new(client: &Client, prefix: &str, revision: i64) -> Self {
        Self {
            kv: client.kv_client().max_decoding_message_size(DECODE_LIMIT),
            attempted: format!("list {prefix}"),
            start: prefix.as_bytes().to_vec(),
            end: range_end(prefix),
            revision,
            limit: PAGE,
            done: false,
        }
    }

    /// The next page and which history it belongs to; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<(StoreIdentity, Vec<PbKeyValue>)>, Failure> {
        if self.done {
            return Ok(None);
        }
        let page = self.ask().await?;
        let (cluster, present) = page.header.as_ref().map_or((0, 0), |header| (header.cluster_id, header.revision));
        if self.revision == 0 {
            self.revision = present;
        }
        match page.kvs.last() {
            Some(last) if page.more => {
                self.start = last.key.clone();
                self.start.push(0);
            }
            _ => self.done = true,
        }
        Ok(Some((StoreIdentity { cluster, revision: self.revision }, page.kvs)))
    }

    async fn ask(&mut self) -> Result<PbRangeResponse, Failure> {
        loop {
            // No sort order: etcd sorts by key anyhow, and reads the whole range first when asked to.
            let options = GetOptions::new().with_range(self.end.clone()).with_limit(self.limit).with_revision(self.revision);
            match within(CALL_LIMIT, &self.attempted, self.kv.get(self.start.clone(), Some(options))).await {
                Ok(page) => return Ok(page.0),
                Err(failure) if failure.kind == Kind::TooLarge && self.limit > 1 => self.limit = (self.limit / 8).max(1),
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// The end of the range of all keys with this prefix. Our prefixes end in `/`, so the last byte can always grow.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        // The empty prefix: all keys.
        None => end.push(0),
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_neighbours() {
        assert_eq!(range_end("/vnf-agent/vpp1/"), b"/vnf-agent/vpp10");
        assert!(b"/vnf-agent/vpp1/~".as_slice() < range_end("/vnf-agent/vpp1/").as_slice());
        assert!(b"/vnf-agent/vpp10/a".as_slice() >= range_end("/vnf-agent/vpp1/").as_slice());
    }
}
