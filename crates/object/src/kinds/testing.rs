//! Helpers for tests of kinds: they run an object through its rules in the server's order.

use crate::Value;
use crate::field::Errors;
use crate::gates::Gates;
use crate::kind::{Ctx, Kind, Kinds};
use crate::write;
use std::sync::{Arc, LazyLock};

static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::builtin);

/// Returns the row of `Kind` or `group/Kind` in version v1.
pub(crate) fn kind(name: &str) -> &'static Arc<Kind> {
    let (group, kind) = name.split_once('/').unwrap_or(("", name));
    let found = KINDS.iter().find(|row| row.kind == kind && row.group == group);
    found.unwrap_or_else(|| panic!("no kind {name}"))
}

pub(crate) fn now() -> jiff::Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

pub(crate) fn with_ctx<T>(gates: &Gates, run: impl FnOnce(&Ctx) -> T) -> T {
    run(&Ctx { gates, now: now() })
}

/// Returns the object as it would be stored after a create, and its errors.
pub(crate) fn create(name: &str, mut object: Value) -> (Value, Errors) {
    let kind = kind(name);
    with_ctx(&Gates::default(), |ctx| {
        write::for_create(kind, &mut object, "uid-1".to_owned(), ctx.now);
        kind.rules.default(&mut object, ctx);
        kind.rules.prepare_create(&mut object, ctx);
        let mut errors = Errors::default();
        kind.rules.validate_create(&object, ctx, &mut errors);
        (object, errors)
    })
}

pub(crate) fn stored(name: &str, object: Value) -> Value {
    let (object, errors) = create(name, object);
    assert!(errors.is_empty(), "{}", errors.message());
    object
}

/// Returns the errors of a create; `[]` if there are none.
pub(crate) fn refused(name: &str, object: Value) -> String {
    create(name, object).1.message()
}

/// Returns the object after an update of `old` to `new`, and its errors.
pub(crate) fn update(name: &str, old: &Value, mut new: Value) -> (Value, Errors) {
    let kind = kind(name);
    with_ctx(&Gates::default(), |ctx| {
        write::for_update(kind, &mut new, old);
        kind.rules.default(&mut new, ctx);
        kind.rules.prepare_update(&mut new, old, ctx);
        let mut errors = Errors::default();
        kind.rules.validate_update(&new, old, ctx, &mut errors);
        (new, errors)
    })
}

/// Returns the errors of changing a stored object.
pub(crate) fn change_refused(name: &str, old: &Value, change: impl FnOnce(&mut Value)) -> String {
    let mut new = old.clone();
    change(&mut new);
    update(name, old, new).1.message()
}

/// Returns the object after a status update, and its errors.
pub(crate) fn update_status(name: &str, old: &Value, mut new: Value) -> (Value, Errors) {
    let kind = kind(name);
    with_ctx(&Gates::default(), |ctx| {
        write::for_status(kind, &mut new, old);
        kind.rules.default(&mut new, ctx);
        kind.rules.prepare_status(&mut new, old, ctx);
        let mut errors = Errors::default();
        kind.rules.validate_status(&new, old, ctx, &mut errors);
        (new, errors)
    })
}

/// Returns the row of `kubectl get -o wide`, with cells joined by ` | `.
pub(crate) fn shown(name: &str, object: &Value) -> String {
    let kind = kind(name);
    let cells = kind.rules.cells(object, now());
    assert_eq!(cells.len(), kind.rules.columns().len(), "{name}: a cell for each column");
    join(&cells)
}

pub(crate) fn join(cells: &[Value]) -> String {
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    cells.iter().map(text).collect::<Vec<_>>().join(" | ")
}

pub(crate) fn headers(name: &str) -> String {
    let mark = |priority: i32| if priority > 0 { "*" } else { "" };
    let columns = kind(name).rules.columns().iter();
    columns.map(|column| format!("{}{}", column.name, mark(column.priority))).collect::<Vec<_>>().join(" | ")
}

pub(crate) fn warnings(name: &str, object: &Value) -> Vec<String> {
    with_ctx(&Gates::default(), |ctx| kind(name).rules.warnings(object, None, ctx))
}
