//! Collapses repeated warnings: within a minute a line is printed once, and afterwards its count.

use super::line::{Line, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);
/// How many different lines are counted at once. Further ones are printed each time.
const LINES_MAX: usize = 500;

#[derive(Default)]
pub struct Repeats {
    seen: HashMap<Key, Seen>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    target: String,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

struct Seen {
    since: Instant,
    line: Line,
}

/// What to do with a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Print,
    /// First print the count of the previous minute.
    PrintAfter(Line),
    Count,
}

impl Repeats {
    pub fn note(&mut self, line: &Line, now: Instant) -> Verdict {
        let key = Key { target: line.target.clone(), message: line.message.clone(), fields: line.fields.clone() };
        if let Some(seen) = self.seen.get_mut(&key) {
            if now.duration_since(seen.since) < WINDOW {
                seen.line.repeated += 1;
                return Verdict::Count;
            }
            let before = std::mem::replace(seen, Seen { since: now, line: line.clone() });
            return if before.line.repeated > 0 { Verdict::PrintAfter(before.line) } else { Verdict::Print };
        }
        if self.seen.len() < LINES_MAX {
            self.seen.insert(key, Seen { since: now, line: line.clone() });
        }
        Verdict::Print
    }

    /// The counted lines whose minute has passed, or all. They may be printed again afterwards.
    pub fn flush(&mut self, now: Instant, all: bool) -> Vec<Line> {
        let mut counted = Vec::new();
        self.seen.retain(|_, seen| {
            let is_over = all || now.duration_since(seen.since) >= WINDOW;
            if is_over && seen.line.repeated > 0 {
                counted.push(seen.line.clone());
            }
            !is_over
        });
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn line(message: &str, code: u64) -> Line {
        Line {
            level: Level::WARN,
            target: "t".to_owned(),
            message: message.to_owned(),
            fields: vec![("code", Value::Number(code.into()))],
            repeated: 0,
        }
    }

    #[test]
    fn the_same_line_is_printed_once_a_minute_with_a_count() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repeats.note(&line("a", 1), at(0)), Verdict::Print);
        assert_eq!(repeats.note(&line("a", 2), at(1)), Verdict::Print, "other fields");
        assert_eq!(repeats.note(&line("b", 1), at(1)), Verdict::Print, "another message");
        for second in 2..50 {
            assert_eq!(repeats.note(&line("a", 1), at(second)), Verdict::Count);
        }
        assert!(repeats.flush(at(59), false).is_empty());
        assert_eq!(repeats.flush(at(60), false), [Line { repeated: 48, ..line("a", 1) }]);
        assert!(repeats.flush(at(61), true).is_empty());
        assert_eq!(repeats.note(&line("a", 1), at(61)), Verdict::Print);
        assert_eq!(repeats.note(&line("a", 1), at(62)), Verdict::Count);
        let counted = Line { repeated: 1, ..line("a", 1) };
        assert_eq!(repeats.note(&line("a", 1), at(200)), Verdict::PrintAfter(counted));
    }

    #[test]
    fn many_different_lines_are_all_printed() {
        let (now, mut repeats) = (Instant::now(), Repeats::default());
        for n in 0..2 * LINES_MAX as u64 {
            assert_eq!(repeats.note(&line("a", n), now), Verdict::Print);
        }
        assert_eq!(repeats.seen.len(), LINES_MAX);
    }
}
