//! Compares each watch with the committed changes: no event may be missing or repeated.

use crate::commit_checker::{CommitChecker, ExpectedEvent};
use bytes::Bytes;
use object::Value;
use object::access::{Access, name, namespace, uid};

/// What a list or a watch selects.
#[derive(Debug, PartialEq)]
pub struct Selection {
    /// Key prefix of the kind, or of the kind in one namespace.
    pub prefix: String,
    /// Selector requirements. An object must meet all of them.
    by: Vec<Requirement>,
}

/// One selector requirement. Parsed here again, because the server's parser is what is checked.
#[derive(Debug, PartialEq)]
enum Requirement {
    HasLabel(String, bool),
    LabelIs(String, String),
    FieldIs(Vec<String>, String),
}

impl Requirement {
    /// Returns `None` for forms that no client of the simulation uses.
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

    fn selects(&self, object: &Value) -> bool {
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
    /// Returns `None` if the path has a selector that this parser does not know.
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

    /// Whether the object exists and meets all requirements.
    pub fn selects(&self, object: Option<&Bytes>) -> bool {
        let Some(object) = object else { return false };
        if self.by.is_empty() {
            return true;
        }
        let object = serde_json::from_slice::<Value>(object).unwrap_or_default();
        self.by.iter().all(|requirement| requirement.selects(&object))
    }
}

/// The audit of one watch.
pub struct WatchAudit {
    selection: Selection,
    /// Whether the client asked for metadata only.
    is_partial: bool,
    /// Position in the change history up to which the watch is complete. `None` if the start of the watch is unknown.
    position: Option<usize>,
}

impl WatchAudit {
    /// `accept` is the Accept header of the client.
    pub fn of(path: &str, accept: &str, commit_checker: &CommitChecker) -> Option<WatchAudit> {
        let (_, query) = path.split_once('?')?;
        let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="))?.parse().ok();
        let position = from.filter(|from| *from > 0).map(|from| commit_checker.position_after(from));
        Some(WatchAudit {
            selection: Selection::of(path)?,
            is_partial: accept.contains("as=PartialObjectMetadata"),
            position,
        })
    }

    /// Returns the violations in the next chunk.
    pub fn check_chunk(&mut self, chunk: &[u8], commit_checker: &CommitChecker) -> Vec<String> {
        let lines = chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter_map(|line| self.check_line(line, commit_checker)).collect()
    }

    fn check_line(&mut self, line: &[u8], commit_checker: &CommitChecker) -> Option<String> {
        let Some((kind, revision)) = parse_prefix(line).or_else(|| read(line)) else {
            return Some("the watch sent a line that is not an event".to_owned());
        };
        if kind == "ERROR" {
            self.position = None;
            return None;
        }
        let is_bookmark = kind == "BOOKMARK";
        let Some(place) = self.position else {
            self.position = is_bookmark.then(|| commit_checker.position_after(revision));
            return None;
        };
        let next = commit_checker.next_expected(&self.selection, place);
        let behind = commit_checker.position_after(revision).max(place);
        match next {
            Some(next) if is_bookmark && next.revision <= revision => {
                self.position = Some(behind);
                Some(format!("the watch sent a bookmark for {revision}, but not {}", next.revision))
            }
            _ if is_bookmark => {
                self.position = Some(behind);
                None
            }
            Some(next) if next.revision == revision => {
                // Two changes may have the same revision.
                self.position = Some(next.position + 1);
                self.compare(&kind, line, &next)
            }
            next => {
                self.position = Some(behind);
                let next = next.map(|next| next.revision);
                Some(format!("the watch sent {revision}, expected {next:?}"))
            }
        }
    }

    /// Compares an event with the committed change that it must deliver.
    fn compare(&self, kind: &str, line: &[u8], next: &ExpectedEvent) -> Option<String> {
        let ExpectedEvent { revision, key, kind: wanted, object, .. } = next;
        if kind != *wanted {
            return Some(format!("the watch sent {revision} as {kind}, expected {wanted}"));
        }
        // Usually the event contains the committed bytes unchanged; then parsing is not needed.
        if kind != "DELETED" && !self.is_partial && object.len() < line.len() && ends_with_object(line, object) {
            return None;
        }
        let event = serde_json::from_slice::<Value>(line).unwrap_or_default();
        let (found, committed) = (&event["object"], serde_json::from_slice::<Value>(object).unwrap_or_default());
        let place: Vec<&str> = [namespace(found), name(found)].into_iter().filter(|part| !part.is_empty()).collect();
        if key.splitn(4, '/').nth(3).is_none_or(|wanted| wanted != place.join("/")) {
            return Some(format!("the watch sent {revision} for {place:?}, expected {key}"));
        }
        // The last state of a deleted object, and metadata alone, differ from the committed bytes. Compare uids only.
        let is_same =
            if kind == "DELETED" || self.is_partial { uid(found) == uid(&committed) } else { *found == committed };
        (!is_same).then(|| format!("the watch sent {revision} of {key} as {found}, expected {committed}"))
    }

    /// Describes the first change up to `revision` that the watch has not delivered.
    pub fn undelivered(&self, revision: u64, commit_checker: &CommitChecker) -> Option<String> {
        let next =
            commit_checker.next_expected(&self.selection, self.position?).filter(|next| next.revision <= revision)?;
        Some(format!("the watch has not delivered {} of {}", next.revision, next.key))
    }
}

/// Whether an event line ends with exactly these object bytes, as the server writes it.
fn ends_with_object(line: &[u8], object: &[u8]) -> bool {
    line.strip_suffix(b"}").is_some_and(|line| line.ends_with(object))
}

/// Parses type and revision of an event. An error event has no revision.
fn read(line: &[u8]) -> Option<(String, u64)> {
    let event = serde_json::from_slice::<Value>(line).ok()?;
    let kind = event["type"].as_str()?.to_owned();
    let version = event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or("0").parse().ok()?;
    Some((kind, version))
}

/// Like `read`, without parsing the whole line. Works if the revision is where the server writes it. Inside a string
/// value, the quotes would be escaped, so the pattern cannot match there.
fn parse_prefix(line: &[u8]) -> Option<(String, u64)> {
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

    /// A pod of a namespace, as committed at a revision.
    fn pod(place: &str, revision: u64, labels: &Value) -> Value {
        let (namespace, name) = place.split_once('/').unwrap_or_default();
        let metadata =
            json!({"resourceVersion": revision.to_string(), "name": name, "namespace": namespace, "uid": place});
        json!({"metadata": object::patch::merge(&metadata, &json!({"labels": labels}))})
    }

    /// Committed history: pods change at 6 and 9, one gets a label at 10 and loses it at 12, and one transaction at
    /// 14 changes two.
    fn commit_checker() -> std::sync::Arc<CommitChecker> {
        let clock = VirtualClock::start();
        let commit_checker = CommitChecker::new(clock, Log::new(clock), Gates::default());
        let bare = |place: &str, revision| Some(pod(place, revision, &json!({})));
        let changes = [
            (6, "pods/a/x", None, bare("a/x", 6)),
            (7, "podtemplates/a/x", None, bare("a/x", 7)),
            (9, "pods/b/y", bare("b/y", 2), bare("b/y", 9)),
            (10, "pods/a/x", bare("a/x", 6), Some(pod("a/x", 10, &json!({"app": "web"})))),
            (12, "pods/a/x", Some(pod("a/x", 10, &json!({"app": "web"}))), bare("a/x", 12)),
            (14, "pods/a/z", None, bare("a/z", 14)),
            (14, "pods/b/y", bare("b/y", 9), None),
        ];
        for (revision, key, was, is) in changes {
            let [was, is] = [was, is].map(|object| object.map(|object| Bytes::from(object.to_string())));
            commit_checker.add_history(revision, format!("/core/{key}").into(), was, is);
        }
        commit_checker
    }

    /// The event line of one change, for a watch of pods after revision 5.
    fn line(kind: &str, place: &str, revision: u64) -> String {
        let labels = if revision == 10 { json!({"app": "web"}) } else { json!({}) };
        format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", pod(place, revision, &labels))
    }

    const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

    fn audit_as(accept: &str, selector: &str, lines: &[(&str, &str, u64)]) -> (Vec<String>, Option<String>) {
        let commit_checker = commit_checker();
        let path = format!("/api/v1/pods?watch=true&resourceVersion=5{selector}");
        let mut audit = WatchAudit::of(&path, accept, &commit_checker).expect("a watch");
        let told = lines.iter().map(|(kind, place, revision)| line(kind, place, *revision));
        let broken = told.flat_map(|line| audit.check_chunk(line.as_bytes(), &commit_checker)).collect();
        (broken, audit.undelivered(12, &commit_checker))
    }

    fn audit(selector: &str, lines: &[(&str, &str, u64)]) -> Vec<String> {
        audit_as("application/json", selector, lines).0
    }

    const BOOKMARK: fn(u64) -> (&'static str, &'static str, u64) = |revision| ("BOOKMARK", "", revision);
    const NOTHING: [&str; 0] = [];

    #[tokio::test]
    async fn missing_repeated_and_skipped_events_are_detected() {
        let plain = |lines: &[(&str, &str, u64)]| audit("", lines);
        assert_eq!(plain(&[("ADDED", "a/x", 6), BOOKMARK(8), ("MODIFIED", "b/y", 9), BOOKMARK(9)]), NOTHING);
        assert_eq!(plain(&[("MODIFIED", "b/y", 9)]), ["the watch sent 9, expected Some(6)"], "one event is missing");
        assert_eq!(plain(&[("ADDED", "a/x", 6), ("ADDED", "a/x", 6)]).len(), 1, "one event is repeated");
        assert_eq!(plain(&[("DELETED", "a/x", 6)]), ["the watch sent 6 as DELETED, expected ADDED"]);
        assert_eq!(plain(&[BOOKMARK(6)]), ["the watch sent a bookmark for 6, but not 6"]);
        assert_eq!(
            plain(&[("ERROR", "", 0), ("ADDED", "a/x", 6)]),
            NOTHING,
            "after an error event the client lists again"
        );
    }

    #[tokio::test]
    async fn two_changes_of_one_revision_are_both_expected() {
        let both = [("ADDED", "a/z", 14), ("DELETED", "b/y", 14)];
        let after = |lines: &[(&str, &str, u64)]| {
            let earlier =
                [("ADDED", "a/x", 6), ("MODIFIED", "b/y", 9), ("MODIFIED", "a/x", 10), ("MODIFIED", "a/x", 12)];
            audit("", &[&earlier[..], lines].concat())
        };
        assert_eq!(after(&both), NOTHING);
        assert_eq!(after(&both[1..]), ["the watch sent 14 as DELETED, expected ADDED"], "the first event is missing");
        let only_first = [both[0], BOOKMARK(14)];
        assert_eq!(after(&only_first), ["the watch sent a bookmark for 14, but not 14"], "the second event is missing");
    }

    #[tokio::test]
    async fn a_wrong_object_or_body_is_detected() {
        for accept in ["application/json", METADATA] {
            let (broken, _) = audit_as(accept, "", &[("ADDED", "a/z", 6)]);
            assert_eq!(broken, [r#"the watch sent 6 for ["a", "z"], expected /core/pods/a/x"#]);
        }
        let commit_checker = commit_checker();
        let other = line("ADDED", "a/x", 6).replace("\"labels\":{}", "\"labels\":{\"app\":\"web\"}");
        for (accept, wrong) in [("application/json", 1), (METADATA, 0)] {
            let path = "/api/v1/pods?watch=true&resourceVersion=5";
            let mut audit = WatchAudit::of(path, accept, &commit_checker).expect("a watch");
            assert_eq!(
                audit.check_chunk(other.as_bytes(), &commit_checker).len(),
                wrong,
                "labels are not compared by {accept}"
            );
        }
    }

    #[tokio::test]
    async fn undelivered_changes_are_detected() {
        let all = [("ADDED", "a/x", 6), ("MODIFIED", "b/y", 9), ("MODIFIED", "a/x", 10), ("MODIFIED", "a/x", 12)];
        assert_eq!(audit_as("", "", &all), (Vec::new(), None), "later changes may still be in transit");
        let never = "the watch has not delivered 12 of /core/pods/a/x".to_owned();
        assert_eq!(audit_as("", "", &all[..3]), (Vec::new(), Some(never)));
    }

    /// An object that enters a selection is ADDED for its watch, and one that leaves it is DELETED.
    #[tokio::test]
    async fn selecting_watches_report_objects_that_enter_and_leave() {
        for selector in ["&labelSelector=app", "&labelSelector=app%3Dweb"] {
            let (came, went) = (("ADDED", "a/x", 10), ("DELETED", "a/x", 12));
            assert_eq!(audit(selector, &[BOOKMARK(9), came, went]), NOTHING);
            assert_eq!(audit(selector, &[("ADDED", "a/x", 6)]), ["the watch sent 6, expected Some(10)"]);
            assert_eq!(audit(selector, &[came, ("MODIFIED", "a/x", 12)]).len(), 1, "it left the selection");
            assert_eq!(audit(selector, &[BOOKMARK(12)]).len(), 1, "two events are missing");
        }
        let without = [("ADDED", "a/x", 6), ("MODIFIED", "b/y", 9), ("DELETED", "a/x", 10), ("ADDED", "a/x", 12)];
        assert_eq!(audit("&labelSelector=!app", &without), NOTHING);
        assert_eq!(audit("&fieldSelector=metadata.name%3Dw", &[BOOKMARK(12)]), NOTHING, "no pod is named w");
    }

    #[tokio::test]
    async fn the_selection_is_parsed_from_the_path() {
        let path = "/apis/apps/v1/namespaces/a/statefulsets?resourceVersion=5";
        let audit = WatchAudit::of(path, METADATA, &commit_checker()).expect("a plain watch");
        assert_eq!(audit.selection, Selection { prefix: "/apps/statefulsets/a/".to_owned(), by: Vec::new() });
        assert_eq!((audit.position, audit.is_partial), (Some(0), true));
        let by_node = Selection::of("/api/v1/pods?fieldSelector=spec.nodeName%3Da&watch=true").expect("understood");
        let path = vec!["spec".to_owned(), "nodeName".to_owned()];
        assert_eq!(by_node.by, [Requirement::FieldIs(path, "a".to_owned())]);
        assert_eq!(Selection::of("/api/v1/pods?labelSelector=a+in+(b)"), None);
    }
}
