//! The authorizer: an index of roles and bindings that is always up to date with the store.

use super::index::{Index, PREFIX};
use super::{Decision, forbidden, is_master, node};
use crate::attributes::{Attributes, User};
use futures::FutureExt;
use object::Status;
use object::access::Access;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use store::{Event, Next, Range, Record, Revision, Store, Watcher};

/// Limit of events that are read at once.
const EVENTS_MAX: usize = 256;

/// Decides which requests are allowed.
///
/// It needs no background task. Each check first applies the changes since the last check, so a role change counts
/// for every later request. Without changes this is one comparison of revisions, otherwise one poll of a watcher.
pub struct Authorizer {
    store: Arc<dyn Store>,
    /// Watcher of changes that the index does not have yet; `None` if everything must be read again.
    feed: Mutex<Option<Box<dyn Watcher>>>,
    index: RwLock<Index>,
    /// The index has all changes up to this revision.
    seen: AtomicU64,
}

impl Authorizer {
    /// Creates an empty authorizer. The first check reads the roles.
    pub fn new(store: Arc<dyn Store>) -> Authorizer {
        Authorizer { store, feed: Mutex::new(None), index: RwLock::default(), seen: AtomicU64::new(0) }
    }

    /// Whether the user may do this, and why.
    pub fn authorize(&self, user: &User, asked: &Attributes) -> Decision {
        if is_master(user) {
            return Decision { allowed: true, reason: String::new() };
        }
        if self.allows_node(user, asked) {
            return Decision { allowed: true, reason: String::new() };
        }
        let index = self.current();
        match index.grant(user, asked) {
            Some(grant) => Decision { allowed: true, reason: grant.reason() },
            None => Decision { allowed: false, reason: unresolved(&index.missing_roles(user, &asked.namespace)) },
        }
    }

    /// Whether the user may do this. Cheaper than [`Authorizer::authorize`], because it builds no reason.
    pub fn allows(&self, user: &User, asked: &Attributes) -> bool {
        is_master(user) || self.allows_node(user, asked) || self.current().grant(user, asked).is_some()
    }

    /// Whether the user is a node and its name allows the request.
    fn allows_node(&self, user: &User, asked: &Attributes) -> bool {
        let node_of = |namespace: &str, name: &str| {
            let record = self.store.get(&format!("/core/pods/{namespace}/{name}"))?;
            // A pod that cannot be parsed counts as bound to no node.
            let pod = crate::object_store::parse(&record).ok()?;
            Some(pod.text(&["spec", "nodeName"]).to_owned())
        };
        node::identity(user).is_some_and(|name| node::allows(name, asked, node_of))
    }

    /// Returns the 403 if the request is not allowed.
    pub fn check(&self, user: &User, asked: &Attributes) -> Result<(), Status> {
        if self.allows(user, asked) {
            return Ok(());
        }
        let decision = self.authorize(user, asked);
        // A role may have been bound between the two checks.
        if decision.allowed { Ok(()) } else { Err(forbidden(user, asked, &decision.reason)) }
    }

    /// The index, with all writes before this call.
    pub(super) fn current(&self) -> RwLockReadGuard<'_, Index> {
        let newest = self.store.revision();
        if self.seen.load(Ordering::Acquire) < newest {
            self.catch_up(newest);
        }
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn catch_up(&self, newest: Revision) {
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        while self.seen.load(Ordering::Acquire) < newest {
            let Some(open) = feed.as_mut() else {
                *feed = self.read_everything();
                if feed.is_none() {
                    return;
                }
                continue;
            };
            match open.next(EVENTS_MAX).now_or_never() {
                Some(Next::Events { events, revision }) => {
                    self.take_in(&events);
                    self.seen.fetch_max(revision, Ordering::AcqRel);
                }
                // The last check was so long ago that the changes were compacted.
                Some(Next::Compacted { .. }) => *feed = None,
                // A watcher without events has delivered everything up to the store's revision.
                Some(Next::Closed) | None => {
                    self.seen.fetch_max(newest, Ordering::AcqRel);
                }
            }
        }
    }

    fn take_in(&self, events: &[Arc<Event>]) {
        if events.is_empty() {
            return;
        }
        let mut index = self.index_mut();
        for event in events {
            apply(&mut index, &event.key, event.current.as_deref());
        }
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds a new index. If reading fails, nothing is granted, and the next check tries again.
    fn read_everything(&self) -> Option<Box<dyn Watcher>> {
        match read_all(&*self.store) {
            Ok((index, feed, revision)) => {
                *self.index_mut() = index;
                self.seen.fetch_max(revision, Ordering::AcqRel);
                Some(feed)
            }
            Err(error) => {
                tracing::error!(%error, "cannot read roles and bindings: only {} has access", super::MASTERS);
                *self.index_mut() = Index::default();
                None
            }
        }
    }
}

fn read_all(store: &dyn Store) -> Result<(Index, Box<dyn Watcher>, Revision), store::Error> {
    let page = store.list(Range { prefix: PREFIX, ..Range::default() })?;
    let mut index = Index::default();
    for record in &page.records {
        apply(&mut index, &record.key, Some(record));
    }
    let feed = store.watch(PREFIX, page.revision)?;
    Ok((index, feed, page.revision))
}

fn apply(index: &mut Index, key: &str, record: Option<&Record>) {
    let parsed = record.map(crate::object_store::parse).transpose();
    match parsed {
        Ok(value) => index.apply(key, value.as_ref()),
        Err(error) => {
            // A role or binding that cannot be parsed grants nothing.
            tracing::error!(%error, key, "ignoring an unreadable role or binding");
            index.apply(key, None);
        }
    }
}

/// The names of missing roles, for a refusal.
fn unresolved(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}
