//! Functions for rules: those of kube-cel, and those that it lacks or that Kubernetes defines differently.

use kube_cel::KubeCelExt;
use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};
use std::sync::Arc;

/// Names that `type(x)` returns, and that rules can compare with.
pub const TYPES: &str = "int uint double bool string bytes list map null_type";

/// Returns a context with all functions and no variables.
pub fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("size", size);
    context.add_function("dyn", |value: Cel| -> Result<Cel, ExecutionError> { Ok(value) });
    context.add_function("bool", to_bool);
    context.add_function("type", type_of);
    context.add_function(super::expr::VALUES, values);
    for name in TYPES.split(' ') {
        context.add_variable_from_value(name, Cel::String(Arc::new(name.to_owned())));
    }
    context
}

/// The size of a string is its number of code points, not bytes.
fn size(This(value): This<Cel>) -> Result<i64, ExecutionError> {
    let size = match value {
        Cel::List(items) => items.len(),
        Cel::Map(members) => members.map.len(),
        Cel::String(text) => text.chars().count(),
        Cel::Bytes(bytes) => bytes.len(),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    i64::try_from(size).map_err(|_| ExecutionError::NoSuchOverload)
}

fn values(optional: Cel) -> Result<Cel, ExecutionError> {
    let held = <&OptionalValue>::try_from(&optional)?.value().cloned();
    Ok(Cel::List(Arc::new(held.into_iter().collect())))
}

fn to_bool(value: Cel) -> Result<bool, ExecutionError> {
    match &value {
        Cel::Bool(truth) => Ok(*truth),
        Cel::String(text) => match text.as_str() {
            "true" | "True" | "TRUE" | "t" | "1" => Ok(true),
            "false" | "False" | "FALSE" | "f" | "0" => Ok(false),
            _ => Err(ExecutionError::function_error("bool", "type conversion error from 'string' to 'bool'")),
        },
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn type_of(value: Cel) -> Result<Cel, ExecutionError> {
    let name = match value {
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::Bool(_) => "bool",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Null => "null_type",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    Ok(Cel::String(Arc::new(name.to_owned())))
}
