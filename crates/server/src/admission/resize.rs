//! Decides which claims may be expanded.

use super::storage_class::class_of;
use super::{Verb, Write};
use crate::object_store::Reader;
use object::access::Access;
use object::quantity::Quantity;
use object::{Status, Value};

pub fn check(reader: &Reader, write: &Write<'_>) -> Result<(), Status> {
    let Some(old) = write.old.filter(|_| write.is(Verb::Update, "", "persistentvolumeclaims")) else { return Ok(()) };
    if requested(write.object) <= requested(old) {
        return Ok(());
    }
    if old.text(&["status", "phase"]) != "Bound" {
        return Err(write.forbidden("Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(write.object);
    if class.is_empty() || class != class_of(old) || !allows_expansion(reader, class)? {
        return Err(write.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ));
    }
    Ok(())
}

fn requested(claim: &Value) -> Quantity {
    claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of).unwrap_or(Quantity::ZERO)
}

fn allows_expansion(reader: &Reader, class: &str) -> Result<bool, Status> {
    let class = reader.get(&format!("/storage.k8s.io/storageclasses/{class}"))?;
    Ok(class.is_some_and(|(class, _)| class.flag(&["allowVolumeExpansion"])))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, denied};
    use object::{Value, json};

    fn claim(class: &str, size: &str, phase: &str) -> Value {
        json!({
            "metadata": {"name": "c", "namespace": "a"},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
            "status": {"phase": phase},
        })
    }

    #[test]
    fn only_bound_claims_of_an_expandable_class_grow() {
        let mut world = World::with_namespace("a");
        world.store(
            "/storage.k8s.io/storageclasses/grows",
            json!({"metadata": {"name": "grows"}, "allowVolumeExpansion": true}),
        );
        world.store("/storage.k8s.io/storageclasses/fixed", json!({"metadata": {"name": "fixed"}}));
        let class_text = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                          support resize";
        let cases = [
            ("grows", "Bound", "2Gi", ""),
            ("grows", "Bound", "1024Mi", ""),
            ("grows", "Bound", "512Mi", ""),
            ("fixed", "Bound", "512Mi", ""),
            ("grows", "Pending", "2Gi", "Only bound persistent volume claims can be expanded"),
            ("fixed", "Bound", "2Gi", class_text),
            ("absent", "Bound", "2Gi", class_text),
            ("", "Bound", "2Gi", class_text),
        ];
        for (class, phase, size, want) in cases {
            let (old, new) = (claim(class, "1Gi", phase), claim(class, size, phase));
            let result = world.update("persistentvolumeclaims", &old, new);
            if want.is_empty() {
                assert!(result.is_ok(), "{class} {phase} {size}");
            } else {
                let refused = denied(result);
                assert_eq!(refused.code, 403);
                assert_eq!(refused.message, format!("persistentvolumeclaims \"c\" is forbidden: {want}"));
            }
        }
    }
}
