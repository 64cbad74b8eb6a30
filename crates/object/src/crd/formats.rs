//! The string formats that are validated. Other formats are only documentation.

use base64::Engine;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

/// Whether `text` has the format. Unknown formats accept every text.
pub fn is_valid(format: &str, text: &str) -> bool {
    match format {
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" | "datetime" => date_time(text),
        "duration" => duration(text).is_some() || long_duration(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "mac" => mac(text),
        "uuid" => uuid(text, None),
        "uuid3" => uuid(text, Some('3')),
        "uuid4" => uuid(text, Some('4')),
        "uuid5" => uuid(text, Some('5')),
        "email" => email(text),
        "hostname" => hostname(text),
        "uri" => uri(text),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "hexcolor" => matching(&HEX_COLOR, text),
        "rgbcolor" => matching(&RGB_COLOR, text),
        "ssn" => matching(&SSN, text),
        "creditcard" => credit_card(text),
        "isbn10" => isbn10(text),
        "isbn13" => isbn13(text),
        "isbn" => isbn10(text) || isbn13(text),
        "k8s-short-name" => crate::name::label(text).is_empty(),
        "k8s-long-name" => crate::name::subdomain(text).is_empty(),
        _ => true,
    }
}

/// Parses a duration in Go's form to nanoseconds: `1h30m`, `-1.5s`, `100ms`, `0`.
pub fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "ns" => 1.0,
                "us" | "µs" | "μs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3_600e9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    #[allow(clippy::cast_possible_truncation, reason = "the bound is checked, fractions of a nanosecond go")]
    (total < 9.2e18).then_some(if negative { -(total as i64) } else { total as i64 })
}

/// Whether the text has the other form that the format accepts: `3 days`, `2w`.
fn long_duration(text: &str) -> bool {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = text[digits..].trim().trim_end_matches('s');
    let known = ["d", "day", "w", "wk", "week", "h", "hr", "hour", "m", "min", "minute", "sec", "second", "milli"];
    digits > 0 && known.contains(&unit)
}

fn date_time(text: &str) -> bool {
    let separated = matches!(text.as_bytes().get(10), Some(b'T' | b't'));
    separated && text.parse::<jiff::Timestamp>().is_ok()
}

fn cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let plain =
        !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => plain && bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => plain && bits <= 128,
        _ => false,
    }
}

fn mac(text: &str) -> bool {
    let groups = |separator: char, width: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts.iter().all(|part| part.len() == width && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

fn uuid(text: &str, version: Option<char>) -> bool {
    let compact: String = text.chars().filter(|c| *c != '-').collect();
    let dashes_fit =
        text.len() == 32 || (text.len() == 36 && [8, 13, 18, 23].iter().all(|at| text.as_bytes()[*at] == b'-'));
    dashes_fit
        && compact.len() == 32
        && compact.bytes().all(|byte| byte.is_ascii_hexdigit())
        && version.is_none_or(|version| compact.as_bytes()[12] == version as u8)
}

fn email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let local_fits = !local.is_empty()
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && local.chars().all(|c| c.is_alphanumeric() || ".!#$%&'*+/=?^_`{|}~-".contains(c));
    local_fits && !domain.is_empty() && hostname(domain)
}

fn hostname(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
    };
    let trimmed = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 255 && trimmed.split('.').all(label)
}

/// Whether the text is an absolute URI or an absolute path.
fn uri(text: &str) -> bool {
    if text.chars().any(|c| c.is_control() || c == ' ') {
        return false;
    }
    match text.split_once(':') {
        _ if text.starts_with('/') => true,
        Some((scheme, rest)) => {
            let starts = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
            starts && !rest.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        }
        None => false,
    }
}

type Lazy = LazyLock<Option<regex::Regex>>;
static HEX_COLOR: Lazy = LazyLock::new(|| regex::Regex::new("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$").ok());
static RGB_COLOR: Lazy = LazyLock::new(|| {
    let part = "\\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\\s*";
    regex::Regex::new(&format!("^rgb\\({part},{part},{part}\\)$")).ok()
});
static SSN: Lazy = LazyLock::new(|| regex::Regex::new("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());

fn matching(regex: &Lazy, text: &str) -> bool {
    regex.as_ref().is_some_and(|regex| regex.is_match(text))
}

fn digits(text: &str) -> Option<Vec<u32>> {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).map(|c| c.to_digit(10)).collect()
}

fn credit_card(text: &str) -> bool {
    let Some(digits) = digits(text) else { return false };
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 = digits.iter().rev().enumerate().map(|(at, d)| if at % 2 == 1 { doubled(*d) } else { *d }).sum();
    (12..=19).contains(&digits.len()) && sum.is_multiple_of(10)
}

fn isbn10(text: &str) -> bool {
    let clean: Vec<char> = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
    let value = |(at, c): (usize, &char)| match c {
        'X' if at == 9 => Some(10),
        c => c.to_digit(10),
    };
    let values: Option<Vec<u32>> = clean.iter().enumerate().map(value).collect();
    values.is_some_and(|values| {
        let sum: u32 = values.iter().zip(1u32..).map(|(value, weight)| value * weight).sum();
        values.len() == 10 && sum.is_multiple_of(11)
    })
}

fn isbn13(text: &str) -> bool {
    digits(text).is_some_and(|digits| {
        let sum: u32 = digits.iter().enumerate().map(|(at, digit)| digit * if at % 2 == 0 { 1 } else { 3 }).sum();
        digits.len() == 13 && sum.is_multiple_of(10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_accepted_or_refused_by_their_format() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("date", &["2024-02-29"], &["2023-02-29", "2024-2-9", "x"]),
            (
                "date-time",
                &["2024-01-02T03:04:05Z", "2024-01-02t03:04:05.5+02:00"],
                &["2024-01-02", "2024-01-02 03:04:05Z", ""],
            ),
            ("duration", &["1h30m", "-1.5s", "0", "100ms", "3 days", "2w"], &["", "1x", "h", "-", "abc"]),
            ("byte", &["aGk=", ""], &["aGk", "?"]),
            ("ipv4", &["10.0.0.1"], &["10.0.0", "::1", "256.1.1.1"]),
            ("ipv6", &["::1", "fe80::1"], &["10.0.0.1", "g::"]),
            ("cidr", &["10.0.0.0/8", "fd00::/8"], &["10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/+8"]),
            ("mac", &["00:1b:44:11:3a:b7", "001b.4411.3ab7"], &["00:1b", "zz:1b:44:11:3a:b7"]),
            (
                "uuid",
                &["f47ac10b-58cc-4372-a567-0e02b2c3d479", "f47ac10b58cc4372a5670e02b2c3d479"],
                &["f47ac10b", "f47ac10b-58cc-4372-a567-0e02b2c3d47z"],
            ),
            ("uuid4", &["f47ac10b-58cc-4372-a567-0e02b2c3d479"], &["f47ac10b-58cc-1372-a567-0e02b2c3d479"]),
            ("email", &["a.b+c@example.com"], &["a", "@b", "a@", "a@-b", "a..b@c"]),
            ("hostname", &["a.example.com", "a-b"], &["-a", "a..b", "a b", ""]),
            ("uri", &["https://example.com/a", "urn:x:y", "/a/b"], &["example", "a b:c", "1x:y", "x:"]),
            ("hexcolor", &["#fff", "a1b2c3"], &["#ff", "red"]),
            ("rgbcolor", &["rgb(0, 25,255)"], &["rgb(256,0,0)", "rgb(1,2)"]),
            ("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112", "x"]),
            ("isbn", &["0-306-40615-2", "978-3-16-148410-0"], &["0-306-40615-3", "978-3-16-148410-1"]),
            ("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f1f77"]),
            ("ssn", &["123-45-6789"], &["123-45-678"]),
            ("k8s-short-name", &["a-b"], &["a.b"]),
            ("k8s-long-name", &["a.b"], &["a..b"]),
            ("anything-else", &["", "whatever"], &[]),
        ];
        for (format, good, bad) in cases {
            for text in *good {
                assert!(is_valid(format, text), "{text:?} is a {format}");
            }
            for text in *bad {
                assert!(!is_valid(format, text), "{text:?} must not be a valid {format}");
            }
        }
        assert_eq!(duration("1h1m1.5s"), Some(3_661_500_000_000));
    }
}
