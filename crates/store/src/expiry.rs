//! The keys that expire, by time.

use crate::Revision;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Only keys with an expiry time are stored here.
#[derive(Default)]
pub(crate) struct Expiry {
    by_time: BTreeSet<(u64, Arc<str>)>,
    by_key: HashMap<Arc<str>, (u64, Revision)>,
}

impl Expiry {
    /// Sets the expiry time that the write of `key` at revision `modified` gave it. `None` removes it: for a key
    /// without expiry, and for a deletion.
    pub fn set(&mut self, key: &Arc<str>, expires_at_s: Option<u64>, modified: Revision) {
        let before = match expires_at_s {
            Some(at_s) => self.by_key.insert(Arc::clone(key), (at_s, modified)),
            None => self.by_key.remove(key),
        };
        if let Some((at_s, _)) = before {
            let was = self.by_time.remove(&(at_s, Arc::clone(key)));
            assert!(was, "by_time lacks a key of by_key");
        }
        if let Some(at_s) = expires_at_s {
            self.by_time.insert((at_s, Arc::clone(key)));
        }
    }

    /// Returns up to `keys_max` keys whose time is `now_s` or earlier, earliest first, each with the revision that set
    /// the time.
    pub fn due(&self, now_s: u64, keys_max: usize) -> Vec<(Arc<str>, Revision)> {
        self.by_time
            .iter()
            .take_while(|(at_s, _)| *at_s <= now_s)
            .take(keys_max)
            .map(|(_, key)| (Arc::clone(key), self.by_key[key].1))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_expiry_time_of_a_key_counts() {
        let (a, b): (Arc<str>, Arc<str>) = (Arc::from("a"), Arc::from("b"));
        let mut expiry = Expiry::default();
        expiry.set(&a, Some(10), 2);
        expiry.set(&b, Some(5), 3);
        assert_eq!(expiry.due(4, 9), vec![]);
        assert_eq!(expiry.due(10, 9), vec![(b.clone(), 3), (a.clone(), 2)]);
        assert_eq!(expiry.due(10, 1), vec![(b.clone(), 3)]);
        expiry.set(&b, Some(20), 4);
        expiry.set(&a, None, 5);
        assert_eq!(expiry.due(19, 9), vec![]);
        assert_eq!(expiry.due(20, 9), vec![(b, 4)]);
    }
}
