//! Resource quantities: `500m`, `1Gi`, `1e3`. Stored exactly in billionths, and written in upstream's canonical form.

use crate::Value;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;

/// The family of suffixes that a quantity was written with. It is used again for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    BinarySi,
    DecimalSi,
    DecimalExponent,
}

/// An exact quantity.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct NotAQuantity;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    pub fn from_int(value: i64) -> Quantity {
        Quantity { nanos: i128::from(value) * NANO, format: Format::DecimalSi }
    }
    /// Creates a number of bytes that is written with binary suffixes.
    pub fn from_bytes(value: i64) -> Quantity {
        Quantity { nanos: i128::from(value) * NANO, format: Format::BinarySi }
    }
    /// Reads the quantity in a JSON value: a string or a number.
    pub fn of(value: &Value) -> Option<Quantity> {
        match value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.to_string().parse().ok(),
            _ => None,
        }
    }
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }
    pub fn is_positive(&self) -> bool {
        self.nanos > 0
    }
    /// Returns the value rounded up to a whole number, limited to i64.
    pub fn ceil(&self) -> i64 {
        let whole = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }
    /// Returns the value in thousandths, rounded up.
    pub fn ceil_milli(&self) -> i64 {
        let milli = NANO / 1000;
        let whole = self.nanos.div_euclid(milli) + i128::from(self.nanos.rem_euclid(milli) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }
    /// Whether the value is a whole number.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }
    /// Returns the sum, in this quantity's format (or the other's, if this is zero).
    pub fn plus(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }
    /// Returns the difference, in this quantity's format (or the other's, if this is zero).
    pub fn minus(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Returns the multiplier of a suffix as (base, exponent), and its family.
fn suffix(text: &str) -> Option<(i128, i32, Format)> {
    let decimal = |exponent| Some((10, exponent, Format::DecimalSi));
    let binary = |exponent| Some((2, exponent, Format::BinarySi));
    match text {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent: i32 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
            (-100..=100).contains(&exponent).then_some((10, exponent, Format::DecimalExponent))
        }
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Quantity, NotAQuantity> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number_len = unsigned.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, suffix_text) = unsigned.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(NotAQuantity);
        }
        let (base, exponent, format) = suffix(suffix_text).ok_or(NotAQuantity)?;
        let nanos = scale(whole, fraction, base, exponent);
        Ok(Quantity { nanos: if text.starts_with('-') { -nanos } else { nanos }, format })
    }
}

/// Returns `whole.fraction × base^exponent` in nanos, rounded away from zero and limited to 2^63-1 units.
fn scale(whole: &str, fraction: &str, base: i128, exponent: i32) -> i128 {
    let cap = i128::from(i64::MAX) * NANO;
    // Digits before the limit are capped; digits after the precision matter only for rounding.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 30 {
        return cap;
    }
    let kept = &fraction[..fraction.len().min(25usize.saturating_sub(whole.len()))];
    let digits: i128 = format!("{whole}{kept}").parse().unwrap_or(0);
    let mut rest = fraction.as_bytes()[kept.len()..].iter().any(|b| *b != b'0');
    if digits == 0 {
        return i128::from(rest);
    }
    let mut value = digits;
    let mut ten_exponent = 9 - i32::try_from(kept.len()).unwrap_or(0);
    if base == 2 {
        match value.checked_mul(1i128 << exponent) {
            Some(product) => value = product,
            None => return cap,
        }
    } else {
        ten_exponent += exponent;
    }
    while ten_exponent > 0 {
        value = value.saturating_mul(10);
        ten_exponent -= 1;
        if value >= cap {
            return cap;
        }
    }
    while ten_exponent < 0 && value > 0 {
        rest |= value % 10 != 0;
        value /= 10;
        ten_exponent += 1;
    }
    (value + i128::from(rest)).min(cap)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let magnitude = self.nanos.unsigned_abs();
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nano = NANO.unsigned_abs();
        // Binary suffixes are used only for whole numbers of at least 1024; other values are written in decimal.
        if self.format == Format::BinarySi && magnitude.is_multiple_of(nano) && magnitude / nano >= 1024 {
            let mut value = magnitude / nano;
            let mut steps = 0;
            while steps < 6 && value.is_multiple_of(1024) {
                value /= 1024;
                steps += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps]);
        }
        let mut value = magnitude;
        let mut exponent: i32 = -9;
        while exponent < 18 && value.is_multiple_of(1000) {
            value /= 1000;
            exponent += 3;
        }
        match (self.format, exponent) {
            (_, 0) => write!(f, "{value}"),
            (Format::DecimalExponent, _) => write!(f, "{value}e{exponent}"),
            _ => {
                let at = usize::try_from((exponent + 9) / 3).unwrap_or(0);
                write!(f, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][at])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().map_or_else(|_| "error".to_owned(), |q| q.to_string())
    }

    #[test]
    fn writes_canonical_forms() {
        let cases = [
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1.5Gi", "1536Mi"),
            ("100", "100"),
            ("1000", "1k"),
            ("0", "0"),
            ("0Gi", "0"),
            ("-1500m", "-1500m"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("1500e-3", "1500e-3"),
            ("0.1Ki", "102400m"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("+5", "5"),
            (".5", "500m"),
            ("5.", "5"),
            ("99999999999999999999", "9223372036854775807"),
        ];
        for (text, want) in cases {
            assert_eq!(canonical(text), want, "{text}");
        }
        for bad in ["", "x", "1x", "1.2.3", "1 Gi", "--1", "1GiB", ".", "1e", "e3"] {
            assert_eq!(canonical(bad), "error", "{bad:?}");
        }
    }

    #[test]
    fn compares_and_rounds_by_value() {
        let q = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(q("1Gi"), q("1024Mi"));
        assert!(q("1G") < q("1Gi"));
        assert_eq!(q("1500m").ceil(), 2);
        assert_eq!(q("-1500m").ceil(), -1);
        assert_eq!(q("1.0001").ceil_milli(), 1001);
        assert_eq!(q("1Gi").plus(q("1Gi")).to_string(), "2Gi");
        assert_eq!(q("2Gi").minus(q("512Mi")).to_string(), "1536Mi");
        assert!(!q("1500m").is_whole());
    }

    proptest! {
        #[test]
        fn the_canonical_form_has_the_same_value(number in 0u64..1_000_000_000, suffix in "(n|u|m|k|M|Ki|Mi|Gi|e3|)") {
            let q: Quantity = format!("{number}{suffix}").parse().unwrap();
            let again: Quantity = q.to_string().parse().unwrap();
            prop_assert_eq!(q, again);
            prop_assert_eq!(q.to_string(), again.to_string());
        }
        #[test]
        fn never_panics(text in "[0-9.eEinumkKMGTP+-]{0,40}") {
            let _ = text.parse::<Quantity>().map(|q| (q.to_string(), q.ceil(), q.ceil_milli()));
        }
    }
}
