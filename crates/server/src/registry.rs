//! The served kinds: the built-in ones, and those of the stored CustomResourceDefinitions.

use arc_swap::ArcSwap;
use futures::FutureExt;
use object::{Kinds, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use store::{Next, Range, Store, Watcher};

const DEFINITIONS: &str = "/apiextensions.k8s.io/customresourcedefinitions/";

/// Watches the definitions in the store. Catches up at each call, so that on every server a kind is served as soon as
/// the write of its definition is answered.
pub struct Registry {
    current: ArcSwap<Kinds>,
    builtin: Kinds,
    store: Arc<dyn Store>,
    follow: Mutex<Follow>,
}

struct Follow {
    watcher: Option<Box<dyn Watcher>>,
    definitions: BTreeMap<Arc<str>, Value>,
}

impl Registry {
    pub fn new(store: Arc<dyn Store>) -> Registry {
        let builtin = Kinds::builtin();
        let follow = Mutex::new(Follow { watcher: None, definitions: BTreeMap::new() });
        Registry { current: ArcSwap::from_pointee(builtin.clone()), builtin, store, follow }
    }

    /// The kinds, including those of the newest definition.
    pub fn kinds(&self) -> Arc<Kinds> {
        let mut follow = self.follow.lock().expect("no panic happens under this lock");
        if follow.catch_up(self.store.as_ref()) {
            self.current.store(Arc::new(self.table(&follow.definitions)));
        }
        self.current.load_full()
    }

    fn table(&self, definitions: &BTreeMap<Arc<str>, Value>) -> Kinds {
        let mut kinds = self.builtin.clone();
        for kind in definitions.values().flat_map(object::crd::kinds_of) {
            kinds.insert(kind);
        }
        kinds
    }
}

impl Follow {
    /// Applies all pending changes of definitions. Returns whether there were any.
    fn catch_up(&mut self, store: &dyn Store) -> bool {
        let mut changed = false;
        loop {
            let Some(watcher) = &mut self.watcher else {
                self.relist(store);
                changed = true;
                if self.watcher.is_none() {
                    return changed;
                }
                continue;
            };
            // The watcher returns at once if there are events; otherwise there is nothing to apply.
            match watcher.next(usize::MAX).now_or_never() {
                Some(Next::Events { events, .. }) if events.is_empty() => return changed,
                Some(Next::Events { events, .. }) => {
                    changed = true;
                    for event in events {
                        self.take(&event.key, event.current.as_deref());
                    }
                }
                Some(Next::Compacted { .. }) => self.watcher = None,
                Some(Next::Closed) | None => return changed,
            }
        }
    }

    fn relist(&mut self, store: &dyn Store) {
        self.definitions.clear();
        match store.list(Range { prefix: DEFINITIONS, ..Range::default() }) {
            Ok(page) => {
                for record in &page.records {
                    self.take(&record.key, Some(record));
                }
                self.watcher = store.watch(DEFINITIONS, page.revision).ok();
            }
            Err(error) => tracing::error!(%error, "cannot list the CustomResourceDefinitions"),
        }
    }

    fn take(&mut self, key: &Arc<str>, record: Option<&store::Record>) {
        match record.map(crate::object_store::parse) {
            Some(Ok(definition)) => drop(self.definitions.insert(key.clone(), definition)),
            Some(Err(error)) => tracing::error!(%error, "a CustomResourceDefinition is not served"),
            None => drop(self.definitions.remove(key)),
        }
    }
}
