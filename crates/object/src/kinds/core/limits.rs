//! LimitRange.

use super::check::{self, member};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::kinds::resources;
use crate::name;
use crate::quantity::Quantity;
use crate::table::Column;
use crate::value::Key;
use crate::{Map, Value};
use std::collections::BTreeSet;

const MAPS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

pub(super) struct LimitRanges;

impl Rules for LimitRanges {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        let limits = object.get_mut("spec").and_then(|spec| spec.get_mut("limits")).and_then(Value::as_array_mut);
        for limit in limits.into_iter().flatten() {
            if limit.text(&["type"]) == "Container" {
                fill(limit, "default", "max");
                fill(limit, "defaultRequest", "default");
                fill(limit, "defaultRequest", "min");
            }
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec.limits");
        let mut seen = BTreeSet::new();
        for (index, limit) in object.items(&["spec", "limits"]).iter().enumerate() {
            let path = path.index(index);
            let kind = limit.text(&["type"]);
            validate_type(kind, &path.child("type"), errors);
            if !seen.insert(kind) {
                errors.duplicate(&path.child("type"), kind);
            }
            validate_names(limit, &path, errors);
            validate_order(limit, &path, errors);
        }
    }
    fn columns(&self) -> &[Column] {
        check::NAME_AND_CREATED
    }
    fn cells(&self, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        check::name_and_created(object)
    }
}

/// Copies the amounts in `from` that are missing in `into`.
fn fill(limit: &mut Value, into: &str, from: &str) {
    let Some(source) = limit.at(&[from]).and_then(Value::as_object).cloned() else { return };
    for (resource, amount) in source {
        limit.default_to(&[into, &resource], amount);
    }
}

fn validate_type(kind: &str, path: &Path, errors: &mut Errors) {
    let why = name::qualified(kind);
    if !why.is_empty() {
        check::invalid_for_each(why, path, kind, errors);
    } else if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
        errors.invalid(path, kind, "must be a standard limit type or fully qualified");
    }
}

fn validate_names(limit: &Value, path: &Path, errors: &mut Errors) {
    let kind = limit.text(&["type"]);
    for field in MAPS {
        if kind == "Pod" && matches!(field, "default" | "defaultRequest") {
            if !limit.members(&[field]).is_empty() {
                errors.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        for resource in limit.members(&[field]).keys() {
            let path = path.child(field).key(resource);
            match kind {
                "Pod" | "Container" => resources::validate_container_name(resource, &path, errors),
                _ => resources::validate_name(resource, &path, errors),
            }
        }
    }
    let bounded = limit.has(&["min", "storage"]) || limit.has(&["max", "storage"]);
    if kind == "PersistentVolumeClaim" && !bounded {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(&path.child("limits"), why);
    }
}

/// Checks min ≤ defaultRequest ≤ default ≤ max, for each resource.
fn validate_order(limit: &Value, path: &Path, errors: &mut Errors) {
    let empty = Map::new();
    let map = |field: &str| member(limit, field).as_object().unwrap_or(&empty);
    let maps = MAPS.map(map);
    let resources: BTreeSet<&Key> = maps.iter().flat_map(|map| map.keys()).collect();
    for resource in resources {
        let amount = |field: &str| Quantity::of(map(field).get(resource)?);
        let mut refuse = |field: &str, value: Quantity, why: String| {
            errors.invalid(&path.child(field).key(resource), value.to_string(), why);
        };
        let (min, max) = (amount("min"), amount("max"));
        let (default, request) = (amount("default"), amount("defaultRequest"));
        // Each row: the smaller and the larger amount, the path of the error, the value it shows, and both names.
        let orders = [
            (min, max, "min", min, ["min", "max"]),
            (min, request, "defaultRequest", request, ["min", "default request"]),
            (request, max, "defaultRequest", request, ["default request", "max"]),
            (request, default, "defaultRequest", request, ["default request", "default limit"]),
            (min, default, "default", min, ["min", "default"]),
            (default, max, "default", max, ["default", "max"]),
        ];
        for (small, large, field, shown, names) in orders {
            if let (Some(small), Some(large), Some(shown)) = (small, large, shown)
                && small > large
            {
                let [a, b] = names;
                refuse(field, shown, format!("{a} value {small} is greater than {b} value {large}"));
            }
        }
        if let Some(ratio) = amount("maxLimitRequestRatio") {
            validate_ratio(ratio, min, max, &path.child("maxLimitRequestRatio").key(resource), errors);
        }
        if let (Some(default), Some(request)) = (default, request)
            && !resources::may_overcommit(resource)
            && default != request
        {
            let why = format!("default value {default} must equal to defaultRequest value {request} in {resource}");
            errors.invalid(&path.child("defaultRequest").key(resource), request.to_string(), why);
        }
    }
}

fn validate_ratio(ratio: Quantity, min: Option<Quantity>, max: Option<Quantity>, path: &Path, errors: &mut Errors) {
    if ratio < Quantity::from_int(1) {
        errors.invalid(path, ratio.to_string(), format!("ratio {ratio} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let limit = max.ceil_milli() as f64 / min.ceil_milli() as f64;
        if ratio.ceil_milli() as f64 / 1000.0 > limit {
            errors.invalid(path, ratio.to_string(), format!("ratio {ratio} is greater than max/min = {limit:.6}"));
        }
    }
}
