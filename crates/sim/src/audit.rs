//! Watches miss nothing and repeat nothing: each is compared with what was committed.

use crate::ledger::Ledger;
use serde_json::Value;

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
        let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="))?.parse().ok().filter(|from| *from > 0);
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
            let Ok(event) = serde_json::from_slice::<Value>(line) else {
                broken.push("a line of the watch is no event".to_owned());
                continue;
            };
            let kind = event["type"].as_str().unwrap_or("");
            if kind == "ERROR" {
                self.position = None;
                continue;
            }
            let version = &event["object"]["metadata"]["resourceVersion"];
            let Some(revision) = version.as_str().and_then(|text| text.parse::<u64>().ok()) else {
                broken.push(format!("an event of the watch has the version {version}"));
                continue;
            };
            let Some(position) = self.position else { continue };
            let next = ledger.next_after(&self.prefix, position);
            match (kind, next) {
                ("BOOKMARK", Some(next)) if next <= revision => {
                    broken.push(format!("the watch says that it told all up to {revision}, but not {next}"));
                }
                ("BOOKMARK", _) => {}
                (_, Some(next)) if next == revision => {}
                (_, next) => broken.push(format!("after {position} the watch tells {revision}, but next comes {next:?}")),
            }
            self.position = Some(position.max(revision));
        }
        broken
    }
}
