//! The claims that found no volume, so that a volume that becomes available can be offered to one of them.
//!
//! A claim enters before it searches: a volume that becomes available meanwhile is then offered to it, and it searches
//! again. A volume is offered to one claim at a time. If that claim takes another volume, the volume is offered to the
//! next one.

use super::Wanted;
use super::matching::{capacity, section};
use object::Value;
use object::quantity::Quantity;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// `K` is the key of claims and volumes.
pub struct Waiting<K> {
    /// By section, then by size, so that a volume is offered to the largest request that it satisfies.
    sections: HashMap<String, BTreeMap<Quantity, BTreeMap<K, Wanted>>>,
    places: HashMap<K, (String, Quantity)>,
    /// The volumes that were offered to a claim.
    callers: HashMap<K, Vec<K>>,
}

impl<K> Default for Waiting<K> {
    fn default() -> Waiting<K> {
        Waiting { sections: HashMap::new(), places: HashMap::new(), callers: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Waiting<K> {
    pub fn enter(&mut self, claim: K, wanted: Wanted) {
        self.leave(&claim);
        let place = (wanted.section.clone(), wanted.request);
        let section = self.sections.entry(place.0.clone()).or_default();
        section.entry(place.1).or_default().insert(claim.clone(), wanted);
        self.places.insert(claim, place);
    }

    pub fn leave(&mut self, claim: &K) {
        let Some((section, request)) = self.places.remove(claim) else { return };
        let Some(sizes) = self.sections.get_mut(&section) else { return };
        let Some(claims) = sizes.get_mut(&request) else { return };
        claims.remove(claim);
        if claims.is_empty() {
            sizes.remove(&request);
        }
        if sizes.is_empty() {
            self.sections.remove(&section);
        }
    }

    /// Offers an available volume: returns the claim that should search again. The claim leaves the list until it has
    /// searched.
    pub fn call(&mut self, key: &K, volume: &Value) -> Option<K> {
        let sizes = self.sections.get(&section(volume))?;
        let mut fitting = sizes.range(..=capacity(volume)?).rev().flat_map(|(_, claims)| claims);
        let claim = fitting.find(|(_, wanted)| wanted.suits(volume))?.0.clone();
        self.leave(&claim);
        self.callers.entry(claim.clone()).or_default().push(key.clone());
        Some(claim)
    }

    /// The claim has searched: returns the volumes that had been offered to it.
    pub fn looked(&mut self, claim: &K) -> Vec<K> {
        self.callers.remove(claim).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
