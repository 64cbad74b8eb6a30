//! Parses method, path and query of a request, without a server.

use http::Method;
use object::decode::FieldValidation;
use object::selector::{FieldSelector, LabelSelector};
use object::{Errors, Path, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
    pub fn writes(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

/// A request for a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    pub verb: Verb,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub plural: String,
    /// Empty for a collection.
    pub name: String,
    pub subresource: String,
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Resource(ResourceRequest),
    /// Discovery, health, metrics: every path that is not a resource.
    Path,
}

/// Parses the target. Returns an error for an invalid resource path.
pub fn parse(method: &Method, path: &str, query: &Query) -> Result<Target, Status> {
    let parts: Vec<String> =
        path.split('/').filter(|part| !part.is_empty()).map(decode_component).collect::<Result<_, _>>()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(Target::Path),
    };
    // Some clients still use the old watch paths, such as /api/v1/watch/pods.
    let (watching, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        rest => (false, rest),
    };
    // `namespaces/x` alone is the namespace itself; `namespaces/x/status` and `/finalize` are its subresources.
    let (namespace, rest) = match rest {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] if group.is_empty() => ("", rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        // The rest is the path behind the proxy.
        [plural @ ("pods" | "services" | "nodes"), name, "proxy", ..] if group.is_empty() => (*plural, *name, "proxy"),
        _ => return Err(Status::no_such_path()),
    };
    // Old watch paths accept no writes.
    if watching && ![Method::GET, Method::HEAD].contains(method) {
        return Err(Status::method_not_allowed());
    }
    let verb = verb(method, !name.is_empty(), watching || query.flag("watch"))?;
    let owned = str::to_owned;
    Ok(Target::Resource(ResourceRequest {
        verb,
        group: owned(group),
        version: owned(version),
        namespace: owned(if plural == "namespaces" && group.is_empty() { "" } else { namespace }),
        plural: owned(plural),
        name: owned(name),
        subresource: owned(subresource),
    }))
}

fn verb(method: &Method, named: bool, watching: bool) -> Result<Verb, Status> {
    match (method.as_str(), named) {
        ("GET" | "HEAD", _) if watching => Ok(Verb::Watch),
        ("GET" | "HEAD", true) => Ok(Verb::Get),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        // A POST with a name is for subresources such as binding, eviction and token.
        ("POST", _) => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) => Ok(Verb::Patch),
        ("DELETE", true) => Ok(Verb::Delete),
        ("DELETE", false) => Ok(Verb::DeleteCollection),
        _ => Err(Status::method_not_allowed()),
    }
}

/// The decoded query parameters, in order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Result<Query, Status> {
        text.split('&')
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                Ok((decode_component(key)?, decode_component(&value.replace('+', " "))?))
            })
            .collect::<Result<_, _>>()
            .map(Query)
    }
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
    pub fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some("true" | "1"))
    }
    fn number(&self, key: &str) -> Result<Option<u64>, Status> {
        self.get(key)
            .map(|text| {
                text.parse().map_err(|_| Status::bad_request(format!("{key} must be a whole number, not {text:?}")))
            })
            .transpose()
    }
}

fn decode_component(text: &str) -> Result<String, Status> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let bad = || Status::bad_request(format!("the URL part {text:?} is not percent-encoded UTF-8"));
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad()) };
        out.push(u8::try_from(high * 16 + low).map_err(|_| bad())?);
    }
    String::from_utf8(out).map_err(|_| bad())
}

/// How a list uses its resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    Unset,
    NotOlderThan,
    Exact,
}

/// The options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    pub limit: usize,
    pub continue_token: Option<String>,
    /// `None`: unset. `Some(0)`: any version.
    pub resource_version: Option<u64>,
    pub version_match: VersionMatch,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// The options of a list, which has fewer than a watch.
    pub fn for_list(query: &Query) -> Result<ListOptions, Status> {
        let options = ListOptions::parse(query)?;
        if options.send_initial_events.is_some() {
            let why = "Forbidden: sendInitialEvents is forbidden for list".to_owned();
            return Err(options_invalid("sendInitialEvents", why));
        }
        Ok(options)
    }

    /// The options of a watch. Only a watch with initial events may have resourceVersionMatch.
    pub fn for_watch(query: &Query) -> Result<ListOptions, Status> {
        let options = ListOptions::parse(query)?;
        if options.send_initial_events.is_none() && options.version_match != VersionMatch::Unset {
            let why = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(options_invalid("resourceVersionMatch", why.to_owned()));
        }
        Ok(options)
    }

    pub fn parse(query: &Query) -> Result<ListOptions, Status> {
        let bad =
            |what: &str, why: String| Status::bad_request(format!("unable to parse requirement of {what}: {why}"));
        let labels =
            LabelSelector::parse(query.get("labelSelector").unwrap_or("")).map_err(|why| bad("labelSelector", why))?;
        let fields =
            FieldSelector::parse(query.get("fieldSelector").unwrap_or("")).map_err(|why| bad("fieldSelector", why))?;
        let resource_version = match query.get("resourceVersion") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| invalid_version(text))?),
        };
        let version_match = match query.get("resourceVersionMatch") {
            None => VersionMatch::Unset,
            Some("NotOlderThan") => VersionMatch::NotOlderThan,
            Some("Exact") => VersionMatch::Exact,
            Some(other) => {
                return Err(options_invalid(
                    "resourceVersionMatch",
                    format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""),
                ));
            }
        };
        let limit = query.number("limit")?.unwrap_or(0);
        let options = ListOptions {
            labels,
            fields,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            continue_token: query.get("continue").map(str::to_owned),
            resource_version,
            version_match,
            timeout_seconds: query.number("timeoutSeconds")?,
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: query.get("sendInitialEvents").map(|text| text == "true" || text == "1"),
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Status> {
        let forbidden = |field: &str, why: &str| Err(options_invalid(field, format!("Forbidden: {why}")));
        if self.send_initial_events.is_some() && self.version_match != VersionMatch::NotOlderThan {
            return forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        if self.version_match != VersionMatch::Unset {
            if self.send_initial_events.is_none() && self.resource_version.is_none() {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if self.continue_token.is_some() {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                );
            }
            if self.version_match == VersionMatch::Exact && self.resource_version == Some(0) {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                );
            }
        }
        Ok(())
    }
}

fn invalid_version(text: &str) -> Status {
    options_invalid("resourceVersion", format!("Invalid value: {text:?}: must be a whole number"))
}

fn options_invalid(field: &str, body: String) -> Status {
    Status::new(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {body}")).with_cause(
        "FieldValueInvalid",
        body,
        field,
    )
}

const MANAGER_BYTES_MAX: usize = 128;

/// The options of create, update, patch and delete.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub field_manager: String,
    pub force: bool,
}

impl WriteOptions {
    pub fn parse(verb: Verb, query: &Query, user_agent: &str) -> Result<WriteOptions, Status> {
        let kind = match verb {
            Verb::Update => "UpdateOptions",
            Verb::Patch => "PatchOptions",
            Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
            _ => "CreateOptions",
        };
        let mut errors = Errors::default();
        let dry_run = dry_run(query.all("dryRun").filter(|value| !value.is_empty()), &mut errors);
        let field_validation = FieldValidation::parse(query.get("fieldValidation").unwrap_or(""), kind)?;
        let asked = query.get("fieldManager").unwrap_or("");
        if asked.len() > MANAGER_BYTES_MAX {
            errors.too_long(&Path::new("fieldManager"), MANAGER_BYTES_MAX);
        }
        if asked.chars().any(char::is_control) {
            errors.invalid(&Path::new("fieldManager"), asked, "should only contain printable characters");
        }
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
        }
        let field_manager = if asked.is_empty() { manager_of(user_agent) } else { asked.to_owned() };
        Ok(WriteOptions { dry_run, field_validation, field_manager, force: query.flag("force") })
    }
}

/// Whether a write is a dry run. Unknown values are refused, because they may be meant as dry run.
pub fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Errors) -> bool {
    let mut wanted = false;
    for value in values {
        match value {
            "All" => wanted = true,
            other => errors.not_supported(&Path::new("dryRun"), other, &["All"]),
        }
    }
    wanted
}

/// The default field manager: the user agent up to the first slash.
fn manager_of(user_agent: &str) -> String {
    let name = user_agent.split('/').next().unwrap_or("").trim();
    let printable: String = name.chars().filter(|c| !c.is_control()).take(MANAGER_BYTES_MAX).collect();
    if printable.is_empty() { "unknown".to_owned() } else { printable }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: &str, path: &str) -> Target {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        parse(&method.parse().unwrap(), path, &Query::parse(query).unwrap()).unwrap()
    }

    fn words(method: &str, path: &str) -> String {
        match target(method, path) {
            Target::Path => "path".to_owned(),
            Target::Resource(r) => format!(
                "{} {}/{} ns={} {} name={} sub={}",
                r.verb.as_str(),
                r.group,
                r.version,
                r.namespace,
                r.plural,
                r.name,
                r.subresource
            ),
        }
    }

    #[test]
    fn paths_say_what_is_asked() {
        let cases = [
            ("GET", "/api/v1/pods", "list /v1 ns= pods name= sub="),
            ("GET", "/api/v1/pods?watch=1", "watch /v1 ns= pods name= sub="),
            ("GET", "/api/v1/namespaces", "list /v1 ns= namespaces name= sub="),
            ("GET", "/api/v1/namespaces/a", "get /v1 ns= namespaces name=a sub="),
            ("PUT", "/api/v1/namespaces/a/status", "update /v1 ns= namespaces name=a sub=status"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 ns= namespaces name=a sub=finalize"),
            ("POST", "/api/v1/namespaces/a/pods", "create /v1 ns=a pods name= sub="),
            ("POST", "/api/v1/namespaces/a/pods/p/eviction", "create /v1 ns=a pods name=p sub=eviction"),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/statefulsets/web/scale",
                "patch apps/v1 ns=a statefulsets name=web sub=scale",
            ),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/statefulsets",
                "deletecollection apps/v1 ns=a statefulsets name= sub=",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods/p", "watch /v1 ns=a pods name=p sub="),
            (
                "GET",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aadmin",
                "get rbac.authorization.k8s.io/v1 ns= clusterroles name=system:admin sub=",
            ),
            ("GET", "/apis/apps/v1", "path"),
            ("GET", "/healthz", "path"),
            ("GET", "/", "path"),
        ];
        for (method, path, want) in cases {
            assert_eq!(words(method, path), want, "{method} {path}");
        }
    }

    #[test]
    fn broken_requests_get_one_sentence() {
        let query = Query::default();
        assert_eq!(parse(&Method::PUT, "/api/v1/pods", &query).unwrap_err().code, 405);
        for method in [Method::POST, Method::DELETE] {
            assert_eq!(parse(&method, "/api/v1/watch/namespaces/a/pods", &query).unwrap_err().code, 405, "{method}");
        }
        assert_eq!(parse(&Method::GET, "/api/v1/namespaces/a/pods/b/c/d", &query).unwrap_err().code, 404);
        assert_eq!(parse(&Method::GET, "/api/v1/pods/%zz", &query).unwrap_err().code, 400);
        assert_eq!(parse(&Method::GET, "/api/v1/pods/%ff", &query).unwrap_err().code, 400);
        let options = |text: &str| ListOptions::parse(&Query::parse(text).unwrap());
        assert_eq!(options("limit=x").unwrap_err().code, 400);
        assert_eq!(options("resourceVersionMatch=Exact").unwrap_err().code, 422);
        assert_eq!(options("sendInitialEvents=true").unwrap_err().code, 422);
        assert!(options("limit=5&continue=abc&labelSelector=a%3Db").is_ok());
        assert!(WriteOptions::parse(Verb::Create, &Query::parse("dryRun=Some").unwrap(), "").is_err());
        assert_eq!(manager_of("kubectl/v1.32 (linux)"), "kubectl");
    }
}
