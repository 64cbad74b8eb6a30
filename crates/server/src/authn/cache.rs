//! A bounded cache.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// A cache of two generations. A used entry moves to the young one; when that is full, it replaces the old one, which
/// is dropped. So the cache holds at most twice `half` entries and keeps those in use.
pub struct Cache<K, V> {
    half: usize,
    generations: Mutex<Generations<K, V>>,
}

struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    pub fn new(half: usize) -> Cache<K, V> {
        Cache { half, generations: Mutex::new(Generations { young: HashMap::new(), old: HashMap::new() }) }
    }

    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let mut held = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = held.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = held.old.remove_entry(key)?;
        self.insert_young(&mut held, key, value.clone());
        Some(value)
    }

    pub fn insert(&self, key: K, value: V) {
        let mut held = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        held.old.remove(&key);
        self.insert_young(&mut held, key, value);
    }

    fn insert_young(&self, held: &mut Generations<K, V>, key: K, value: V) {
        if held.young.len() >= self.half {
            held.old = std::mem::take(&mut held.young);
        }
        held.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_keeps_what_is_used() {
        let cache = Cache::new(4);
        cache.insert(0, "kept");
        for key in 1..100 {
            cache.insert(key, "passing");
            assert_eq!(cache.get(&0), Some("kept"));
        }
        assert_eq!(cache.get(&1), None);
        let held = cache.generations.lock().unwrap();
        assert!(held.young.len() + held.old.len() <= 8);
    }
}
