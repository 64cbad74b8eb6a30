//! Sets the default StorageClass of claims that name none.

use super::{Verb, Write};
use crate::object_store::Reader;
use object::access::{Access, name};
use object::{Status, Value};

pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_ANNOTATIONS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// The class of a claim or PV. The old annotation takes precedence over the field.
pub fn class_of(object: &Value) -> &str {
    match object.at(&["metadata", "annotations", CLASS_ANNOTATION]).and_then(Value::as_str) {
        Some(class) => class,
        None => object.text(&["spec", "storageClassName"]),
    }
}

/// Sets the default class. An explicit `""` is kept.
pub fn default(reader: &Reader, write: &mut Write<'_>) -> Result<(), Status> {
    if !write.is(Verb::Create, "", "persistentvolumeclaims")
        || write.object.has(&["spec", "storageClassName"])
        || write.object.has(&["metadata", "annotations", CLASS_ANNOTATION])
    {
        return Ok(());
    }
    let classes = reader.list("/storage.k8s.io/storageclasses/")?;
    let defaults = classes.iter().map(|(class, _)| class).filter(|class| is_default(class));
    // The newest default class; of equally old ones, the first by name.
    let chosen = defaults.min_by(|a, b| created(b).cmp(created(a)).then_with(|| name(a).cmp(name(b))));
    if let Some(class) = chosen {
        write.object.put(&["spec", "storageClassName"], name(class));
    }
    Ok(())
}

fn is_default(class: &Value) -> bool {
    DEFAULT_ANNOTATIONS.iter().any(|annotation| class.text(&["metadata", "annotations", annotation]) == "true")
}

fn created(class: &Value) -> &str {
    class.text(&["metadata", "creationTimestamp"])
}

#[cfg(test)]
mod tests {
    use super::super::testing::World;
    use super::*;
    use object::json;

    fn class(world: &mut World, class_name: &str, created: &str, annotation: &str) {
        let class = json!({
            "metadata": {"name": class_name, "creationTimestamp": created, "annotations": {annotation: "true"}},
        });
        world.store(&format!("/storage.k8s.io/storageclasses/{class_name}"), class);
    }

    fn claim(spec: Value, annotations: Value) -> Value {
        json!({"metadata": {"name": "c", "namespace": "a", "annotations": annotations}, "spec": spec})
    }

    #[test]
    fn the_newest_default_is_chosen_unless_the_claim_says_something() {
        let mut world = World::with_namespace("a");
        let got = world.mutate("persistentvolumeclaims", claim(json!({}), json!({}))).unwrap();
        assert!(!got.has(&["spec", "storageClassName"]), "no class is the default");

        class(&mut world, "old", "2024-01-01T00:00:00Z", DEFAULT_ANNOTATIONS[0]);
        class(&mut world, "z", "2024-02-01T00:00:00Z", DEFAULT_ANNOTATIONS[0]);
        class(&mut world, "n", "2024-02-01T00:00:00Z", DEFAULT_ANNOTATIONS[1]);
        class(&mut world, "plain", "2024-03-01T00:00:00Z", "other");
        let cases = [
            (claim(json!({}), json!({})), json!("n")),
            (claim(json!({"storageClassName": ""}), json!({})), json!("")),
            (claim(json!({"storageClassName": "x"}), json!({})), json!("x")),
            (claim(json!({}), json!({CLASS_ANNOTATION: "x"})), json!(null)),
        ];
        for (claim, want) in cases {
            let got = world.mutate("persistentvolumeclaims", claim.clone()).unwrap();
            assert_eq!(got["spec"]["storageClassName"], want, "{claim}");
        }
    }
}
