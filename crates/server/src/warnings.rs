//! Warning headers, limited to a number that every client can read. A client that gets too many headers rejects the
//! response, although the request was carried out.

use http::HeaderValue;
use std::collections::HashSet;

/// HTTP/1 clients usually accept a hundred headers in total.
const COUNT_MAX: usize = 50;
/// As upstream: above this total, each warning is cut to `CHARS_EACH` characters, and the rest is omitted.
const CHARS_MAX: usize = 4096;
const CHARS_EACH: usize = 256;

/// The headers of these warnings, without duplicates. If some are omitted, the last one says so.
pub fn headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let warnings: Vec<&str> = warnings.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    let all: usize = warnings.iter().map(|text| text.chars().count()).sum();
    let each = if all > CHARS_MAX { CHARS_EACH } else { CHARS_MAX };
    let (mut chars, mut told) = (0, Vec::new());
    for warning in &warnings {
        if chars >= CHARS_MAX || told.len() >= COUNT_MAX {
            break;
        }
        let text: String = warning.chars().take(each).collect();
        chars += text.chars().count();
        told.push(text);
    }
    if told.len() < warnings.len() {
        told.push(format!("and {} more warnings", warnings.len() - told.len()));
    }
    told.iter().filter_map(|text| header(text)).collect()
}

/// `299 - "text"`, with the text escaped for a header.
fn header(text: &str) -> Option<HeaderValue> {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            safe.push('\\');
        }
        safe.push(c);
    }
    HeaderValue::from_bytes(format!("299 - \"{safe}\"").as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(warnings: &[String]) -> Vec<String> {
        headers(warnings).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn few_short_warnings_are_sent_unchanged_and_once() {
        let few = ["a \"b\"\n".to_owned(), "ä".to_owned(), "ä".to_owned(), "x".repeat(4000)];
        let expected =
            [r#"299 - "a \"b\"""#.to_owned(), "299 - \"ä\"".to_owned(), format!("299 - \"{}\"", "x".repeat(4000))];
        assert_eq!(told(&few), expected);
    }

    #[test]
    fn many_or_long_warnings_are_cut() {
        let many: Vec<String> = (0..150).map(|at| format!("unknown field \"spec.a{at}\"")).collect();
        let said = told(&many);
        assert_eq!((said.len(), said[50].as_str()), (51, "299 - \"and 100 more warnings\""));
        let long: Vec<String> = (0..90).map(|at| format!("{at}{}", "ö".repeat(100_000))).collect();
        let said = told(&long);
        assert_eq!((said.len(), said[16].as_str()), (17, "299 - \"and 74 more warnings\""));
        assert!(said.iter().map(|text| text.chars().count()).sum::<usize>() < CHARS_MAX + 17 * 16);
    }
}
