//! Writes, single reads and leases below the agent's prefix.

use etcd_client::proto::PbKeyValue;
use etcd_client::{LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::EtcdStore;
use super::core::relative;
use super::error::{Failure, Kind};
use super::pager::Pager;
use crate::store::status_writer::LeasedStore;
use crate::store::{ConfigStore, StoreError, StoreFuture, Versioned, Write};

/// Operations that etcd accepts in one transaction unless it was told otherwise (`--max-txn-ops`).
const TRANSACTION_LIMIT: usize = 128;

impl EtcdStore {
    fn key(&self, relative: &str) -> Vec<u8> {
        format!("{}{relative}", self.access.prefix).into_bytes()
    }

    async fn transact(&self, attempted: &str, operations: Vec<TxnOp>) -> Result<TxnResponse, Failure> {
        let call = |client: etcd_client::Client| async move { client.kv_client().txn(Txn::new().and_then(operations)).await };
        self.link.call(attempted, call).await
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>, Failure> {
        let full = self.key(key);
        let call = |client: etcd_client::Client| async move { client.kv_client().get(full, None).await };
        let answer = self.link.call(&format!("read {key}"), call).await?;
        Ok(answer.0.kvs.into_iter().next().map(versioned))
    }

    async fn read_below(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, Failure> {
        let attempted = format!("list {prefix}");
        let client = self.link.client(&attempted).await?;
        let mut pager = Pager::new(&client, &format!("{}{prefix}", self.access.prefix), 0);
        let mut found = Vec::new();
        loop {
            match pager.next().await {
                Ok(Some((_, page))) => {
                    found.extend(page.into_iter().map(|pair| (relative(&self.access.prefix, &pair.key), versioned(pair))));
                }
                Ok(None) => return Ok(found),
                Err(failure) => {
                    self.link.note(&failure).await;
                    return Err(Failure { attempted, ..failure });
                }
            }
        }
    }
}

/// A read may be repeated: once more, when the connection turned out to be of no use.
async fn twice<T, F: Future<Output = Result<T, Failure>>>(read: impl Fn() -> F) -> Result<T, StoreError> {
    match read().await {
        Err(failure) if matches!(failure.kind, Kind::Unreachable | Kind::Compacted) => Ok(read().await?),
        answer => Ok(answer?),
    }
}

impl ConfigStore for EtcdStore {
    fn write(&self, writes: Vec<Write>) -> StoreFuture<'_, i64> {
        Box::pin(async move {
            let attempted = describe(&writes);
            if writes.len() > TRANSACTION_LIMIT {
                let cause = format!("etcd takes {TRANSACTION_LIMIT} keys in one transaction, these are {}", writes.len());
                return Err(StoreError::Refused { attempted, cause });
            }
            let operations = writes.into_iter().map(|write| match write {
                Write::Put(key, value) => TxnOp::put(self.key(&key), value, None),
                Write::Delete(key) => TxnOp::delete(self.key(&key), None),
            });
            let operations = operations.collect();
            let answer = self.transact(&attempted, operations).await?;
            let changed = answer.op_responses().iter().any(|one| match one {
                TxnOpResponse::Delete(gone) => gone.deleted() > 0,
                TxnOpResponse::Put(_) | TxnOpResponse::Get(_) | TxnOpResponse::Txn(_) => true,
            });
            Ok(answer.header().filter(|_| changed).map_or(0, |header| header.revision()))
        })
    }

    fn get(&self, key: &str) -> StoreFuture<'_, Option<Versioned>> {
        let key = key.to_owned();
        Box::pin(async move { twice(|| self.read(&key)).await })
    }

    fn list(&self, prefix: &str) -> StoreFuture<'_, Vec<(String, Versioned)>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { twice(|| self.read_below(&prefix)).await })
    }
}

impl LeasedStore for EtcdStore {
    fn grant(&self, seconds: i64) -> StoreFuture<'_, i64> {
        let call = move |client: etcd_client::Client| async move { client.lease_client().grant(seconds, None).await };
        Box::pin(async move { Ok(self.link.call("get a lease for the status keys", call).await?.id()) })
    }

    fn keep_alive(&self, lease: i64) -> StoreFuture<'_, bool> {
        let call = move |client: etcd_client::Client| async move { client.lease_client().keep_alive(lease).await };
        Box::pin(async move { unless_gone(self.link.call("keep the lease of the status keys", call).await.map(|_| ())) })
    }

    fn publish(&self, lease: i64, values: Vec<(String, Vec<u8>)>) -> StoreFuture<'_, bool> {
        let put = |(key, value): (String, Vec<u8>)| TxnOp::put(self.key(&key), value, Some(PutOptions::new().with_lease(lease)));
        let attempted = format!("publish {} statuses", values.len());
        let operations = values.into_iter().map(put).collect();
        Box::pin(async move { unless_gone(self.transact(&attempted, operations).await.map(|_| ())) })
    }

    fn remove(&self, keys: Vec<String>) -> StoreFuture<'_, ()> {
        let attempted = format!("remove {} statuses", keys.len());
        let operations = keys.iter().map(|key| TxnOp::delete(self.key(key), None)).collect();
        Box::pin(async move { Ok(self.transact(&attempted, operations).await.map(|_| ())?) })
    }

    fn attached(&self, lease: i64) -> StoreFuture<'_, Vec<String>> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let call = move |client: etcd_client::Client| async move { client.lease_client().time_to_live(lease, Some(options)).await };
        Box::pin(async move {
            let answer = self.link.call("list the keys of the lease of the status keys", call).await?;
            Ok(answer.keys().iter().map(|key| relative(&self.access.prefix, key)).collect())
        })
    }

    fn keys(&self, prefix: &str) -> StoreFuture<'_, Vec<String>> {
        let found = self.list(prefix);
        Box::pin(async move { Ok(found.await?.into_iter().map(|(key, _)| key).collect()) })
    }

    fn revoke(&self, lease: i64) -> StoreFuture<'_, ()> {
        let call = move |client: etcd_client::Client| async move { client.lease_client().revoke(lease).await };
        Box::pin(async move { unless_gone(self.link.call("end the lease of the status keys", call).await.map(|_| ())).map(|_| ()) })
    }
}

fn unless_gone(answer: Result<(), Failure>) -> Result<bool, StoreError> {
    match answer {
        Ok(()) => Ok(true),
        Err(failure) if failure.kind == Kind::LeaseGone => Ok(false),
        Err(failure) => Err(failure.into()),
    }
}

fn describe(writes: &[Write]) -> String {
    match writes {
        [Write::Put(key, _)] => format!("write {key}"),
        [Write::Delete(key)] => format!("delete {key}"),
        several => format!("write {} keys", several.len()),
    }
}

fn versioned(pair: PbKeyValue) -> Versioned {
    Versioned { value: pair.value, create_revision: pair.create_revision, mod_revision: pair.mod_revision }
}
