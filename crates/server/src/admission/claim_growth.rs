//! Warns about a StatefulSet update that its claims cannot follow.
//!
//! KEP-4650 rejects validation here: a template is the desired state, and the missing class may be created next. The
//! server therefore accepts the update even if its rollout will stop, and returns a warning for each claim template that
//! stops it.

use super::storage_class::class_of;
use super::{Verb, Write};
use crate::object_store::Reader;
use object::access::{Access, name, terminating};
use object::quantity::Quantity;
use object::{Status, Value};

/// Limit of claims that one update is compared with. They are read in the order of the rollout, from the highest
/// ordinal down.
const CLAIMS_MAX: usize = 1_000;

pub fn warn(reader: &Reader, write: &mut Write<'_>) -> Result<(), Status> {
    let Some(old) = write.old.filter(|_| write.is(Verb::Update, "apps", "statefulsets")) else { return Ok(()) };
    if !is_in_place(write, write.object) {
        return Ok(());
    }
    let set = &*write.object;
    let (templates, before) = (templates(set), templates(old));
    let ordinals = ordinals(write, set);
    let (mut left, mut warnings) = (CLAIMS_MAX, Vec::new());
    for (index, template) in templates.iter().enumerate() {
        let unchanged = before.iter().find(|it| name(it) == name(template)) == Some(template);
        if unchanged && is_in_place(write, old) {
            continue;
        }
        let at = format!("spec.volumeClaimTemplates[{index}].spec");
        warnings.extend(missing_attributes_class(reader, template, &at)?);
        for ordinal in ordinals.clone().rev() {
            if left == 0 {
                break;
            }
            left -= 1;
            let pod = format!("{}-{ordinal}", write.name);
            let key = format!("/core/persistentvolumeclaims/{}/{}-{pod}", write.namespace, name(template));
            let Some((claim, _)) = reader.get(&key)?.filter(|(claim, _)| !terminating(claim)) else { continue };
            if let Some((field, why)) = refusal(reader, template, &claim)? {
                warnings.push(format!(
                    "{at}.{field}: claim {} of pod {pod} cannot be updated: {why}; the rollout stops at this pod, and none of its \
                     claims changes",
                    name(&claim)
                ));
                break;
            }
        }
    }
    write.warnings.append(&mut warnings);
    Ok(())
}

fn is_in_place(write: &Write<'_>, set: &Value) -> bool {
    write.gates.on("StatefulSetUpdateVolumeClaimTemplate")
        && set.text(&["spec", "volumeClaimUpdatePolicy"]) == "InPlace"
}

fn templates(set: &Value) -> &[Value] {
    set.items(&["spec", "volumeClaimTemplates"])
}

/// The ordinals of the replicas that the rollout updates.
fn ordinals(write: &Write<'_>, set: &Value) -> std::ops::Range<i64> {
    let start = set.int(&["spec", "ordinals", "start"]).filter(|_| write.gates.on("StatefulSetStartOrdinal"));
    let start = start.unwrap_or(0).max(0);
    let partition = set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0).max(0);
    let offset = if write.gates.on("StatefulSetOrdinalPartition") { 0 } else { start };
    let end = start.saturating_add(set.int(&["spec", "replicas"]).unwrap_or(1).max(0));
    start.max(partition.saturating_add(offset))..end
}

/// A claim may name a class that does not exist. The server accepts the claim, and its update waits for the class.
fn missing_attributes_class(reader: &Reader, template: &Value, at: &str) -> Result<Option<String>, Status> {
    let class = template.text(&["spec", "volumeAttributesClassName"]);
    if class.is_empty() || reader.get(&format!("/storage.k8s.io/volumeattributesclasses/{class}"))?.is_some() {
        return Ok(None);
    }
    Ok(Some(format!(
        "{at}.volumeAttributesClassName: volume attributes class {class} does not exist; the rollout waits until it does"
    )))
}

/// The template field that cannot be applied to the claim, and the reason.
fn refusal(reader: &Reader, template: &Value, claim: &Value) -> Result<Option<(&'static str, String)>, Status> {
    let (named, class) = (class_of(template), class_of(claim));
    let names_one = template.has(&["spec", "storageClassName"]);
    if names_one && named != class {
        let why = format!("its storage class is {class:?}, not {named:?}, and a claim's class never changes");
        return Ok(Some(("storageClassName", why)));
    }
    if requested(template) <= requested(claim) {
        return Ok(None);
    }
    let why = if class.is_empty() {
        "it has no storage class, and only dynamically provisioned claims can grow".to_owned()
    } else {
        match reader.get(&format!("/storage.k8s.io/storageclasses/{class}"))? {
            Some((class, _)) if class.flag(&["allowVolumeExpansion"]) => return Ok(None),
            Some(_) => format!("storage class {class} does not allow volume expansion"),
            None => format!("storage class {class} does not exist"),
        }
    };
    Ok(Some(("resources.requests.storage", why)))
}

fn requested(object: &Value) -> Quantity {
    object.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of).unwrap_or(Quantity::ZERO)
}

#[cfg(test)]
mod tests {
    use super::super::testing::World;
    use object::{Value, json};

    fn template(name: &str, class: Option<&str>, size: &str) -> Value {
        let mut spec = json!({"resources": {"requests": {"storage": size}}});
        if let Some(class) = class {
            spec["storageClassName"] = json!(class);
        }
        json!({"metadata": {"name": name}, "spec": spec})
    }

    fn set(policy: &str, templates: &[Value]) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "a"},
            "spec": {"replicas": 3, "volumeClaimUpdatePolicy": policy, "volumeClaimTemplates": templates.to_vec()},
        })
    }

    /// Three replicas with claims `data` of a class that allows expansion, and `logs` of a class that does not.
    fn world() -> World {
        let mut world = World::with_namespace("a");
        for (class, grows) in [("grows", true), ("fixed", false)] {
            let class_object = json!({"metadata": {"name": class}, "allowVolumeExpansion": grows});
            world.store(&format!("/storage.k8s.io/storageclasses/{class}"), class_object);
        }
        for ordinal in 0..3 {
            for (template, class) in [("data", "grows"), ("logs", "fixed")] {
                claim(&mut world, &format!("{template}-web-{ordinal}"), class, "1Gi");
            }
        }
        world
    }

    fn claim(world: &mut World, name: &str, class: &str, size: &str) {
        let claim = json!({
            "metadata": {"name": name, "namespace": "a"},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
        });
        world.store(&format!("/core/persistentvolumeclaims/a/{name}"), claim);
    }

    fn warnings(world: &mut World, old: &Value, new: &Value) -> Vec<String> {
        world.update("statefulsets", old, new.clone()).unwrap();
        std::mem::take(&mut world.warnings)
    }

    /// T11: the update is accepted, and the client gets a warning for each template that stops the rollout.
    #[test]
    fn t11_an_expansion_that_the_class_does_not_allow_gives_a_warning() {
        let stops = "the rollout stops at this pod, and none of its claims changes";
        let size = |index: usize| format!("spec.volumeClaimTemplates[{index}].spec.resources.requests.storage");
        let fixed = format!(
            "{}: claim logs-web-2 of pod web-2 cannot be updated: storage class fixed does not allow volume expansion; {stops}",
            size(1)
        );
        let both =
            |data: &str, logs: &str| [template("data", Some("grows"), data), template("logs", Some("fixed"), logs)];
        let old = set("InPlace", &both("1Gi", "1Gi"));
        let cases: [(Value, Vec<String>); 6] = [
            (set("InPlace", &both("2Gi", "1Gi")), vec![]),
            (set("InPlace", &both("2Gi", "2Gi")), vec![fixed.clone()]),
            (set("InPlace", &both("1Gi", "2Gi")), vec![fixed.clone()]),
            (set("OnClaimDelete", &both("2Gi", "2Gi")), vec![]),
            (set("InPlace", &both("1Gi", "1024Mi")), vec![]),
            (
                set("InPlace", &[template("data", Some("grows"), "1Gi"), template("logs", None, "2Gi")]),
                vec![fixed.clone()],
            ),
        ];
        let mut world = world();
        for (new, want) in cases {
            assert_eq!(warnings(&mut world, &old, &new), want, "{new}");
        }
        // A change of the policy alone starts the same rollout.
        let waiting = set("OnClaimDelete", &both("2Gi", "2Gi"));
        assert_eq!(warnings(&mut world, &waiting, &set("InPlace", &both("2Gi", "2Gi"))), [fixed]);
        // An update that does not concern claims repeats no warning.
        let (grown, mut scaled) = (set("InPlace", &both("2Gi", "2Gi")), set("InPlace", &both("2Gi", "2Gi")));
        scaled["spec"]["replicas"] = json!(4);
        assert_eq!(warnings(&mut world, &grown, &scaled), [""; 0]);
    }

    /// T11: the class of each claim is checked, not that of the template, because replicas may have older claims.
    #[test]
    fn t11_each_claim_is_compared_with_its_own_class() {
        let grown = |class: Option<&str>| set("InPlace", &[template("data", class, "2Gi")]);
        let old = |class: Option<&str>| set("InPlace", &[template("data", class, "1Gi")]);
        let cases = [
            ("data-web-0", "fixed", "1Gi", None, "of pod web-0 cannot be updated: storage class fixed does not allow"),
            ("data-web-0", "fixed", "2Gi", None, ""),
            ("data-web-1", "gone", "1Gi", None, "of pod web-1 cannot be updated: storage class gone does not exist"),
            ("data-web-1", "", "1Gi", None, "it has no storage class"),
            ("data-web-1", "fixed", "5Gi", Some("grows"), "its storage class is \"fixed\", not \"grows\""),
            ("data-web-9", "fixed", "1Gi", None, ""),
        ];
        for (name, class, size, template_class, want) in cases {
            let mut world = world();
            claim(&mut world, name, class, size);
            let found = warnings(&mut world, &old(template_class), &grown(template_class));
            assert_eq!(found.len(), usize::from(!want.is_empty()), "{name} {class}: {found:?}");
            assert!(found.iter().all(|it| it.contains(want)), "{found:?}");
        }
    }

    #[test]
    fn t11_an_attributes_class_that_does_not_exist_gives_a_warning() {
        let mut world = world();
        let old = set("InPlace", &[template("data", Some("grows"), "1Gi")]);
        let mut new = old.clone();
        new["spec"]["volumeClaimTemplates"][0]["spec"]["volumeAttributesClassName"] = json!("gold");
        let found = warnings(&mut world, &old, &new);
        let want =
            "spec.volumeClaimTemplates[0].spec.volumeAttributesClassName: volume attributes class gold does not exist";
        assert!(found.len() == 1 && found[0].starts_with(want), "{found:?}");
        world.store("/storage.k8s.io/volumeattributesclasses/gold", json!({"metadata": {"name": "gold"}}));
        assert_eq!(warnings(&mut world, &old, &new), [""; 0]);
    }

    /// The rollout does not update replicas below the partition.
    #[test]
    fn t8_claims_below_the_partition_give_no_warning() {
        let mut world = world();
        let [mut old, mut new] = ["1Gi", "2Gi"].map(|size| set("InPlace", &[template("logs", Some("fixed"), size)]));
        for (partition, count) in [(2, 1), (3, 0)] {
            for set in [&mut old, &mut new] {
                set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"partition": partition}});
            }
            assert_eq!(warnings(&mut world, &old, &new).len(), count, "partition {partition}");
        }
    }

    /// A set of 2^31 - 1 replicas costs as much as a set of 1,000.
    #[test]
    fn a_set_with_many_replicas_is_compared_with_few_claims() {
        let mut world = world();
        let [mut old, mut new] = ["1Gi", "2Gi"].map(|size| set("InPlace", &[template("logs", Some("fixed"), size)]));
        for set in [&mut old, &mut new] {
            set["spec"]["replicas"] = json!(i32::MAX);
        }
        assert_eq!(warnings(&mut world, &old, &new), [""; 0]);
    }
}
