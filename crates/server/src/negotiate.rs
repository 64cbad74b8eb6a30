//! Content negotiation: the form of a response that a client accepts, and the format of its request body.

use http::HeaderMap;
use object::{Status, protobuf};

/// The form in which objects are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Object,
    /// `as=Table`, with the part of each object that its rows include.
    Table(RowObject),
    /// `as=PartialObjectMetadata` or `…List`.
    Metadata,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowObject {
    None,
    Metadata,
    Object,
}

const SERVED: &str = "application/json, application/yaml";
const READ: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The forms that a response supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    All,
    /// Neither tables nor partial metadata.
    ObjectOnly,
}

/// The first acceptable form in the `Accept` header; 406 if there is none.
pub fn accept(headers: &HeaderMap, include_object: Option<&str>, forms: Forms) -> Result<Form, Status> {
    let mut asked = false;
    for value in headers.get_all(http::header::ACCEPT) {
        let text = value.to_str().map_err(|_| Status::not_acceptable("the Accept header is not text"))?;
        for clause in text.split(',').map(str::trim).filter(|clause| !clause.is_empty()) {
            asked = true;
            if let Some(form) = form_of(clause, include_object)?
                && (forms == Forms::All || form == Form::Object)
            {
                return Ok(form);
            }
        }
    }
    if asked {
        let message = format!("only the following media types are accepted: {SERVED}");
        return Err(Status::not_acceptable(message));
    }
    Ok(Form::Object)
}

fn form_of(clause: &str, include_object: Option<&str>) -> Result<Option<Form>, Status> {
    let mut parts = clause.split(';').map(str::trim);
    let media = parts.next().unwrap_or("").to_ascii_lowercase();
    if !matches!(media.as_str(), "application/json" | "*/*" | "application/*") {
        return Ok(None);
    }
    let mut form = Form::Object;
    for parameter in parts {
        match parameter.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            Some(("as", "Table")) => form = Form::Table(row_object(include_object)?),
            Some(("as", "PartialObjectMetadata" | "PartialObjectMetadataList")) => form = Form::Metadata,
            // An unknown transformation or version: try the next clause.
            Some(("as", _)) => return Ok(None),
            Some(("v", version)) if version != "v1" => return Ok(None),
            Some(("g", group)) if group != "meta.k8s.io" => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(form))
}

fn row_object(include_object: Option<&str>) -> Result<RowObject, Status> {
    match include_object {
        None | Some("Metadata") => Ok(RowObject::Metadata),
        Some("None") => Ok(RowObject::None),
        Some("Object") => Ok(RowObject::Object),
        Some(other) => Err(Status::bad_request(format!(
            "unrecognized includeObject value: {other:?}; use None, Metadata or Object"
        ))),
    }
}

/// The format of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Json,
    Yaml,
    /// Only for built-in kinds, see [`no_protobuf`]. Responses are never in protobuf.
    Protobuf,
}

/// The format of a body that holds an object; 415 for unsupported ones.
pub fn object_language(headers: &HeaderMap) -> Result<Language, Status> {
    match media_type(headers).as_str() {
        "" | "application/json" | "text/json" => Ok(Language::Json),
        "application/yaml" | "text/yaml" | "application/x-yaml" => Ok(Language::Yaml),
        protobuf::MEDIA_TYPE => Ok(Language::Protobuf),
        other => Err(unknown_format(other, READ)),
    }
}

/// The 415 for a protobuf body of a kind without protobuf form: custom resources and unknown kinds.
pub fn no_protobuf() -> Status {
    unknown_format(protobuf::MEDIA_TYPE, SERVED)
}

fn unknown_format(media: &str, accepted: &str) -> Status {
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - {media}: accepted media types include: {accepted}"
    ))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

pub fn patch_type(headers: &HeaderMap) -> Result<PatchType, Status> {
    match media_type(headers).as_str() {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
        "application/apply-patch+yaml" | "application/apply-patch+json" => Ok(PatchType::Apply),
        other => Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format - {other}: accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
             application/apply-patch+yaml"
        ))),
    }
}

fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// Whether the client accepts gzip.
pub fn takes_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(http::header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .any(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            parts.next() == Some("gzip") && !parts.any(|weight| weight == "q=0" || weight == "q=0.0")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept_header: &str) -> Result<Form, u16> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", accept_header.parse().unwrap());
        accept(&headers, None, Forms::All).map_err(|status| status.code)
    }

    #[test]
    fn a_response_without_table_form_is_refused_or_sent_as_an_object() {
        let mut headers = HeaderMap::new();
        headers.insert("accept", "application/json;as=Table;v=v1;g=meta.k8s.io".parse().unwrap());
        assert_eq!(accept(&headers, None, Forms::ObjectOnly).unwrap_err().code, 406);
        headers.append("accept", "application/json".parse().unwrap());
        assert_eq!(accept(&headers, None, Forms::ObjectOnly), Ok(Form::Object));
    }

    #[test]
    fn the_first_known_clause_wins() {
        let table = Form::Table(RowObject::Metadata);
        assert_eq!(
            form(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Ok(table)
        );
        assert_eq!(form("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"), Ok(Form::Object));
        assert_eq!(form("application/vnd.kubernetes.protobuf,application/json"), Ok(Form::Object));
        assert_eq!(form("application/vnd.kubernetes.protobuf"), Err(406));
        assert_eq!(form("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"), Ok(Form::Metadata));
        assert_eq!(form("*/*"), Ok(Form::Object));
    }

    #[test]
    fn unknown_bodies_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/vnd.kubernetes.protobuf".parse().unwrap());
        assert_eq!(object_language(&headers).unwrap(), Language::Protobuf);
        assert_eq!(patch_type(&headers).unwrap_err().code, 415);
        headers.insert("content-type", "application/apply-patch+yaml; charset=utf-8".parse().unwrap());
        assert_eq!(patch_type(&headers).unwrap(), PatchType::Apply);
        assert_eq!(object_language(&headers).unwrap_err().code, 415);
        assert_eq!(no_protobuf().code, 415);
        headers.insert("accept-encoding", "deflate, gzip;q=1.0".parse().unwrap());
        assert!(takes_gzip(&headers));
    }
}
