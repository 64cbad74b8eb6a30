//! Exports a store from etcd, and fills a new store in etcd.

use super::client::{Client, Failure};
use super::commit::{compare, put};
use super::config::Config;
use super::feed::PAGE_KEYS;
use super::layout::{self, FORMAT_VERSION, Format, Layout, Offset, encode_row};
use super::wire::rpc;
use super::{Inner, open_error};
use crate::{Error, Export, OpenError, Revision, Row, Rows};
use bytes::Bytes;
use futures::stream;
use std::sync::Arc;

/// etcd's default limits are 128 operations and 1.5 MiB per transaction; stay below them.
const OPERATIONS_MAX: usize = 100;
const BYTES_MAX: usize = 1 << 20;

/// Exports all rows at the revision that the memory shows now.
pub(super) fn export(inner: Arc<Inner>) -> Export {
    let (revision, at) = inner.known();
    let (from, _) = inner.layout.data();
    let pages = stream::try_unfold(Some(from), move |from| {
        let inner = Arc::clone(&inner);
        async move {
            let Some(from) = from else { return Ok(None) };
            let (page, next) = inner.page(from, at).await?;
            Ok((!page.is_empty()).then_some((page, next)))
        }
    });
    Export { revision, pages: Box::pin(pages) }
}

impl Inner {
    /// Reads one page of rows from `key` on. Returns the rows and the first key of the next page.
    async fn page(&self, key: Bytes, revision: i64) -> Result<(Rows, Option<Bytes>), Error> {
        let (_, range_end) = self.layout.data();
        let request = rpc::RangeRequest { key, range_end, limit: PAGE_KEYS, revision, ..Default::default() };
        let page = self.client.range(request).await.map_err(|failure| match failure {
            Failure::Compacted => {
                Error::Unavailable("the export took so long that etcd compacted its revision".to_owned())
            }
            other => other.into_error(),
        })?;
        let next = page.kvs.last().filter(|_| page.more).map(|last| Bytes::from([&last.key[..], b"\0"].concat()));
        let rows = page.kvs.into_iter().filter_map(|kv| {
            let key = Arc::from(self.layout.key_of(&kv.key)?);
            let row = layout::decode_row(kv.value)?;
            let (created, modified) = (self.offset.revision(kv.create_revision), self.offset.revision(kv.mod_revision));
            Some((key, Row { created, modified, expires_at_s: row.expires_at_s, value: row.value }))
        });
        Ok((rows.collect(), next))
    }
}

/// A store that is being filled with rows from another store. Its key `format` is written last; a store without it
/// cannot be opened.
pub(crate) struct NewStore {
    client: Client,
    layout: Layout,
    place: String,
    offset: Offset,
}

impl NewStore {
    pub async fn begin(config: &Config, revision: Revision) -> Result<NewStore, OpenError> {
        let client = Client::new(config).map_err(OpenError::Refused)?;
        client.login().await.map_err(open_error)?;
        let layout = Layout::new(&config.prefix);
        let (key, range_end) = layout.all();
        let request = rpc::RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() };
        let found = client.range(request).await.map_err(open_error)?;
        if !found.kvs.is_empty() {
            return Err(OpenError::NotEmpty(config.place()));
        }
        Ok(NewStore { client, layout, place: config.place(), offset: Offset(revision) })
    }

    pub async fn add(&mut self, rows: Rows) -> Result<(), OpenError> {
        let mut batch = rpc::TxnRequest::default();
        let mut bytes = 0;
        for (key, row) in rows {
            let (key, value) = (self.layout.of_key(&key), encode_row(&row.value, row.expires_at_s));
            let size = key.len() + value.len();
            if batch.success.len() >= OPERATIONS_MAX || (bytes > 0 && bytes + size > BYTES_MAX) {
                self.send(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += size;
            batch.compare.push(compare(key.clone(), 0));
            batch.success.push(put(key, value));
        }
        if batch.success.is_empty() { Ok(()) } else { self.send(batch).await }
    }

    pub async fn finish(self) -> Result<(), OpenError> {
        let format = Format { version: FORMAT_VERSION, offset: self.offset };
        let request = rpc::TxnRequest {
            compare: vec![compare(self.layout.format(), 0)],
            success: vec![put(self.layout.format(), format.encode())],
            failure: Vec::new(),
        };
        self.send(request).await
    }

    async fn send(&self, request: rpc::TxnRequest) -> Result<(), OpenError> {
        match self.client.txn(request).await {
            Ok(answer) if answer.succeeded => Ok(()),
            Ok(_) => Err(OpenError::NotEmpty(self.place.clone())),
            Err(failure) => Err(OpenError::Unreachable(format!(
                "{failure}; the copy is incomplete, remove its keys with etcdctl del --prefix"
            ))),
        }
    }
}
