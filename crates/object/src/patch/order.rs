//! The order of a merged list: elements of the patch in the patch's order, the others in the live order.

use crate::Value;
use std::collections::HashMap;

/// A list element with its identity: the JSON of its merge key, or of the element itself in a list of scalars.
pub(super) struct Item {
    pub id: String,
    pub value: Value,
}

/// Orders `items`. Elements in `wanted` come in that order. The others keep the order of `live`: each comes before the
/// first wanted element that it preceded in `live`, and after new elements.
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
    fn the_two_orders_are_merged() {
        for (items, wanted, live, outcome) in [
            ("abc", "", "abc", "abc"),
            ("abc", "c", "abc", "abc"),
            ("abc", "cba", "abc", "cba"),
            // A new element comes before elements that only the server has, as upstream.
            ("abx", "x", "ab", "xab"),
            ("abcd", "bd", "abc", "abdc"),
            ("abcd", "dca", "abcd", "bdca"),
            ("xyz", "zx", "", "zxy"),
        ] {
            assert_eq!(arranged(items, wanted, live), outcome, "{items} {wanted} {live}");
        }
    }
}
