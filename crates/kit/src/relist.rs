//! Finds the objects that were deleted without a watch event: known ones that a new list does not contain.

use std::collections::HashSet;
use std::hash::Hash;

/// The keys of a list that is being received.
pub struct Relist<K> {
    /// `None` between lists.
    listed: Option<HashSet<K>>,
}

impl<K> Default for Relist<K> {
    fn default() -> Relist<K> {
        Relist { listed: None }
    }
}

impl<K: Clone + Eq + Hash> Relist<K> {
    /// A list begins: call it at `Event::Init`.
    pub fn begin(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// Call it at `Event::Apply`. Returns whether the object is part of a list.
    pub fn applied(&mut self, key: &K) -> bool {
        let Some(listed) = &mut self.listed else { return false };
        listed.insert(key.clone());
        true
    }

    /// The list is complete: call it at `Event::InitDone`. Returns the known keys that the list does not contain.
    pub fn missing<'a>(&mut self, known: impl IntoIterator<Item = &'a K>) -> Vec<K>
    where
        K: 'a,
    {
        let Some(listed) = self.listed.take() else { return Vec::new() };
        known.into_iter().filter(|key| !listed.contains(*key)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_tells_which_known_keys_are_missing() {
        let mut relist = Relist::default();
        assert!(!relist.applied(&"a"), "no list is being received");
        assert_eq!(relist.missing(&["a"]), Vec::<&str>::new());
        relist.begin();
        assert!(relist.applied(&"a"));
        relist.begin();
        assert!(relist.applied(&"b"), "a list that fails begins again");
        assert_eq!(relist.missing(&["a", "b", "c"]), ["a", "c"]);
        assert!(!relist.applied(&"c"), "the list is complete");
    }
}
