use super::*;
use crate::json;
use proptest::prelude::*;
use std::collections::BTreeSet;

type Path = Vec<&'static str>;

/// The model: a plain set of paths.
fn paths() -> impl Strategy<Value = BTreeSet<Path>> {
    let elements = vec!["f:a", "f:b", r#"k:{"name":"x"}"#, r#"v:"y""#, "i:0"];
    let path = prop::collection::vec(prop::sample::select(elements), 1..4);
    prop::collection::btree_set(path, 0..8)
}

fn set_of(paths: &BTreeSet<Path>) -> Set {
    let mut set = Set::default();
    for path in paths {
        let leaf = path.iter().rev().fold(Node::new(), |below, element| {
            let mut node = Node::new();
            node.insert((*element).to_owned(), Value::Object(below));
            node
        });
        set.unite(Set(leaf));
    }
    set
}

proptest! {
    #[test]
    fn set_operations_equal_those_of_plain_sets(a in paths(), b in paths()) {
        let (set_a, set_b) = (set_of(&a), set_of(&b));
        let mut union = set_a.clone();
        union.unite(set_b.clone());
        prop_assert_eq!(union, set_of(&a.union(&b).cloned().collect()));
        let mut difference = set_a.clone();
        difference.subtract(&set_b);
        prop_assert_eq!(difference, set_of(&a.difference(&b).cloned().collect()));
        prop_assert_eq!(set_a.intersection(&set_b), set_of(&a.intersection(&b).cloned().collect()));
        prop_assert_eq!(set_a.is_empty(), a.is_empty());
        prop_assert_eq!(set_a.paths().len(), a.len());
    }

    #[test]
    fn a_written_set_reads_back(a in paths()) {
        let set = set_of(&a);
        prop_assert_eq!(Set::parse(&Value::Object(set.0.clone())).unwrap(), set);
    }

    #[test]
    fn parsing_is_idempotent_and_never_panics(value in crate::patch::arbitrary_json()) {
        if let Ok(set) = Set::parse(&value) {
            prop_assert_eq!(Set::parse(&Value::Object(set.0.clone())).unwrap(), set);
        }
    }
}

#[test]
fn canonical_form_drops_needless_dots_and_unknown_elements() {
    let set =
        Set::parse(&json!({".": {}, "f:a": {".": {}}, "f:b": {".": {}, "f:c": {}}, "z:new": {"f:d": {}}})).unwrap();
    assert_eq!(Value::Object(set.0), json!({"f:a": {}, "f:b": {".": {}, "f:c": {}}}));
    for bad in [json!([]), json!({"f:a": 1}), json!({"f:a": {"f:b": []}}), json!({"spec": {}}), json!({"f:a": null})] {
        assert!(Set::parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn paths_are_displayed_as_upstream_does() {
    let set = Set::parse(&json!({
        "f:spec": {"f:replicas": {}, "f:containers": {r#"k:{"name":"c"}"#: {".": {}, "f:image": {}}}},
        "f:metadata": {"f:finalizers": {r#"v:"x""#: {}}},
    }));
    assert_eq!(
        set.unwrap().paths(),
        [
            r#".metadata.finalizers[="x"]"#,
            ".spec.replicas",
            r#".spec.containers[name="c"]"#,
            r#".spec.containers[name="c"].image"#
        ]
    );
}
