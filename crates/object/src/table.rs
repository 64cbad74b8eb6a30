//! `kubectl get`: columns, cells, and the Table response.

use crate::access::{Access, name};
use crate::{Value, json};

/// A column of `kubectl get`.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: std::borrow::Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: std::borrow::Cow<'static, str>,
    /// `name` for the name column, otherwise empty.
    pub format: std::borrow::Cow<'static, str>,
    pub description: std::borrow::Cow<'static, str>,
    /// 0: always shown; 1: shown with `-o wide`.
    pub priority: i32,
}

/// A column that is always shown.
pub const fn column(name: &'static str, kind: &'static str, description: &'static str) -> Column {
    use std::borrow::Cow::Borrowed;
    Column {
        name: Borrowed(name),
        kind: Borrowed(kind),
        format: Borrowed(""),
        description: Borrowed(description),
        priority: 0,
    }
}

/// A column shown with `-o wide`.
pub const fn wide(name: &'static str, kind: &'static str, description: &'static str) -> Column {
    let mut wide = column(name, kind, description);
    wide.priority = 1;
    wide
}

pub const NAME: Column = Column {
    name: std::borrow::Cow::Borrowed("Name"),
    kind: std::borrow::Cow::Borrowed("string"),
    format: std::borrow::Cow::Borrowed("name"),
    description: std::borrow::Cow::Borrowed("The object's name, unique among its kind in its namespace."),
    priority: 0,
};
pub const AGE: Column = column("Age", "string", "The time since the object was created.");
pub const NAME_AND_AGE: &[Column] = &[NAME, AGE];

pub fn name_and_age(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    vec![json!(name(object)), json!(age(object, now))]
}

/// Returns an object's age in kubectl's form, `<unknown>` without a timestamp.
pub fn age(object: &Value, now: jiff::Timestamp) -> String {
    since(object.text(&["metadata", "creationTimestamp"]), now)
}

/// Returns the time since an RFC 3339 timestamp, `<unknown>` if it is absent or invalid.
pub fn since(stamp: &str, now: jiff::Timestamp) -> String {
    match stamp.parse::<jiff::Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Formats a duration in its two largest units: `45s`, `3m20s`, `5h`, `2d3h`, `400d`.
pub fn human_duration(seconds: i64) -> String {
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{large}{large_unit}") } else { format!("{large}{large_unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_in_kubectl() {
        let cases = [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (3600, "60m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (100_000_000, "3y62d"),
        ];
        for (seconds, want) in cases {
            assert_eq!(human_duration(seconds), want, "{seconds}");
        }
    }
}
