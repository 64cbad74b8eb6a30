//! Watches miss nothing and repeat nothing: each is compared with what was committed.

use crate::ledger::Ledger;
use object::Value;

/// One watch of everything of a kind, or of a namespace's.
pub struct Audit {
    /// The keys that it is about.
    prefix: String,
    /// Up to where it has told everything; `None` before it has said where it begins.
    position: Option<u64>,
}

impl Audit {
    /// `None` for watches that select: what they leave out is theirs.
    pub fn of(path: &str) -> Option<Audit> {
        let (path, query) = path.split_once('?')?;
        if query.contains("Selector=") && !query.contains("Selector=&") {
            return None;
        }
        let from = query
            .split('&')
            .find_map(|part| part.strip_prefix("resourceVersion="))?
            .parse()
            .ok()
            .filter(|from| *from > 0);
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("core", rest),
            ["apis", "events.k8s.io", _, rest @ ..] => ("core", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let prefix = match rest {
            [plural] => format!("/{group}/{plural}/"),
            ["namespaces", namespace, plural] => format!("/{group}/{plural}/{namespace}/"),
            _ => return None,
        };
        Some(Audit { prefix, position: from })
    }

    /// What is wrong with the next chunk.
    pub fn hear(&mut self, chunk: &[u8], ledger: &Ledger) -> Vec<String> {
        let mut broken = Vec::new();
        for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Some((kind, revision)) = glance(line).or_else(|| read(line)) else {
                broken.push("a line of the watch is no event".to_owned());
                continue;
            };
            if kind == "ERROR" {
                self.position = None;
                continue;
            }
            let Some(position) = self.position else { continue };
            let next = ledger.next_after(&self.prefix, position);
            match (kind.as_str(), next) {
                ("BOOKMARK", Some((next, _))) if next <= revision => {
                    broken.push(format!("the watch says that it told all up to {revision}, but not {next}"));
                }
                ("BOOKMARK", _) => {}
                (kind, Some((next, told))) if next == revision => {
                    if kind != told {
                        broken.push(format!("the watch tells {revision} as {kind}, but it is {told}"));
                    }
                }
                (_, next) => {
                    let next = next.map(|(next, _)| next);
                    broken.push(format!("after {position} the watch tells {revision}, but next comes {next:?}"))
                }
            }
            self.position = Some(position.max(revision));
        }
        broken
    }
}

/// The kind and the revision of an event. An error has none.
fn read(line: &[u8]) -> Option<(String, u64)> {
    let event = serde_json::from_slice::<Value>(line).ok()?;
    let kind = event["type"].as_str()?.to_owned();
    let version = event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or("0").parse().ok()?;
    Some((kind, version))
}

/// The same without reading all of it, where it stands as the server writes whole objects. In a text the quotes would be escaped.
fn glance(line: &[u8]) -> Option<(String, u64)> {
    const VERSION: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";
    let rest = line.strip_prefix(b"{\"type\":\"")?;
    let kind = std::str::from_utf8(rest.split(|byte| *byte == b'"').next()?).ok()?;
    let at = line.windows(VERSION.len()).position(|window| window == VERSION)? + VERSION.len();
    let digits = line[at..].split(|byte| *byte == b'"').next()?;
    Some((kind.to_owned(), std::str::from_utf8(digits).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::time::VirtualClock;
    use object::Gates;
    use object::json;

    fn line(kind: &str, revision: u64) -> Vec<u8> {
        let object = json!({"type": kind, "object": {"metadata": {"resourceVersion": revision.to_string()}}});
        format!("{object}\n").into_bytes()
    }

    /// A watch of pods after revision 5, when pods changed at 6 and 9.
    fn audit(lines: &[(&str, u64)]) -> Vec<String> {
        let clock = VirtualClock::start();
        let ledger = Ledger::new(clock, Log::new(clock), Gates::default());
        ledger.remember(6, "/core/pods/a/x".into(), "ADDED");
        ledger.remember(7, "/core/podtemplates/a/x".into(), "ADDED");
        ledger.remember(9, "/core/pods/b/y".into(), "MODIFIED");
        let mut audit = Audit::of("/api/v1/pods?watch=true&resourceVersion=5").expect("a plain watch");
        lines.iter().flat_map(|(kind, revision)| audit.hear(&line(kind, *revision), &ledger)).collect()
    }

    #[tokio::test]
    async fn what_a_watch_misses_repeats_or_claims_is_noticed() {
        assert_eq!(audit(&[("ADDED", 6), ("BOOKMARK", 8), ("MODIFIED", 9), ("BOOKMARK", 9)]), [] as [&str; 0]);
        assert_eq!(audit(&[("MODIFIED", 9)]), ["after 5 the watch tells 9, but next comes Some(6)"], "one is missed");
        assert_eq!(audit(&[("ADDED", 6), ("ADDED", 6)]).len(), 1, "one is told twice");
        assert_eq!(audit(&[("DELETED", 6)]), ["the watch tells 6 as DELETED, but it is ADDED"]);
        assert_eq!(audit(&[("BOOKMARK", 6)]), ["the watch says that it told all up to 6, but not 6"]);
        assert_eq!(audit(&[("ADDED", 6), ("ERROR", 0), ("ADDED", 6)]), [] as [&str; 0], "it begins anew");
    }

    #[test]
    fn watches_that_select_are_left_alone() {
        assert!(Audit::of("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Da&resourceVersion=5").is_none());
        let audit = Audit::of("/apis/apps/v1/namespaces/a/statefulsets?resourceVersion=5").expect("a plain watch");
        assert_eq!((audit.prefix.as_str(), audit.position), ("/apps/statefulsets/a/", Some(5)));
    }
}
