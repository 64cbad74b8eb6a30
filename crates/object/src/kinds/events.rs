//! Event in the core group and in events.k8s.io: the same stored objects, served in two forms.
//!
//! Events are stored in the core form. For rows whose rules convert, the server calls `to_stored` as the last step
//! before a write, and `from_stored` as the first step after a read. For the core row both do nothing.

use super::check::member;
use super::row;
use crate::access::{Access, name, namespace};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Kind, NameRule, Rules};
use crate::meta::{invalid_for_each, validate_immutable};
use crate::name::{qualified, subdomain};
use crate::table::{Column, column, since, wide};
use crate::{Value, json};
use std::borrow::Cow;

#[cfg(test)]
mod tests;

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "Event", "events", "io.k8s.api.core.v1.Event").short(&["ev"]).rules(CoreEvents),
        row("events.k8s.io", "v1", "Event", "events", "io.k8s.api.events.v1.Event")
            .short(&["ev"])
            .stored_as("core/events")
            .rules(Events),
    ]
}

/// Fields with different names in the two forms: core, then events.k8s.io.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts from the form of events.k8s.io to the core form.
pub fn to_core(event: &mut Value) {
    rename(event, "v1", |(core, events)| (events, core));
}

/// Converts from the core form to that of events.k8s.io.
pub fn to_events_v1(event: &mut Value) {
    rename(event, "events.k8s.io/v1", |(core, events)| (core, events));
}

fn rename(
    event: &mut Value,
    api_version: &str,
    pair: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(members) = event.as_object_mut() else { return };
    for (from, to) in NAMES.map(pair) {
        if let Some(value) = members.remove(from) {
            members.insert(to.to_owned(), value);
        }
    }
    if members.contains_key("apiVersion") {
        members.insert("apiVersion".to_owned(), json!(api_version));
    }
}

struct CoreEvents;

impl Rules for CoreEvents {
    /// Old clients use arbitrary names for events.
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_lenient(object, errors);
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        cells(object, now)
    }
    fn selectable_fields(&self) -> &[&str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    }
    fn field_value(&self, object: &Value, field: &str) -> String {
        match (field, object.text(&["source", "component"])) {
            ("source", "") => object.text(&["reportingComponent"]).to_owned(),
            ("source", component) => component.to_owned(),
            _ => crate::selector::plain_field(object, field),
        }
    }
}

/// events.k8s.io/v1.
struct Events;

impl Rules for Events {
    fn converts(&self) -> bool {
        true
    }
    fn to_stored(&self, object: &mut Value) {
        to_core(object);
    }
    fn from_stored(&self, object: &mut Value) {
        to_events_v1(object);
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let event = in_core(object);
        validate_lenient(&event, errors);
        validate_strict(&event, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (new, old) = (in_core(new), in_core(old));
        validate_lenient(&new, errors);
        if member(&new, "series") != member(&old, "series") {
            validate_series(&new, errors);
        }
        const FIXED: [(&str, &str); 13] = [
            ("involvedObject", "involvedObject"),
            ("reason", "reason"),
            ("message", "message"),
            ("source", "source"),
            ("firstTimestamp", "firstTimestamp"),
            ("lastTimestamp", "lastTimestamp"),
            ("count", "count"),
            ("type", "type"),
            ("eventTime", "eventTime"),
            ("action", "action"),
            ("related", "related"),
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
        ];
        for (field, shown) in FIXED {
            validate_immutable(new.at(&[field]), old.at(&[field]), &Path::new(shown), errors);
        }
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        cells(&in_core(object), now)
    }
    fn selectable_fields(&self) -> &[&str] {
        &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ]
    }
}

/// Returns the event in the core form, whichever form it has.
fn in_core(event: &Value) -> Cow<'_, Value> {
    if NAMES.iter().any(|(_, events)| event.get(events).is_some()) {
        let mut core = event.clone();
        to_core(&mut core);
        return Cow::Owned(core);
    }
    Cow::Borrowed(event)
}

/// Validation for all events, whichever client created them.
fn validate_lenient(event: &Value, errors: &mut Errors) {
    let (own, about) = (namespace(event), event.text(&["involvedObject", "namespace"]));
    let path = Path::new("involvedObject.namespace");
    let in_series = event.has(&["eventTime"]);
    let agrees = match (about, in_series) {
        ("", false) => matches!(own, "" | "default"),
        ("", true) => matches!(own, "default" | "kube-system"),
        (about, false) => own == about,
        (_, true) => true,
    };
    if !agrees {
        errors.invalid(&path, about, "does not match event.namespace");
    }
    if in_series {
        validate_texts(event, errors);
    }
    invalid_for_each(subdomain(own), &Path::new("namespace"), own, errors);
}

/// Validates the text fields of an event with an `eventTime`.
fn validate_texts(event: &Value, errors: &mut Errors) {
    let controller = event.text(&["reportingComponent"]);
    let path = Path::new("reportingController");
    if controller.is_empty() {
        errors.required(&path, "");
    }
    invalid_for_each(qualified(controller), &path, controller, errors);
    for (field, required, bytes_max) in
        [("reportingInstance", true, 128), ("action", true, 128), ("reason", true, 128), ("message", false, 1024)]
    {
        let text = event.text(&[field]);
        if required && text.is_empty() {
            errors.required(&Path::new(field), "");
        }
        if text.len() > bytes_max {
            errors.invalid(&Path::new(field), "", format!("can have at most {bytes_max} characters"));
        }
    }
}

/// The additional validation of events.k8s.io.
fn validate_strict(event: &Value, errors: &mut Errors) {
    validate_series(event, errors);
    if !event.has(&["eventTime"]) {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = event.text(&["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    let source = !event.text(&["source", "component"]).is_empty() || !event.text(&["source", "host"]).is_empty();
    let deprecated = [
        ("firstTimestamp", event.has(&["firstTimestamp"])),
        ("lastTimestamp", event.has(&["lastTimestamp"])),
        ("count", event.int(&["count"]).unwrap_or(0) != 0),
        ("source", source),
    ];
    for (field, _) in deprecated.into_iter().filter(|(_, set)| *set) {
        errors.invalid(&Path::new(field), "", "needs to be unset");
    }
}

fn validate_series(event: &Value, errors: &mut Errors) {
    let Some(series) = event.at(&["series"]) else { return };
    if series.int(&["count"]).unwrap_or(0) < 2 {
        errors.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if !series.has(&["lastObservedTime"]) {
        errors.required(&Path::new("series.lastObservedTime"), "");
    }
}

const COLUMNS: &[Column] = &[
    column("Last Seen", "string", "Time since the event was last seen"),
    column("Type", "string", "Normal or Warning"),
    column("Reason", "string", "Why it happened, in one word"),
    column("Object", "string", "What it is about"),
    wide("Subobject", "string", "Which part of the object it is about"),
    wide("Source", "string", "Who reports it"),
    column("Message", "string", "What happened, for people"),
    wide("First Seen", "string", "Time since the event was first seen"),
    wide("Count", "string", "How often it was seen"),
    Column {
        name: Cow::Borrowed("Name"),
        kind: Cow::Borrowed("string"),
        format: Cow::Borrowed("name"),
        description: Cow::Borrowed("The name of the event"),
        priority: 1,
    },
];

fn cells(event: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let seen = |path: &[&str]| event.at(path).map(|stamp| since(stamp.as_str().unwrap_or(""), now));
    let unknown = || since("", now);
    let first = seen(&["firstTimestamp"]).or_else(|| seen(&["eventTime"])).unwrap_or_else(unknown);
    let mut last = seen(&["lastTimestamp"]).unwrap_or_else(|| first.clone());
    let mut count = event.int(&["count"]).filter(|count| *count != 0).unwrap_or(1);
    if let Some(series) = event.at(&["series"]) {
        last = since(series.text(&["lastObservedTime"]), now);
        count = series.int(&["count"]).unwrap_or(0);
    }
    vec![
        json!(last),
        json!(event.text(&["type"])),
        json!(event.text(&["reason"])),
        json!(target(member(event, "involvedObject"))),
        json!(event.text(&["involvedObject", "fieldPath"])),
        json!(source(event)),
        json!(event.text(&["message"]).trim()),
        json!(first),
        json!(count),
        json!(name(event)),
    ]
}

/// `pod/web-0`.
fn target(object: &Value) -> String {
    let kind = object.text(&["kind"]).to_lowercase();
    match object.text(&["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

/// `component, instance`.
fn source(event: &Value) -> String {
    let either = |old: &[&str], new: &str| match event.text(old) {
        "" => event.text(&[new]).to_owned(),
        text => text.to_owned(),
    };
    let component = either(&["source", "component"], "reportingComponent");
    match either(&["source", "host"], "reportingInstance") {
        instance if instance.is_empty() => component,
        instance => format!("{component}, {instance}"),
    }
}
