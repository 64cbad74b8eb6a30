//! Converts Go (RE2) patterns of definitions to the syntax of the `regex` crate. The two are almost equal. The
//! differences: class shorthands are ASCII only, `[` and `&&` are literal inside a class, and a `{` that does not start
//! a repetition is literal.

/// Compiles a pattern. The error is one sentence.
pub fn compile(pattern: &str) -> Result<regex::Regex, String> {
    regex::RegexBuilder::new(&translate(pattern)).size_limit(4 << 20).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
        error => {
            let text = error.to_string();
            text.lines().last().unwrap_or(&text).trim_start_matches("error: ").to_owned()
        }
    })
}

fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut in_class = false;
    // A `]` directly after `[` or `[^` is a member of the class, not its end.
    let mut class_is_empty = false;
    while let Some(character) = rest.chars().next() {
        let mut taken = character.len_utf8();
        let was_empty = std::mem::replace(&mut class_is_empty, false);
        match character {
            '\\' => {
                let escaped = rest[1..].chars().next();
                taken += escaped.map_or(0, char::len_utf8);
                out.push_str(&escape(escaped, in_class));
                // `\p{Greek}` and `\x{10FFFF}` contain braces that are not repetitions.
                if let (Some('p' | 'P' | 'x'), Some(end)) = (escaped, rest[taken..].find('}'))
                    && rest[taken..].starts_with('{')
                {
                    out.push_str(&rest[taken..=taken + end]);
                    taken += end + 1;
                }
            }
            '[' if !in_class => {
                in_class = true;
                class_is_empty = true;
                out.push('[');
                if rest[1..].starts_with('^') {
                    out.push('^');
                    taken += 1;
                }
            }
            '[' if rest.starts_with("[:") && rest.contains(":]") => out.push('['),
            ']' if in_class && was_empty => out.push_str("\\]"),
            ']' if in_class => {
                // The `]` that ends `[:alpha:]` does not end the class.
                in_class = out.ends_with(':') && out.rfind("[:").is_some_and(|at| !out[at..].contains(']'));
                out.push(']');
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(character);
            }
            '{' if !in_class && !starts_repetition(rest) => out.push_str("\\{"),
            '}' if !in_class && !ends_repetition(&out) => out.push_str("\\}"),
            _ => out.push(character),
        }
        rest = &rest[taken..];
    }
    out
}

fn escape(escaped: Option<char>, in_class: bool) -> String {
    let class = |members: &str| if in_class { members.to_owned() } else { format!("[{members}]") };
    match escaped {
        Some('d') => class("0-9"),
        Some('w') => class("0-9A-Za-z_"),
        Some('s') => class("\\t\\n\\x0C\\r "),
        Some('D') if !in_class => "[^0-9]".to_owned(),
        Some('W') if !in_class => "[^0-9A-Za-z_]".to_owned(),
        Some('S') if !in_class => "[^\\t\\n\\x0C\\r ]".to_owned(),
        Some('b') if !in_class => "(?-u:\\b)".to_owned(),
        Some(other) => format!("\\{other}"),
        None => "\\".to_owned(),
    }
}

/// `{2}`, `{2,}` or `{2,5}` at the start of `rest`.
fn starts_repetition(rest: &str) -> bool {
    let Some(end) = rest.find('}') else { return false };
    let inside = &rest[1..end];
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !low.is_empty() && digits(low) && digits(high)
}

/// Whether a `}` here closes a repetition whose `{` was copied to the output.
fn ends_repetition(out: &str) -> bool {
    let Some(open) = out.rfind('{') else { return false };
    !out[open..].contains('}') && !out[..open].ends_with('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_patterns_match_as_in_go() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (r"^\d+$", &["12"], &["١٢", "a", ""]),
            (r"^[\w.-]+$", &["a_b.c-d"], &["a b", "ä"]),
            (r"^[^[]+$", &["abc"], &["a[b"]),
            (r"^[]a]+$", &["a]"], &["b"]),
            (r"^[[:alpha:]_]+$", &["ab_"], &["1"]),
            (r"^a{2,3}$", &["aa", "aaa"], &["a", "aaaa"]),
            (r"^{x}$", &["{x}"], &["x"]),
            (r"^a{,3}$", &["a{,3}"], &["aa"]),
            (r"^\p{Lu}\x{41}$", &["AA"], &["aA"]),
            (r"^[a&&b]$", &["&", "a"], &["c"]),
            (r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$", &["", "a.b-c"], &["-a", "A"]),
            (r"^[0-9]+(([numkMGTPE]|[KMGTP]i)|[eE][0-9]+)?$", &["10Gi", "1"], &["10GiB"]),
        ];
        for (pattern, good, bad) in cases {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            for text in *good {
                assert!(regex.is_match(text), "{pattern} matches {text:?}");
            }
            for text in *bad {
                assert!(!regex.is_match(text), "{pattern} does not match {text:?}");
            }
        }
        assert!(compile("(a").is_err());
        assert!(compile("(?=a)").is_err(), "Go has no lookahead either");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(pattern in "[\\[\\]{}()\\\\^$a-c0-9,:&~|*+?.-]{0,24}") {
            let _ = compile(&pattern);
        }
    }
}
