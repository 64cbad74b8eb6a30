//! The verbs get and list.

use super::selector_fields::SelectorFields;
use super::{Answer, Call, store_status, too_large};
use crate::render;
use crate::request::{ListOptions, VersionMatch};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use object::json;
use object::{Kind, Status, Value};
use std::sync::Arc;
use store::{Range, Record};

pub fn get(call: &Call<'_>) -> Result<Answer, Status> {
    let asked = call.target.name.as_str();
    if let Some(version) = call.query.get("resourceVersion")
        && let Ok(version) = version.parse::<u64>()
        && version > call.server.store.revision()
    {
        return Err(too_large(version, call.server.store.revision()));
    }
    let record = call.server.store.get(&call.key(asked)).ok_or_else(|| call.not_found(asked))?;
    call.show(200, &record.value, Vec::new())
}

/// The objects that a list or watch selects.
pub struct Selection {
    kind: Arc<Kind>,
    options: ListOptions,
    name: Option<String>,
    everything: bool,
}

impl Selection {
    /// Refuses selectors for fields that the kind does not support.
    pub fn new(kind: &Arc<Kind>, options: &ListOptions, name: &str) -> Result<Selection, Status> {
        for requirement in options.fields.requirements() {
            let field = requirement.field.as_str();
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || kind.rules.selectable_fields().contains(&field);
            if !known {
                return Err(Status::bad_request(format!(
                    "field label not supported: {field}; {} knows {}",
                    kind.plural,
                    ["metadata.name", "metadata.namespace"]
                        .iter()
                        .chain(kind.rules.selectable_fields())
                        .copied()
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
        }
        let name = Some(name).filter(|name| !name.is_empty()).map(str::to_owned);
        let everything = name.is_none() && options.labels.is_everything() && options.fields.is_everything();
        Ok(Selection { kind: kind.clone(), options: options.clone(), name, everything })
    }

    pub fn is_everything(&self) -> bool {
        self.everything
    }

    /// The only name that can match, if the selection requires one.
    pub fn exact_name(&self) -> Option<&str> {
        self.name.as_deref().or_else(|| self.options.fields.exact("metadata.name"))
    }

    pub fn takes(&self, record: &Record) -> bool {
        if self.everything {
            return true;
        }
        let (rest, name) = record.key.rsplit_once('/').unwrap_or_default();
        if self.name.as_ref().is_some_and(|wanted| wanted != name) {
            return false;
        }
        let namespace = if self.kind.namespaced { rest.rsplit_once('/').map_or("", |(_, last)| last) } else { "" };
        let fields = SelectorFields::of(&self.kind, record);
        self.options.labels.matches(&fields.labels)
            && self.options.fields.matches(|field| match field {
                "metadata.name" => name,
                "metadata.namespace" => namespace,
                _ => fields.field(&self.kind, field),
            })
    }
}

pub fn list(call: &Call<'_>) -> Result<Answer, Status> {
    let options = ListOptions::for_list(&call.query)?;
    let selection = Selection::new(&call.kind, &options, "")?;
    let page = read_page(call, &options, &selection)?;
    let form = call.form()?;
    let items: Vec<Bytes> = page.records.iter().map(|record| record.value.clone()).collect();
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(token) = page.continue_token {
        metadata["continue"] = json!(token);
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    let body = render::list(&call.kind, form, &items, metadata, call.now)?;
    Ok(Answer::new(200, body))
}

/// Limits of records that a selective list reads per round. Each round scans the remaining keys, and only few records
/// may match.
const ROUND_MIN: usize = 500;
const ROUND_MAX: usize = 10_000;

/// A page of a limited list ends early at this size. A page is encoded and sent as a whole, and clients such as
/// informers use pages to save memory.
const PAGE_BYTES_MAX: usize = 4 << 20;

pub struct ListPage {
    pub records: Vec<Arc<Record>>,
    pub revision: u64,
    continue_token: Option<String>,
    remaining: Option<u64>,
}

/// Reads one page of a list from a consistent snapshot.
pub fn read_page(call: &Call<'_>, options: &ListOptions, selection: &Selection) -> Result<ListPage, Status> {
    let prefix = crate::object_store::prefix(&call.kind, &call.target.namespace);
    let (at, mut after) = start_of(call, options, &prefix)?;
    if let Some(found) = point_read(call, selection, at) {
        return Ok(found);
    }
    let mut page = ListPage { records: Vec::new(), revision: 0, continue_token: None, remaining: None };
    let mut bytes = 0;
    let is_full = |count: usize, bytes: usize| options.limit > 0 && (count == options.limit || bytes >= PAGE_BYTES_MAX);
    let mut round = if selection.is_everything() { options.limit } else { options.limit.max(ROUND_MIN) };
    loop {
        let range = Range {
            prefix: &prefix,
            after: after.as_deref(),
            limit: if options.limit == 0 { 0 } else { round },
            // Later rounds of a page read the same snapshot as the first.
            at: at.or_else(|| (page.revision > 0).then_some(page.revision)),
        };
        let found = call.server.store.list(range).map_err(|error| continue_status(&error, options))?;
        page.revision = found.revision;
        let last = found.records.last().map(|record| record.key.clone());
        let mut records = found.records.into_iter();
        while let Some(record) = records.by_ref().find(|record| selection.takes(record)) {
            bytes += record.value.len();
            page.records.push(record);
            if is_full(page.records.len(), bytes) {
                break;
            }
        }
        let left = u64::try_from(records.len()).unwrap_or(u64::MAX);
        let is_rest = records.len() == 0 && !found.more;
        match page.records.last() {
            _ if is_rest => return Ok(page),
            Some(last) if is_full(page.records.len(), bytes) => {
                let start = last.key.strip_prefix(&*prefix).unwrap_or(&last.key);
                page.continue_token = Some(token(Some(page.revision), start));
                page.remaining = found.remaining.filter(|_| selection.is_everything()).map(|more| more + left);
                return Ok(page);
            }
            _ => {}
        }
        after = last.map(|last| last.to_string());
        round = (round * 2).min(ROUND_MAX.max(options.limit));
    }
}

/// Reads a selection of a single name in one namespace without a scan.
fn point_read(call: &Call<'_>, selection: &Selection, at: Option<u64>) -> Option<ListPage> {
    let name = selection.exact_name()?;
    if at.is_some() || (call.kind.namespaced && call.target.namespace.is_empty()) {
        return None;
    }
    // Read the revision first, so that the object is at least as new as the list's resourceVersion.
    let revision = call.server.store.revision();
    let found = call.server.store.get(&call.key(name)).filter(|record| selection.takes(record));
    if found.as_ref().is_some_and(|record| record.modified > revision) {
        return None;
    }
    Some(ListPage { records: found.into_iter().collect(), revision, continue_token: None, remaining: None })
}

/// The revision at which a list reads (`None`: the newest), and the key after which it starts.
fn start_of(call: &Call<'_>, options: &ListOptions, prefix: &str) -> Result<(Option<u64>, Option<String>), Status> {
    if let Some(text) = &options.continue_token {
        if options.resource_version.is_some_and(|version| version != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let (revision, start) = read_token(text)?;
        return Ok((revision, Some(format!("{prefix}{start}"))));
    }
    let newest = call.server.store.revision();
    match (options.resource_version, options.version_match) {
        (Some(version), _) if version > newest => Err(too_large(version, newest)),
        (Some(version), VersionMatch::Exact) => Ok((Some(version), None)),
        // With a limit, a resourceVersion without resourceVersionMatch means exactly this version.
        (Some(version), VersionMatch::Unset) if version > 0 && options.limit > 0 => Ok((Some(version), None)),
        _ => Ok((None, None)),
    }
}

fn continue_status(error: &store::Error, options: &ListOptions) -> Status {
    match error {
        store::Error::Compacted { .. } => match options.continue_token.as_deref().and_then(|text| read_token(text).ok()) {
            Some((_, start)) => Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list \
                 without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
                 results. Continuing with the provided token results in an inconsistent list - objects that were created, \
                 modified, or deleted between the time the first chunk was returned and now may show up in the list.",
            )
            .continue_with(token(None, &start)),
            None => store_status(error),
        },
        error => store_status(error),
    }
}

/// The revision in a continue token that means the newest state. The client has accepted an inconsistent list.
const NOW: i64 = -1;

fn token(revision: Option<u64>, start: &str) -> String {
    let revision = revision.map_or_else(|| json!(NOW), |revision| json!(revision));
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn read_token(text: &str) -> Result<(Option<u64>, String), Status> {
    let bad =
        || Status::bad_request("continue key is not valid: take it unchanged from the metadata of the list before");
    let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let revision = match value["rv"].as_i64() {
        Some(NOW) => None,
        _ => Some(value["rv"].as_u64().filter(|revision| *revision > 0).ok_or_else(bad)?),
    };
    let start = value["start"].as_str().filter(|start| !start.is_empty()).ok_or_else(bad)?;
    if value["v"] != "meta.k8s.io/v1" || start.contains("..") {
        return Err(bad());
    }
    Ok((revision, start.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_round_trip_and_forged_ones_are_refused() {
        for revision in [Some(7), None] {
            assert_eq!(read_token(&token(revision, "default/web-0")).unwrap(), (revision, "default/web-0".to_owned()));
        }
        for bad in ["", "x", "eyJ9", &URL_SAFE_NO_PAD.encode("{\"v\":\"other\",\"rv\":1,\"start\":\"a\"}")] {
            assert_eq!(read_token(bad).unwrap_err().code, 400, "{bad:?}");
        }
    }
}
