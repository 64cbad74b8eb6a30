//! Adds the protection finalizers to new PVs, claims and VolumeAttributesClasses.

use super::{Verb, Write};
use object::access::Access;
use object::json;

const FINALIZERS: [(&str, &str, &str); 3] = [
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

/// Adds the finalizer after the client's, unless it is among them. Only on creation; later, controllers decide.
pub fn add_finalizers(write: &mut Write<'_>) {
    let found = FINALIZERS.iter().find(|(group, plural, _)| write.is(Verb::Create, group, plural));
    let Some((_, _, finalizer)) = found else { return };
    let mut finalizers = write.object.items(&["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|present| present == finalizer) {
        finalizers.push(json!(finalizer));
        write.object.put(&["metadata", "finalizers"], finalizers);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::World;
    use super::*;

    #[test]
    fn volumes_claims_and_classes_get_their_finalizer_once_and_last() {
        let mut world = World::with_namespace("a");
        let cases = [
            ("persistentvolumes", json!({"name": "x"}), json!(["kubernetes.io/pv-protection"])),
            (
                "persistentvolumeclaims",
                json!({"name": "x", "namespace": "a", "finalizers": ["example.com/f"]}),
                json!(["example.com/f", "kubernetes.io/pvc-protection"]),
            ),
            (
                "persistentvolumes",
                json!({"name": "y", "finalizers": ["kubernetes.io/pv-protection", "z"]}),
                json!(["kubernetes.io/pv-protection", "z"]),
            ),
            ("volumeattributesclasses", json!({"name": "x"}), json!(["kubernetes.io/vac-protection"])),
            ("secrets", json!({"name": "x", "namespace": "a"}), json!(null)),
        ];
        for (plural, metadata, want) in cases {
            let stored = world.create(plural, json!({"metadata": metadata})).unwrap();
            assert_eq!(stored["metadata"]["finalizers"], want, "{plural}");
        }
        let bare = json!({"metadata": {"name": "x"}});
        let updated = world.update("persistentvolumes", &bare.clone(), bare).unwrap();
        assert!(!updated.has(&["metadata", "finalizers"]), "never on update");
    }
}
