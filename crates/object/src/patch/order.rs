//! The order of a merged list: the patch's order for what it names, the live order for the rest, the two woven together.

use crate::Value;
use std::collections::HashMap;

/// An element and what identifies it: the JSON of its merge key, or of the element itself in a list of scalars.
pub(super) struct Item {
    pub id: String,
    pub value: Value,
}

/// Puts `items` in order. Those named in `wanted` come in that order; the others keep the order of `live`, each before the first
/// wanted element that it preceded in `live`, and after new ones.
pub(super) fn arrange(items: Vec<Item>, wanted: &[String], live: &[String]) -> Vec<Value> {
    let wanted_at = positions(wanted);
    let live_at = positions(live);
    let (mut named, mut others): (Vec<Item>, Vec<Item>) =
        items.into_iter().partition(|item| wanted_at.contains_key(item.id.as_str()));
    named.sort_by_key(|item| wanted_at.get(item.id.as_str()).copied());
    others.sort_by_key(|item| live_at.get(item.id.as_str()).copied().unwrap_or(usize::MAX));

    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for next in named {
        let place = live_at.get(next.id.as_str());
        while let Some(other) =
            others.next_if(|other| place.is_some_and(|at| live_at.get(other.id.as_str()).is_some_and(|it| it < at)))
        {
            arranged.push(other.value);
        }
        arranged.push(next.value);
    }
    arranged.extend(others.map(|other| other.value));
    arranged
}

fn positions(ids: &[String]) -> HashMap<&str, usize> {
    let mut positions = HashMap::with_capacity(ids.len());
    for (at, id) in ids.iter().enumerate() {
        positions.entry(id.as_str()).or_insert(at);
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arranged(items: &str, wanted: &str, live: &str) -> String {
        let ids = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let items = ids(items).into_iter().map(|id| Item { value: Value::from(id.as_str()), id }).collect();
        arrange(items, &ids(wanted), &ids(live)).iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn weaves_the_two_orders() {
        for (items, wanted, live, outcome) in [
            ("abc", "", "abc", "abc"),
            ("abc", "c", "abc", "abc"),
            ("abc", "cba", "abc", "cba"),
            // A new element comes before those only the server has: as upstream, not as one might like.
            ("abx", "x", "ab", "xab"),
            ("abcd", "bd", "abc", "abdc"),
            ("abcd", "dca", "abcd", "bdca"),
            ("xyz", "zx", "", "zxy"),
        ] {
            assert_eq!(arranged(items, wanted, live), outcome, "{items} {wanted} {live}");
        }
    }
}
