//! Canonical forms of scalars, and the error messages for invalid ones.

use crate::Value;
use crate::quantity::{NotAQuantity, Quantity};
use crate::schema::Scalar;
use crate::value::Text;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;

/// Why a scalar is invalid.
pub(super) enum Invalid {
    /// It has another JSON type than the field. Contains Go's name of that type.
    Type(String),
    /// It cannot be parsed. Contains the full error message.
    Text(String),
}

/// Converts `value` to the canonical form of `scalar`.
pub(super) fn canonical(scalar: Scalar, value: &mut Value) -> Result<(), Invalid> {
    match (scalar, &mut *value) {
        (Scalar::String, Value::String(_)) | (Scalar::Bool, Value::Bool(_)) | (Scalar::Float, Value::Number(_)) => {
            Ok(())
        }
        (Scalar::Int32, Value::Number(number)) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
        (Scalar::Int64, Value::Number(number)) if number.as_i64().is_some() => Ok(()),
        (Scalar::Int32 | Scalar::Int64, Value::Number(number)) => Err(Invalid::Type(format!("number {number}"))),
        (Scalar::IntOrString, _) => int_or_string(value),
        (Scalar::Quantity, _) => quantity(value),
        (Scalar::Time | Scalar::MicroTime, Value::String(text)) => time(scalar, text),
        (Scalar::Bytes, Value::String(text)) => bytes(text),
        (Scalar::Time | Scalar::MicroTime, _) => {
            Err(Invalid::Text(format!("json: cannot unmarshal {} into Go value of type string", json_type(value))))
        }
        _ => Err(Invalid::Type(json_type(value).to_owned())),
    }
}

/// Returns Go's zero value of a scalar as JSON; a null inside a list or map becomes this.
pub(super) fn zero(scalar: Scalar) -> Value {
    match scalar {
        Scalar::String | Scalar::Bytes => Value::from(""),
        Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::IntOrString => Value::from(0),
        Scalar::Bool => Value::Bool(false),
        Scalar::Quantity => Value::from("0"),
        Scalar::Time | Scalar::MicroTime => Value::Null,
    }
}

/// Returns Go's name of a scalar type.
pub(super) fn go_type(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::String => "string",
        Scalar::Int32 => "int32",
        Scalar::Int64 => "int64",
        Scalar::Float => "float64",
        Scalar::Bool => "bool",
        Scalar::Quantity => "resource.Quantity",
        Scalar::IntOrString => "intstr.IntOrString",
        Scalar::Time => "v1.Time",
        Scalar::MicroTime => "v1.MicroTime",
        Scalar::Bytes => "[]uint8",
    }
}

/// Returns the name that Go's JSON decoder uses for a value's type.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Parses an RFC 3339 text.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    if first_bad_part(text).is_some() { None } else { text.parse().ok() }
}

fn int_or_string(value: &Value) -> Result<(), Invalid> {
    let found = match value {
        Value::String(_) => return Ok(()),
        Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => return Ok(()),
        Value::Number(number) => format!("number {number}"),
        other => json_type(other).to_owned(),
    };
    Err(Invalid::Text(format!("json: cannot unmarshal {found} into Go value of type int32")))
}

fn quantity(value: &mut Value) -> Result<(), Invalid> {
    let parsed = match &*value {
        Value::String(text) => text.trim().parse::<Quantity>(),
        Value::Number(number) => number.to_string().parse(),
        _ => Err(NotAQuantity),
    };
    let written = parsed.map_err(|error| Invalid::Text(error.to_string()))?.to_string();
    if value.as_str() != Some(written.as_str()) {
        *value = written.into();
    }
    Ok(())
}

fn time(scalar: Scalar, text: &mut Text) -> Result<(), Invalid> {
    const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
    if let Some((rest, part)) = first_bad_part(text) {
        return Err(Invalid::Text(format!("parsing time {text:?} as {LAYOUT:?}: cannot parse {rest:?} as {part:?}")));
    }
    let instant: Timestamp =
        text.parse().map_err(|_| Invalid::Text(format!("parsing time {text:?}: a part of it is out of range")))?;
    let written = match scalar {
        Scalar::MicroTime => instant.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        _ => instant.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    if *text != written {
        *text = written.into();
    }
    Ok(())
}

/// Returns where a text is not RFC 3339: the rest of the text, and the expected part of Go's layout.
fn first_bad_part(text: &str) -> Option<(&str, &'static str)> {
    const PARTS: [&str; 11] = ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"];
    let mut rest = text;
    for part in PARTS {
        let head = rest.as_bytes().get(..part.len());
        let fits = head.is_some_and(|head| match part {
            "-" | ":" | "T" => head == part.as_bytes(),
            _ => head.iter().all(u8::is_ascii_digit),
        });
        if !fits {
            return Some((rest, part));
        }
        rest = &rest[part.len()..];
    }
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        // Readers disagree on the meaning of more than nine fractional digits.
        if digits == 0 || digits > 9 {
            return Some((rest, "Z07:00"));
        }
        rest = &fraction[digits..];
    }
    let zone = rest.as_bytes();
    let fits = match zone {
        [b'Z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()),
        _ => false,
    };
    (!fits).then_some((rest, "Z07:00"))
}

fn bytes(text: &mut Text) -> Result<(), Invalid> {
    // Line breaks inside base64 are allowed and removed.
    if text.contains(['\r', '\n']) {
        *text = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    }
    let wrong_at = match BASE64.decode(text.as_bytes()) {
        Ok(_) => return Ok(()),
        Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => at,
        Err(base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding) => text.len() / 4 * 4,
    };
    Err(Invalid::Text(format!("illegal base64 data at input byte {wrong_at}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use proptest::prelude::*;

    fn written(scalar: Scalar, mut value: Value) -> Result<Value, String> {
        match canonical(scalar, &mut value) {
            Ok(()) => Ok(value),
            Err(Invalid::Type(found)) => Err(found),
            Err(Invalid::Text(sentence)) => Err(sentence),
        }
    }

    #[test]
    fn scalars_become_canonical() {
        let cases = [
            (Scalar::Quantity, json!("1024Mi"), json!("1Gi")),
            (Scalar::Quantity, json!(0.5), json!("500m")),
            (Scalar::Quantity, json!(2), json!("2")),
            (Scalar::Quantity, json!(" 1Gi "), json!("1Gi")),
            (Scalar::Time, json!("2026-01-02T03:04:05+02:00"), json!("2026-01-02T01:04:05Z")),
            (Scalar::Time, json!("2026-01-02T03:04:05.999Z"), json!("2026-01-02T03:04:05Z")),
            (Scalar::MicroTime, json!("2026-01-02T03:04:05.1234567Z"), json!("2026-01-02T03:04:05.123456Z")),
            (Scalar::MicroTime, json!("2026-01-02T03:04:05Z"), json!("2026-01-02T03:04:05.000000Z")),
            (Scalar::Bytes, json!("aGVs\nbG8="), json!("aGVsbG8=")),
            (Scalar::IntOrString, json!("25%"), json!("25%")),
            (Scalar::IntOrString, json!(7), json!(7)),
            (Scalar::Float, json!(7), json!(7)),
            (Scalar::Int64, json!(3_000_000_000_i64), json!(3_000_000_000_i64)),
        ];
        for (scalar, value, want) in cases {
            assert_eq!(written(scalar, value.clone()), Ok(want), "{scalar:?} {value}");
        }
    }

    #[test]
    fn unreadable_scalars_give_a_reason() {
        let layout = "2006-01-02T15:04:05Z07:00";
        let cases = [
            (Scalar::Int32, json!(3_000_000_000_i64), "number 3000000000".to_owned()),
            (Scalar::Int32, json!(1.5), "number 1.5".to_owned()),
            (Scalar::Int32, json!("1"), "string".to_owned()),
            (Scalar::Int64, json!(u64::MAX), "number 18446744073709551615".to_owned()),
            (Scalar::String, json!(1), "number".to_owned()),
            (Scalar::Bool, json!("true"), "string".to_owned()),
            (Scalar::Quantity, json!("1Gib"), NotAQuantity.to_string()),
            (Scalar::Quantity, json!(true), NotAQuantity.to_string()),
            (
                Scalar::IntOrString,
                json!(1.5),
                "json: cannot unmarshal number 1.5 into Go value of type int32".to_owned(),
            ),
            (
                Scalar::Time,
                json!("soon"),
                format!("parsing time \"soon\" as {layout:?}: cannot parse \"soon\" as \"2006\""),
            ),
            (
                Scalar::Time,
                json!("2026-01-02 03:04:05Z"),
                format!("parsing time \"2026-01-02 03:04:05Z\" as {layout:?}: cannot parse \" 03:04:05Z\" as \"T\""),
            ),
            (
                Scalar::Time,
                json!("2026-13-02T03:04:05Z"),
                "parsing time \"2026-13-02T03:04:05Z\": a part of it is out of range".to_owned(),
            ),
            (Scalar::Time, json!(5), "json: cannot unmarshal number into Go value of type string".to_owned()),
            (Scalar::Bytes, json!("a?bc"), "illegal base64 data at input byte 1".to_owned()),
            (Scalar::Bytes, json!("abc"), "illegal base64 data at input byte 0".to_owned()),
        ];
        for (scalar, value, want) in cases {
            assert_eq!(written(scalar, value.clone()), Err(want), "{scalar:?} {value}");
        }
    }

    proptest! {
        #[test]
        fn canonical_form_is_idempotent(text in "[0-9T:.Zz+ -]{0,32}|\\PC{0,12}") {
            for scalar in [Scalar::Quantity, Scalar::Time, Scalar::MicroTime, Scalar::Bytes, Scalar::IntOrString] {
                if let Ok(once) = written(scalar, json!(text)) {
                    prop_assert_eq!(written(scalar, once.clone()), Ok(once));
                }
            }
        }
        #[test]
        fn every_instant_reads_back(second in -60_000_000_000_i64..250_000_000_000) {
            let instant_then = Timestamp::from_second(second).unwrap();
            let text = written(Scalar::Time, json!(instant_then.to_string()));
            if let Ok(Value::String(text)) = text {
                prop_assert_eq!(instant(&text), Some(instant_then));
            }
        }
    }
}
