//! Properties that hold for every kind, on random objects.

use super::testing::{kind, now, with_ctx};
use crate::field::Errors;
use crate::gates::Gates;
use crate::kind::{Kind, Kinds};
use crate::meta;
use crate::schema::{ListType, Scalar, Schema, Type, TypeId};
use crate::{Map, Value, json};
use proptest::prelude::*;
use std::sync::LazyLock;

static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::builtin);

/// Texts that reach the branches of rules, and some that match none.
const TEXTS: &[&str] = &[
    "",
    "a",
    "A b",
    "é",
    "..",
    "None",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "ClientIP",
    "Local",
    "Container",
    "Pod",
    "PersistentVolumeClaim",
    "Recycle",
    "ReadWriteOncePod",
    "ReadWriteOnce",
    "Bound",
    "Pending",
    "In",
    "Exists",
    "Gt",
    "10.0.0.1",
    "fd00::1",
    "10.0.0.0/8",
    "-1",
    "1Gi",
    "500m",
    "kubernetes.io/tls",
    "kubernetes.io/dockercfg",
    "x/y",
    "a.b/c/d",
    "BestEffort",
    "ServiceAccount",
    "User",
    "Role",
    "2026-11-15T12:00:00Z",
    "OnDelete",
    "RollingUpdate",
    "Always",
    "Never",
    "Apply",
];

/// A small random number generator. Its quality does not matter here.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides.max(1)
    }
    fn text(&mut self) -> Value {
        json!(TEXTS[self.roll(TEXTS.len())])
    }
    fn int(&mut self) -> Value {
        json!([i64::MIN, -1, 0, 1, 2, 80, 443, 10_250, 70_000, i64::MAX][self.roll(10)])
    }
    /// Returns a random value of a type, and sometimes a value of a wrong type.
    fn value(&mut self, schema: &Schema, ty: TypeId, depth: usize) -> Value {
        if self.roll(40) == 0 {
            return [Value::Null, json!(true), json!([1, {}]), json!({"a": "b"}), json!(-7), json!("x")][self.roll(6)]
                .clone();
        }
        match schema.get(ty) {
            Type::Scalar(Scalar::Int32 | Scalar::Int64) => self.int(),
            Type::Scalar(Scalar::Bool) => json!(self.roll(2) == 0),
            Type::Scalar(Scalar::Float) => json!(0.5),
            Type::Scalar(Scalar::IntOrString) if self.roll(2) == 0 => self.int(),
            Type::Scalar(_) => self.text(),
            Type::Any => json!({"a": [1, "b"]}),
            Type::List { .. } | Type::Map { .. } | Type::Struct(_) if depth == 0 => Value::Null,
            Type::List { item, list } => {
                let length = if matches!(list, ListType::Set) { 2 } else { self.roll(4) };
                (0..length).map(|_| self.value(schema, *item, depth - 1)).collect()
            }
            Type::Map { value, .. } => {
                let keys = ["storage", "cpu", "pods", "a", "", "x.io/gpu", "tls.crt", "hugepages-2Mi"];
                let mut map = Map::new();
                for _ in 0..self.roll(4) {
                    map.insert(keys[self.roll(keys.len())].to_owned(), self.value(schema, *value, depth - 1));
                }
                Value::Object(map)
            }
            Type::Struct(fields) => {
                let wide = fields.fields.len() > 12;
                let mut object = Map::new();
                for (name, field) in &fields.fields {
                    if self.roll(if wide { 4 } else { 2 }) == 0 || (name == "spec" && self.roll(8) > 0) {
                        object.insert(name.clone(), self.value(schema, field.ty, depth - 1));
                    }
                }
                Value::Object(object)
            }
        }
    }
}

fn generate(kind: &Kind, seed: u64) -> Value {
    let mut dice = Dice(seed);
    match &kind.schema {
        Some(schema) => dice.value(&schema.schema, schema.ty, 9),
        None => Value::Null,
    }
}

/// Runs all rules of a kind on two objects. A panic fails the test.
fn exercise(kind: &Kind, new: &Value, old: &Value) {
    let rules = &kind.rules;
    with_ctx(&Gates::default(), |ctx| {
        let mut errors = Errors::default();
        let mut defaulted = new.clone();
        rules.default(&mut defaulted, ctx);
        let mut again = defaulted.clone();
        rules.default(&mut again, ctx);
        assert_eq!(again, defaulted, "{kind:?}: defaulting twice is defaulting once");
        meta::validate_create(new, kind, &mut errors);
        meta::validate_update(new, old, kind, &mut errors);
        let mut created = defaulted.clone();
        rules.prepare_create(&mut created, ctx);
        rules.validate_create(&created, ctx, &mut errors);
        let mut updated = defaulted.clone();
        rules.prepare_update(&mut updated, old, ctx);
        rules.validate_update(&updated, old, ctx, &mut errors);
        let mut status = defaulted;
        rules.prepare_status(&mut status, old, ctx);
        rules.validate_status(&status, old, ctx, &mut errors);
        rules.warnings(new, Some(old), ctx);
        assert_eq!(rules.cells(new, now()).len(), rules.columns().len(), "{kind:?}: a cell for each column");
        rules.list_cells(&[new, old], now());
        for field in rules.selectable_fields() {
            rules.field_value(new, field);
        }
        let mut stored = new.clone();
        rules.to_stored(&mut stored);
        rules.from_stored(&mut stored);
        rules.mark_terminating(&mut stored);
        rules.grace_seconds(new, Some(1));
        errors.message();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rules_never_panic_and_defaulting_is_idempotent(seed in any::<u64>(), other in any::<u64>()) {
        for kind in KINDS.iter() {
            exercise(kind, &generate(kind, seed), &generate(kind, other));
        }
    }

    #[test]
    fn rules_never_panic_on_any_json(new in crate::meta::any_json(), old in crate::meta::any_json()) {
        for kind in KINDS.iter() {
            exercise(kind, &new, &old);
        }
    }
}

#[test]
fn every_row_is_complete_and_unique() {
    let mut seen = std::collections::BTreeSet::new();
    let mut shorts = std::collections::BTreeSet::new();
    for kind in super::all() {
        assert!(kind.schema.is_some(), "{kind:?} has a schema");
        assert!(
            seen.insert((kind.group.clone(), kind.version.clone(), kind.plural.clone())),
            "{kind:?} is in the table twice"
        );
        assert_eq!(kind.singular, kind.kind.to_lowercase());
        for short in &kind.short_names {
            assert!(shorts.insert((kind.group.clone(), short.clone())), "the short name {short} is used by two kinds");
        }
    }
    for known in ["Namespace", "Node", "Service", "PersistentVolume", "events.k8s.io/Event", "storage.k8s.io/CSIDriver"]
    {
        assert!(kind(known).stored);
    }
}
