//! Records the requests of controllers.

use super::PATIENCE;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The requests of controllers and their response codes.
#[derive(Clone, Default)]
pub struct Requests {
    all: Arc<Mutex<Vec<Asked>>>,
    /// Requests without a response yet, and the number of the next one.
    open: Arc<watch::Sender<(BTreeSet<u64>, u64)>>,
}

/// A request without a response yet.
pub struct Open {
    number: u64,
    of: Requests,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.of.open.send_modify(|(open, _)| {
            open.remove(&self.number);
        });
    }
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub account: Arc<str>,
    pub method: String,
    /// With its query.
    pub path: String,
    pub code: u16,
}

impl Requests {
    /// Takes the recorded requests. Waits first for responses to all requests sent so far: a change can be
    /// visible in the store a moment before the response of its request is recorded.
    pub async fn take(&self) -> Vec<Asked> {
        let next = self.open.borrow().1;
        let are_answered = |(open, _): &(BTreeSet<u64>, u64)| open.first().is_none_or(|first| *first >= next);
        let mut open = self.open.subscribe();
        tokio::time::timeout(PATIENCE, open.wait_for(are_answered)).await.expect("answers").expect("it is ours");
        std::mem::take(&mut self.all.lock().expect("no panic"))
    }

    pub fn begin(&self) -> Open {
        let mut number = 0;
        self.open.send_modify(|(open, next)| {
            number = *next;
            *next += 1;
            open.insert(number);
        });
        Open { number, of: self.clone() }
    }

    pub fn note(&self, asked: Asked) {
        self.all.lock().expect("no panic").push(asked);
    }

    /// Waits until this many such requests were answered.
    pub async fn until(&self, which: impl Fn(&Asked) -> bool, times: usize) {
        let mut open = self.open.subscribe();
        let are_answered = open.wait_for(|_| self.count(&which) >= times);
        let Ok(answered) = tokio::time::timeout(PATIENCE, are_answered).await else {
            panic!("they were not asked; what was: {:#?}", self.all.lock().expect("no panic"));
        };
        answered.expect("it is ours");
    }

    pub fn count(&self, which: impl Fn(&Asked) -> bool) -> usize {
        self.all.lock().expect("no panic").iter().filter(|asked| which(asked)).count()
    }

    pub fn refused(&self) -> Vec<Asked> {
        self.all.lock().expect("no panic").iter().filter(|asked| asked.code == 403).cloned().collect()
    }

    /// The number of requests by kind, for failure messages.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for Asked { account, method, path, code } in &*self.all.lock().expect("no panic") {
            *counts.entry(format!("{account} {method} {path} {code}")).or_default() += 1;
        }
        let mut text = String::new();
        for (asked, count) in counts.iter().filter(|(asked, _)| !asked.contains("watch=") && !asked.contains("limit="))
        {
            let _ = writeln!(text, "{count:6} {asked}");
        }
        text
    }
}
