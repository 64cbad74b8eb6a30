//! Keeps the memory up to date: reads all keys once, then applies every change that the watch reports.

use super::client::{Client, Failure};
use super::layout::{Layout, Offset, decode_head, decode_row};
use super::wire::{layout::Head, rpc};
use super::{Inner, WatchReport};
use crate::expiry::Expiry;
use crate::memory::Change;
use crate::writer::{Health, record};
use crate::{Event, Finish, Record, Revision};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Streaming;

/// Number of keys per page.
pub const PAGE_KEYS: i64 = 1000;
/// Initial and maximum delay before a broken watch is opened again.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// All keys at one revision.
pub struct Loaded {
    pub revision: Revision,
    pub records: Vec<Record>,
    pub expiry: Expiry,
}

/// Reads all keys, in pages at one revision.
pub async fn load(client: &Client, layout: &Layout, offset: Offset, finish: Finish) -> Result<Loaded, Failure> {
    loop {
        match load_once(client, layout, offset, finish).await {
            // Reading took so long that the revision was compacted. Start again at a newer one.
            Err(Failure::Compacted) => {}
            outcome => return outcome,
        }
    }
}

async fn load_once(client: &Client, layout: &Layout, offset: Offset, finish: Finish) -> Result<Loaded, Failure> {
    let (mut key, range_end) = layout.data();
    let mut loaded = Loaded { revision: 0, records: Vec::new(), expiry: Expiry::default() };
    let mut revision = 0;
    loop {
        let range_end = range_end.clone();
        let request = rpc::RangeRequest { key, range_end, limit: PAGE_KEYS, revision, ..Default::default() };
        let page = client.range(request).await?;
        if revision == 0 {
            revision = page.header.as_ref().map_or(0, |header| header.revision);
            loaded.revision = offset.revision(revision);
        }
        let Some(last) = page.kvs.last() else { return Ok(loaded) };
        // The next page begins with the first possible key after this one.
        key = [&last.key[..], b"\0"].concat().into();
        for kv in page.kvs {
            let Some((record, expires_at_s)) = read(layout, offset, finish, kv) else { continue };
            if expires_at_s.is_some() {
                loaded.expiry.set(&record.key, expires_at_s, record.modified);
            }
            loaded.records.push(record);
        }
        if !page.more {
            return Ok(loaded);
        }
    }
}

fn read(layout: &Layout, offset: Offset, finish: Finish, kv: rpc::KeyValue) -> Option<(Record, Option<u64>)> {
    let key = layout.key_of(&kv.key);
    let row = decode_row(kv.value);
    let (Some(key), Some(row)) = (key, row) else {
        tracing::error!(key = %String::from_utf8_lossy(&kv.key), "ignoring a key in etcd that this store did not write");
        return None;
    };
    let (created, modified) = (offset.revision(kv.create_revision), offset.revision(kv.mod_revision));
    Some((record(Arc::from(key), finish(&row.value, modified), created, modified), row.expires_at_s))
}

/// Watches etcd while the store is open, and reopens the watch when it breaks.
pub async fn follow(inner: Arc<Inner>) {
    let mut pause = PAUSE;
    loop {
        let (_, known) = inner.known();
        let began = Instant::now();
        let end = match inner.client.watch(inner.layout.watched(), known + 1).await {
            Ok((member, stream)) => inner.listen(member, stream).await,
            Err(failure) => End::Broken(failure.to_string()),
        };
        match end {
            End::Moved => {}
            End::Broken(why) => {
                tracing::debug!(why, "the watch on etcd broke; reopening it");
                // A watch that keeps breaking at once has a cause that an operator must remove, so the delay grows.
                pause = if began.elapsed() > PAUSE_MAX { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
                tokio::time::sleep(pause).await;
            }
            End::Compacted => inner.rebuild().await,
        }
    }
}

/// Why a watch ended.
enum End {
    /// The client switched to another member.
    Moved,
    Broken(String),
    /// Revisions that this server has not seen were compacted.
    Compacted,
}

impl Inner {
    async fn listen(&self, member: usize, mut stream: Streaming<rpc::WatchResponse>) -> End {
        let mut asked = self.client.member();
        // Fragments of a response that is not complete yet.
        let mut events = Vec::new();
        loop {
            if *asked.borrow_and_update() != member {
                return End::Moved;
            }
            let message = tokio::select! {
                biased;
                message = stream.message() => message,
                _ = asked.changed() => continue,
            };
            let answer = match message {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    self.client.avoid(member);
                    return End::Broken("etcd ended the watch".to_owned());
                }
                Err(status) => {
                    self.client.avoid(member);
                    return End::Broken(status.message().to_owned());
                }
            };
            if answer.compact_revision > 0 {
                return End::Compacted;
            }
            if answer.canceled {
                return End::Broken(answer.cancel_reason);
            }
            events.extend(answer.events);
            if !answer.fragment && !events.is_empty() {
                self.take(std::mem::take(&mut events));
            }
        }
    }

    /// Reads all keys again. All watchers get `Compacted`, because events may be missing.
    async fn rebuild(&self) {
        tracing::warn!(
            "etcd compacted revisions that this server has not seen; reading all keys again, and watchers must relist"
        );
        match load(&self.client, &self.layout, self.offset, self.finish).await {
            Ok(loaded) if loaded.revision < self.memory.revision() => {
                self.end("etcd was restored to an older revision")
            }
            Ok(loaded) => {
                *self.expiry.lock().unwrap_or_else(PoisonError::into_inner) = loaded.expiry;
                self.memory.reset(loaded.revision, loaded.records);
                self.shown.send_replace(loaded.revision);
                let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
                for (_, sender) in pending {
                    drop(sender.send(WatchReport::Missed));
                }
            }
            Err(failure) => {
                self.set_health(Health::Refused(failure.to_string()));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Applies the events of the watch to the memory, in whole revisions and in order, and completes the pending writes
    /// of this server.
    fn take(&self, events: Vec<rpc::Event>) {
        let shown = self.memory.revision();
        let mut reported = Vec::new();
        let mut changes: Vec<Change> = Vec::new();
        let mut staged = Staged { inner: self, now: HashMap::new() };
        let mut events = events.into_iter().filter_map(|event| Some((event.r#type(), event.kv?))).peekable();
        while let Some((_, kv)) = events.peek() {
            let of_etcd = kv.mod_revision;
            let mut group = Vec::new();
            while let Some(event) = events.next_if(|(_, kv)| kv.mod_revision == of_etcd) {
                group.push(event);
            }
            let revision = self.offset.revision(of_etcd);
            if revision <= shown {
                continue;
            }
            let (head, change) = staged.change(revision, group);
            if let Some(head) = head.filter(|head| head.writer == self.writer) {
                let records = change.events.iter().filter_map(|event| event.current.clone()).collect();
                reported.push((head.number, WatchReport::Committed(revision, records)));
            }
            changes.push(change);
        }
        let Some(last) = changes.last().map(|change| change.revision) else { return };
        self.memory.publish(changes);
        self.shown.send_replace(last);
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, outcome) in reported {
            // A closed receiver means that the caller no longer waits for the outcome. The write is not undone.
            drop(pending.remove(&number).map(|sender| sender.send(outcome)));
        }
    }
}

/// Revisions that are being applied. Each one sees the ones before it.
struct Staged<'a> {
    inner: &'a Inner,
    now: HashMap<Arc<str>, Option<Arc<Record>>>,
}

impl Staged<'_> {
    fn change(
        &mut self,
        revision: Revision,
        group: Vec<(rpc::event::EventType, rpc::KeyValue)>,
    ) -> (Option<Head>, Change) {
        let layout = &self.inner.layout;
        let (head_key, format_key, guard_key) = (layout.head(), layout.format(), layout.guard());
        if group.iter().any(|(_, kv)| kv.key == format_key) {
            self.inner.end(super::commit::REPLACED);
        }
        let head = group.iter().find(|(_, kv)| kv.key == head_key).map(|(_, kv)| decode_head(kv.value.clone()));
        let last_values: HashMap<&str, &Bytes> =
            head.iter().flat_map(|head| &head.last_values).map(|last| (last.key.as_str(), &last.value)).collect();
        let mut events = Vec::with_capacity(group.len());
        for (kind, kv) in group {
            if kv.key == guard_key {
                self.inner.space.set_guarded(kind == rpc::event::EventType::Put);
            }
            if kv.key == head_key || kv.key == format_key || kv.key == guard_key {
                continue;
            }
            events.extend(match kind {
                rpc::event::EventType::Put => self.put(kv, revision),
                rpc::event::EventType::Delete => self.delete(&kv, revision, &last_values),
            });
        }
        (head, Change { revision, events })
    }

    fn put(&mut self, kv: rpc::KeyValue, revision: Revision) -> Option<Event> {
        let (mut record, expires_at_s) = read(&self.inner.layout, self.inner.offset, self.inner.finish, kv)?;
        let previous = self.current(&record.key);
        // All versions of a key share one allocation of its text.
        if let Some(previous) = &previous {
            record.key = Arc::clone(&previous.key);
        }
        let record = Arc::new(record);
        let key = Arc::clone(&record.key);
        self.inner.expiry.lock().unwrap_or_else(PoisonError::into_inner).set(&key, expires_at_s, revision);
        self.now.insert(Arc::clone(&key), Some(Arc::clone(&record)));
        Some(Event { revision, key, current: Some(record), previous, last: None })
    }

    fn delete(&mut self, kv: &rpc::KeyValue, revision: Revision, last_values: &HashMap<&str, &Bytes>) -> Option<Event> {
        let previous = self.current(self.inner.layout.key_of(&kv.key)?)?;
        let key = Arc::clone(&previous.key);
        // Another program's deletion has no last value in `head`, so watchers see the previous version.
        let last =
            last_values.get(&*key).map_or_else(|| previous.value.clone(), |value| (self.inner.finish)(value, revision));
        self.inner.expiry.lock().unwrap_or_else(PoisonError::into_inner).set(&key, None, revision);
        self.now.insert(Arc::clone(&key), None);
        Some(Event { revision, key, current: None, previous: Some(previous), last: Some(last) })
    }

    fn current(&self, key: &str) -> Option<Arc<Record>> {
        match self.now.get(key) {
            Some(now) => now.clone(),
            None => self.inner.memory.get(key),
        }
    }
}
