//! Tests with whole definitions and their objects: what is accepted, the error messages, and the resulting objects.

mod cel;
mod definitions;
mod lifecycle;
mod objects;
mod properties;

use super::*;
use crate::access::Access;
use crate::field::Errors;
use crate::gates::Gates;
use crate::kind::{Ctx, Rules};
use crate::{Value, json};

fn now() -> jiff::Timestamp {
    "2026-11-15T10:00:00Z".parse().expect("not a timestamp")
}

fn with_ctx<T>(run: impl FnOnce(&Ctx) -> T) -> T {
    let gates = Gates::default();
    run(&Ctx { gates: &gates, now: now() })
}

/// A definition as a client sends it, with this schema for `spec`.
fn definition_of_spec(spec_schema: Value) -> Value {
    definition_of(json!({"type": "object", "properties": {"spec": spec_schema}}))
}

/// A definition with this root schema.
fn definition_of(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Validates a definition and returns its errors.
fn refusals(definition: &Value) -> Vec<String> {
    let mut definition = definition.clone();
    let mut errors = Errors::default();
    with_ctx(|ctx| {
        definition::Definition.default(&mut definition, ctx);
        definition::Definition.validate_create(&definition, ctx, &mut errors);
    });
    errors.0.iter().map(ToString::to_string).collect()
}

/// Returns the served kinds of a valid definition.
fn kinds(definition: &Value) -> Vec<Kind> {
    assert_eq!(refusals(definition), Vec::<String>::new(), "the definition must be valid");
    let mut definition = definition.clone();
    with_ctx(|ctx| definition::Definition.default(&mut definition, ctx));
    establish(&mut definition, &[], now());
    kinds_of(&definition)
}

fn kind(definition: &Value) -> Kind {
    kinds(definition).remove(0)
}

/// Prunes, defaults and validates an object as a create does. Returns the object and its errors.
fn create(kind: &Kind, mut object: Value) -> (Value, Vec<String>) {
    kind.rules.conform(&mut object).expect("custom resources have their own conform").expect("the metadata is invalid");
    let mut errors = Errors::default();
    with_ctx(|ctx| {
        kind.rules.default(&mut object, ctx);
        kind.rules.validate_create(&object, ctx, &mut errors);
    });
    (object, errors.0.iter().map(ToString::to_string).collect())
}

/// Returns the errors of an update.
fn update(kind: &Kind, old: &Value, mut new: Value) -> Vec<String> {
    let mut errors = Errors::default();
    with_ctx(|ctx| {
        kind.rules.default(&mut new, ctx);
        kind.rules.validate_update(&new, old, ctx, &mut errors);
    });
    errors.0.iter().map(ToString::to_string).collect()
}

fn widget(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a", "namespace": "default"}, "spec": spec})
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("the sample is not YAML")
}

/// A database cluster resource: defaults, scale, quantities, list maps, free-form overrides, a pod template.
fn postgres() -> Value {
    yaml(include_str!("postgres.yaml"))
}

fn cluster(spec: Value) -> Value {
    json!({
        "apiVersion": "postgresql.example.com/v1",
        "kind": "Cluster",
        "metadata": {"name": "main", "namespace": "default"},
        "spec": spec,
    })
}
