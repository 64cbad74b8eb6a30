//! Watches miss nothing and repeat nothing: each is compared with what was committed.

use crate::ledger::Ledger;
use bytes::Bytes;
use object::Value;
use object::access::Access;

/// What a list or a watch is about.
#[derive(Debug, PartialEq)]
pub struct Selection {
    /// The keys of its kind, or of a namespace's.
    pub prefix: String,
    /// What is selected of these.
    by: Vec<Requirement>,
}

/// What a selector wants, read anew here: the server's reading is what is audited.
#[derive(Debug, PartialEq)]
enum Requirement {
    HasLabel(String, bool),
    LabelIs(String, String),
    FieldIs(Vec<String>, String),
}

impl Requirement {
    /// `None` for what nobody in a simulation asks for.
    fn read(name: &str, text: &str) -> Option<Requirement> {
        let text = text.replace("%3D", "=");
        if text.contains(['%', ',', '(', ' ']) || text.contains("!=") || text.contains("==") {
            return None;
        }
        match (name, text.split_once('=')) {
            ("labelSelector", Some((label, value))) => Some(Requirement::LabelIs(label.to_owned(), value.to_owned())),
            ("labelSelector", None) => {
                let label = text.strip_prefix('!');
                Some(Requirement::HasLabel(label.unwrap_or(&text).to_owned(), label.is_none()))
            }
            ("fieldSelector", Some((field, value))) => {
                let path = field.split('.').map(str::to_owned).collect();
                Some(Requirement::FieldIs(path, value.to_owned()))
            }
            _ => None,
        }
    }

    fn takes(&self, object: &Value) -> bool {
        let label = |label: &str| object.at(&["metadata", "labels", label]).and_then(Value::as_str);
        match self {
            Requirement::HasLabel(name, has) => label(name).is_some() == *has,
            Requirement::LabelIs(name, value) => label(name) == Some(value),
            Requirement::FieldIs(path, value) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                object.text(&path) == value
            }
        }
    }
}

impl Selection {
    /// `None` for what is not understood here.
    pub fn of(path: &str) -> Option<Selection> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let selectors = query.split('&').filter_map(|part| part.split_once('='));
        let selectors = selectors.filter(|(name, text)| name.ends_with("Selector") && !text.is_empty());
        let by = selectors.map(|(name, text)| Requirement::read(name, text)).collect::<Option<Vec<_>>>()?;
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
        Some(Selection { prefix, by })
    }

    /// Whether there is an object here, and it is one of these.
    pub fn takes(&self, object: Option<&Bytes>) -> bool {
        let Some(object) = object else { return false };
        if self.by.is_empty() {
            return true;
        }
        let object = serde_json::from_slice::<Value>(object).unwrap_or_default();
        self.by.iter().all(|requirement| requirement.takes(&object))
    }
}

/// One watch.
pub struct Audit {
    selection: Selection,
    /// Up to where it has told everything; `None` before it has said where it begins.
    position: Option<u64>,
}

impl Audit {
    pub fn of(path: &str) -> Option<Audit> {
        let (_, query) = path.split_once('?')?;
        let from = query
            .split('&')
            .find_map(|part| part.strip_prefix("resourceVersion="))?
            .parse()
            .ok()
            .filter(|from| *from > 0);
        Some(Audit { selection: Selection::of(path)?, position: from })
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
            let next = ledger.next_after(&self.selection, position);
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

    /// A watch of pods after revision 5, when pods changed at 6 and 9, and one got and lost a label at 10 and 12.
    fn audit(selector: &str, lines: &[(&str, u64)]) -> Vec<String> {
        let clock = VirtualClock::start();
        let ledger = Ledger::new(clock, Log::new(clock), Gates::default());
        let pod = |labels: Value| Some(Bytes::from(json!({"metadata": {"labels": labels}}).to_string()));
        let (bare, labelled) = (pod(json!({})), pod(json!({"app": "web"})));
        ledger.remember(6, "/core/pods/a/x".into(), None, bare.clone());
        ledger.remember(7, "/core/podtemplates/a/x".into(), None, bare.clone());
        ledger.remember(9, "/core/pods/b/y".into(), bare.clone(), bare.clone());
        ledger.remember(10, "/core/pods/a/x".into(), bare.clone(), labelled.clone());
        ledger.remember(12, "/core/pods/a/x".into(), labelled, bare);
        let mut audit = Audit::of(&format!("/api/v1/pods?watch=true&resourceVersion=5{selector}")).expect("a watch");
        lines.iter().flat_map(|(kind, revision)| audit.hear(&line(kind, *revision), &ledger)).collect()
    }

    #[tokio::test]
    async fn what_a_watch_misses_repeats_or_claims_is_noticed() {
        let plain = |lines: &[(&str, u64)]| audit("", lines);
        assert_eq!(plain(&[("ADDED", 6), ("BOOKMARK", 8), ("MODIFIED", 9), ("BOOKMARK", 9)]), [] as [&str; 0]);
        assert_eq!(plain(&[("MODIFIED", 9)]), ["after 5 the watch tells 9, but next comes Some(6)"], "one is missed");
        assert_eq!(plain(&[("ADDED", 6), ("ADDED", 6)]).len(), 1, "one is told twice");
        assert_eq!(plain(&[("DELETED", 6)]), ["the watch tells 6 as DELETED, but it is ADDED"]);
        assert_eq!(plain(&[("BOOKMARK", 6)]), ["the watch says that it told all up to 6, but not 6"]);
        assert_eq!(plain(&[("ADDED", 6), ("ERROR", 0), ("ADDED", 6)]), [] as [&str; 0], "it begins anew");
    }

    /// What comes into a selection is new to its watch, and what leaves it is gone.
    #[tokio::test]
    async fn watches_that_select_tell_what_comes_and_goes() {
        for selector in ["&labelSelector=app", "&labelSelector=app%3Dweb"] {
            assert_eq!(audit(selector, &[("BOOKMARK", 9), ("ADDED", 10), ("DELETED", 12)]), [] as [&str; 0]);
            assert_eq!(audit(selector, &[("ADDED", 6)]), ["after 5 the watch tells 6, but next comes Some(10)"]);
            assert_eq!(audit(selector, &[("ADDED", 10), ("MODIFIED", 12)]).len(), 1, "it is gone");
            assert_eq!(audit(selector, &[("BOOKMARK", 12)]).len(), 1, "two are missed");
        }
        let without = [("ADDED", 6), ("MODIFIED", 9), ("DELETED", 10), ("ADDED", 12)];
        assert_eq!(audit("&labelSelector=!app", &without), [] as [&str; 0]);
        assert_eq!(audit("&fieldSelector=metadata.name%3Dx", &[("BOOKMARK", 12)]), [] as [&str; 0], "nobody is x");
    }

    #[test]
    fn what_is_watched_is_read_from_the_path() {
        let audit = Audit::of("/apis/apps/v1/namespaces/a/statefulsets?resourceVersion=5").expect("a plain watch");
        assert_eq!(audit.selection, Selection { prefix: "/apps/statefulsets/a/".to_owned(), by: Vec::new() });
        assert_eq!(audit.position, Some(5));
        let by_node = Selection::of("/api/v1/pods?fieldSelector=spec.nodeName%3Da&watch=true").expect("understood");
        let path = vec!["spec".to_owned(), "nodeName".to_owned()];
        assert_eq!(by_node.by, [Requirement::FieldIs(path, "a".to_owned())]);
        assert_eq!(Selection::of("/api/v1/pods?labelSelector=a+in+(b)"), None);
    }
}
