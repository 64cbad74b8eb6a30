//! Untyped requests to an API server: paths and JSON.

use crate::decode_cache::DecodeCache;
use crate::namespace_scope::NamespaceScope;
use bytes::Bytes;
use kube::Client;
use kube::client::Body;
use object::Value;
use object::access::Access;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Objects per page of a list.
const PAGE: usize = 500;
/// A response that takes longer may be out of date when it arrives.
const PROMPT: Duration = Duration::from_secs(2);
/// Duration of a watch that reads past events: servers have sent them all by then.
const HISTORY_LENGTH: Duration = Duration::from_secs(1);

/// A resource as discovery describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub kind: Arc<str>,
    pub plural: Arc<str>,
    pub namespaced: bool,
}

impl Resource {
    pub fn new(api_version: &str, kind: &str, plural: &str, namespaced: bool) -> Resource {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Resource { group: group.into(), version: version.into(), kind: kind.into(), plural: plural.into(), namespaced }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The path of the collection in a namespace, or in all namespaces if it is `""`.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        let place =
            if self.namespaced && !namespace.is_empty() { format!("/namespaces/{namespace}") } else { String::new() };
        format!("{root}/{}{place}/{}", self.version, self.plural)
    }

    pub fn object(&self, namespace: &str, name: &str) -> String {
        let mut path = self.collection(namespace);
        path.push('/');
        for byte in name.bytes() {
            // Names of RBAC objects may contain any character that can be escaped in a path.
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                    path.push(char::from(byte))
                }
                other => path.push_str(&format!("%{other:02X}")),
            }
        }
        path
    }
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server answered with an error status.
    #[error("{message} ({code})")]
    Refused {
        code: u16,
        message: String,
        /// The name of the object that the error is about; empty if it is about none, for example when a path
        /// is not served.
        object: String,
        /// The reasons of `details.causes`.
        causes: Vec<String>,
    },
    /// There was no response, or it could not be decoded.
    #[error("{}", root_cause(.0))]
    Broken(kube::Error),
}

impl ApiError {
    pub fn code(&self) -> u16 {
        match self {
            ApiError::Refused { code, .. } => *code,
            ApiError::Broken(_) => 0,
        }
    }
    /// Whether the object, its kind or its namespace does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }
    /// Whether the object does not exist although its kind is served. An object of a kind that is not served
    /// may still exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, ApiError::Refused { code: 404, object, .. } if !object.is_empty())
    }
    /// Whether nothing can be created because the namespace is terminating.
    pub fn is_namespace_ending(&self) -> bool {
        matches!(self, ApiError::Refused { code: 403, causes, .. } if causes.iter().any(|cause| cause == "NamespaceTerminating"))
    }
    pub fn is_conflict(&self) -> bool {
        self.code() == 409
    }
    /// Whether the server refused the request, so that nothing was changed. After any other error the outcome
    /// is unknown.
    pub fn is_refusal(&self) -> bool {
        (400..500).contains(&self.code())
    }
    /// Whether the object has another version or uid than expected, or is deleted.
    pub fn is_stale(&self) -> bool {
        self.is_conflict() || self.is_absent()
    }
    /// The error text for events and conditions.
    pub fn message(&self) -> Cow<'_, str> {
        match self {
            ApiError::Refused { message, .. } => message.into(),
            ApiError::Broken(error) => error.to_string().into(),
        }
    }
}

/// The innermost cause, on one line: the outer errors only say that a request failed.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

impl ApiError {
    /// An error that callers handle like a conflict.
    pub fn stale(message: String) -> ApiError {
        ApiError::Refused { code: 409, message, object: String::new(), causes: Vec::new() }
    }

    pub fn refused(status: kube::core::Status) -> ApiError {
        let (object, causes) = status.details.map(|details| (details.name, details.causes)).unwrap_or_default();
        let causes = causes.into_iter().map(|cause| cause.reason).collect();
        ApiError::Refused { code: status.code, message: status.message, object, causes }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> ApiError {
        match error {
            kube::Error::Api(status) => ApiError::refused(*status),
            error => ApiError::Broken(error),
        }
    }
}

/// A client that takes paths and JSON values.
#[derive(Clone)]
pub struct Api {
    pub client: Client,
    decoded: DecodeCache,
    scope: NamespaceScope,
}

const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,\
                        application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";

impl Api {
    pub fn new(client: Client) -> Api {
        Api::sharing(client, &DecodeCache::default())
    }

    /// Shares decoded objects with the other users of `decoded`.
    pub fn sharing(client: Client, decoded: &DecodeCache) -> Api {
        Api { client, decoded: decoded.clone(), scope: NamespaceScope::default() }
    }

    /// Restricts watches to these namespaces.
    pub fn within(self, scope: &NamespaceScope) -> Api {
        Api { scope: scope.clone(), ..self }
    }

    pub fn scope(&self) -> &NamespaceScope {
        &self.scope
    }

    pub fn decoded(&self) -> &DecodeCache {
        &self.decoded
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: Option<&Value>) -> Result<Arc<Value>, ApiError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(unreadable)?.unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, media)
            .header(http::header::ACCEPT, JSON);
        let text = whole(self.ask(request, body).await?).await?;
        self.decoded.object(&text).map_err(unreadable)
    }

    /// Sends a request. An error status in the response becomes an error.
    async fn ask(&self, request: http::request::Builder, body: Vec<u8>) -> Result<http::Response<Body>, ApiError> {
        let request = request.body(Body::from(body));
        let response =
            self.client.send(request.map_err(|error| ApiError::Broken(kube::Error::HttpError(error)))?).await?;
        let code = response.status();
        if !code.is_client_error() && !code.is_server_error() {
            return Ok(response);
        }
        let text = whole(response).await?;
        let status = serde_json::from_slice(&text).unwrap_or_else(|_| kube::core::Status {
            message: String::from_utf8_lossy(&text).into_owned(),
            ..kube::core::Status::default()
        });
        Err(ApiError::refused(kube::core::Status { code: code.as_u16(), ..status }))
    }

    async fn text(&self, path: &str, accept: &str) -> Result<Bytes, ApiError> {
        whole(self.ask(http::Request::get(path).header(http::header::ACCEPT, accept), Vec::new()).await?).await
    }

    /// GET of a response that is read as a stream.
    pub async fn stream(&self, path: &str) -> Result<Body, ApiError> {
        let request = http::Request::get(path).header(http::header::ACCEPT, JSON);
        Ok(self.ask(request, Vec::new()).await?.into_body())
    }

    pub async fn get(&self, path: &str) -> Result<Arc<Value>, ApiError> {
        self.decoded.object(&self.text(path, JSON).await?).map_err(unreadable)
    }
    /// GET of the metadata of an object, or of the items of a list.
    pub async fn metadata(&self, path: &str) -> Result<Arc<Value>, ApiError> {
        self.decoded.object(&self.text(path, METADATA).await?).map_err(unreadable)
    }
    /// GET that returns `None` if the server says that the object does not exist. It is an error if the kind
    /// is not served, or if a proxy does not know the path: irreversible actions may depend on the result.
    pub async fn find(&self, path: &str) -> Result<Option<Arc<Value>>, ApiError> {
        self.get_unless(path, ApiError::is_absent).await
    }
    /// Like [`Api::find`], for irreversible actions: a response that took too long may be out of date and is
    /// an error (decision 22).
    pub async fn find_promptly(&self, path: &str) -> Result<Option<Arc<Value>>, ApiError> {
        within(PROMPT, path, self.find(path)).await
    }
    /// Like [`Api::find`], but also returns `None` if the server does not serve the kind.
    pub async fn find_if_served(&self, path: &str) -> Result<Option<Arc<Value>>, ApiError> {
        self.get_unless(path, ApiError::is_not_found).await
    }
    async fn get_unless(
        &self,
        path: &str,
        is_missing: impl Fn(&ApiError) -> bool,
    ) -> Result<Option<Arc<Value>>, ApiError> {
        match self.get(path).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
    pub async fn create(&self, path: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        self.send("POST", path, "application/json", Some(body)).await
    }
    pub async fn replace(&self, path: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        self.send("PUT", path, "application/json", Some(body)).await
    }
    pub async fn merge(&self, path: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        self.send("PATCH", path, "application/merge-patch+json", Some(body)).await
    }
    /// A merge patch that returns `None` if the object does not exist.
    pub async fn merge_if_there(&self, path: &str, body: &Value) -> Result<Option<Arc<Value>>, ApiError> {
        match self.merge(path, body).await {
            Err(error) if error.is_absent() => Ok(None),
            result => result.map(Some),
        }
    }
    pub async fn strategic(&self, path: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        self.send("PATCH", path, "application/strategic-merge-patch+json", Some(body)).await
    }
    /// Server-side apply as `manager`, with force: takes over fields that other managers own.
    pub async fn apply(&self, path: &str, manager: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        self.send("PATCH", &path, "application/apply-patch+yaml", Some(body)).await
    }
    /// Whether the server would admit this apply: a dry run.
    pub async fn check_apply(&self, path: &str, manager: &str, body: &Value) -> Result<Arc<Value>, ApiError> {
        let path = format!("{path}?fieldManager={manager}&force=true&dryRun=All");
        self.send("PATCH", &path, "application/apply-patch+yaml", Some(body)).await
    }
    pub async fn delete(&self, path: &str, options: &Value) -> Result<Arc<Value>, ApiError> {
        self.send("DELETE", path, "application/json", Some(options)).await
    }

    /// Visits all objects of a collection, page by page. Returns the resourceVersion of the list.
    pub async fn each(&self, path: &str, visit: impl FnMut(&Arc<Value>)) -> Result<String, ApiError> {
        self.pages(path, JSON, Duration::MAX, visit).await
    }

    /// Like [`Api::each`], for irreversible actions: each page must arrive in time, as in
    /// [`Api::find_promptly`]. The list as a whole may take longer.
    pub async fn each_promptly(&self, path: &str, visit: impl FnMut(&Arc<Value>)) -> Result<(), ApiError> {
        self.pages(path, JSON, PROMPT, visit).await.map(drop)
    }

    /// Visits the metadata of all objects of a collection, page by page. Returns the resourceVersion of the
    /// list.
    pub async fn each_metadata(&self, path: &str, mut visit: impl FnMut(&Value)) -> Result<String, ApiError> {
        self.pages(path, METADATA, Duration::MAX, |object| visit(object)).await
    }

    async fn pages(
        &self,
        path: &str,
        accept: &str,
        time_max: Duration,
        mut visit: impl FnMut(&Arc<Value>),
    ) -> Result<String, ApiError> {
        let mut token = String::new();
        loop {
            let page = self.page_as(path, accept, "", &token, |text, decoded| decoded.object(text));
            let page = within(time_max, path, page).await?;
            page.items.iter().for_each(&mut visit);
            match page.next {
                Some(next) => token = next,
                None => return Ok(page.version),
            }
        }
    }

    /// Reads one page of a collection, from the continue token on; `take` decodes the text of each object.
    pub async fn page<T>(
        &self,
        path: &str,
        selector: &str,
        token: &str,
        take: impl Fn(&[u8], &DecodeCache) -> Result<T, serde_json::Error>,
    ) -> Result<Page<T>, ApiError> {
        self.page_as(path, JSON, selector, token, take).await
    }

    async fn page_as<T>(
        &self,
        path: &str,
        accept: &str,
        selector: &str,
        token: &str,
        take: impl Fn(&[u8], &DecodeCache) -> Result<T, serde_json::Error>,
    ) -> Result<Page<T>, ApiError> {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(default)]
            metadata: Position,
            #[serde(borrow)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Position {
            resource_version: String,
            r#continue: String,
        }
        let more = if token.is_empty() { String::new() } else { format!("&continue={token}") };
        let text = self.text(&format!("{path}?limit={PAGE}{selector}{more}"), accept).await?;
        let List { metadata, items } = serde_json::from_slice(&text).map_err(unreadable)?;
        let items = items.unwrap_or_default().into_iter().map(|item| take(item.get().as_bytes(), &self.decoded));
        let items = items.collect::<Result<_, _>>().map_err(unreadable)?;
        let next = Some(metadata.r#continue).filter(|token| !token.is_empty());
        Ok(Page { items, version: metadata.resource_version, next })
    }

    /// Returns the last state of a cluster-scoped object that was deleted after `version`, if the server
    /// still has that event. An empty `uid` matches any object of that name.
    pub async fn last_state(
        &self,
        resource: &Resource,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<Option<Value>, ApiError> {
        let ends = self.ends(resource, name, version).await?.unwrap_or_default();
        Ok(ends.into_iter().find(|object| uid.is_empty() || object::access::uid(object) == uid))
    }

    /// Returns the last states of the cluster-scoped objects of this name that were deleted since `version`;
    /// `None` if the server has compacted these events.
    pub async fn ends(&self, resource: &Resource, name: &str, version: &str) -> Result<Option<Vec<Value>>, ApiError> {
        let path = resource.collection("");
        let length = HISTORY_LENGTH.as_secs();
        let query = format!(
            "watch=true&timeoutSeconds={length}&resourceVersion={version}&fieldSelector=metadata.name%3D{name}"
        );
        let asked = Instant::now();
        let text = match self.text(&format!("{path}?{query}"), JSON).await {
            Err(error) if error.code() == 410 => return Ok(None),
            result => result?,
        };
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events: Vec<Value> = lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(unreadable)?;
        let is = |event: &Value, kind| event.text(&["type"]) == kind;
        // Other servers report a compacted version as an event of the watch.
        if let Some(error) = events.iter().find(|event| is(event, "ERROR")) {
            return match error.at(&["object", "code"]).and_then(Value::as_u64) {
                Some(410) => Ok(None),
                _ => Err(ApiError::stale(format!("the watch of past events of {path} failed: {}", error["object"]))),
            };
        }
        // A server that shuts down ends its watches early and without an error. No event then proves nothing.
        if asked.elapsed() < HISTORY_LENGTH {
            return Err(ApiError::stale(format!("the watch of past events of {path} ended early; retrying")));
        }
        let ends = events.into_iter().filter(|event| is(event, "DELETED"));
        Ok(Some(ends.filter_map(|mut event| event.cut(&["object"])).collect()))
    }

    /// GET of a document of which the caller may have a copy: `None` if it still has this `etag`.
    pub async fn document(&self, path: &str, accept: &str, etag: &str) -> Result<Option<Document>, ApiError> {
        let mut request = http::Request::get(path).header(http::header::ACCEPT, accept);
        if !etag.is_empty() {
            request = request.header(http::header::IF_NONE_MATCH, etag);
        }
        let response = self.ask(request, Vec::new()).await?;
        if response.status() == http::StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let etag = response.headers().get(http::header::ETAG);
        let etag = etag.and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let value = serde_json::from_slice(&whole(response).await?).map_err(unreadable)?;
        Ok(Some(Document { etag, value }))
    }
}

/// Returns the response, or an error if it took longer than `time_max`.
async fn within<A>(
    time_max: Duration,
    path: &str,
    answer: impl Future<Output = Result<A, ApiError>>,
) -> Result<A, ApiError> {
    let asked = Instant::now();
    let answer = answer.await?;
    if asked.elapsed() > time_max {
        return Err(ApiError::stale(format!("the response to {path} took too long; retrying")));
    }
    Ok(answer)
}

/// A page of a list.
pub struct Page<T> {
    pub items: Vec<T>,
    /// The resourceVersion of the list.
    pub version: String,
    /// The continue token of the next page; `None` on the last page.
    pub next: Option<String>,
}

async fn whole(response: http::Response<Body>) -> Result<Bytes, ApiError> {
    Ok(response.into_body().collect_bytes().await?)
}

pub fn unreadable(error: serde_json::Error) -> ApiError {
    ApiError::Broken(kube::Error::SerdeError(error))
}

/// A document and its ETag.
pub struct Document {
    pub etag: String,
    pub value: Value,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test(start_paused = true)]
    async fn a_late_response_is_an_error() {
        for (takes, counts) in [(1, true), (3, false)] {
            let server = tower::service_fn(move |_: http::Request<Body>| async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                let object = br#"{"metadata": {"name": "a"}, "items": []}"#.to_vec();
                Ok::<_, Infallible>(http::Response::new(Body::from(object)))
            });
            let api = Api::new(Client::new(server, "default"));
            assert!(api.find("/a").await.is_ok_and(|found| found.is_some()));
            let answer = api.find_promptly("/a").await;
            assert_eq!(answer.is_ok_and(|found| found.is_some()), counts, "after {takes} s");
            assert!(api.each("/a", |_| ()).await.is_ok());
            assert_eq!(api.each_promptly("/a", |_| ()).await.is_ok(), counts, "a list after {takes} s");
        }
    }

    /// A watch may end before its first event because the server stops, or with an error other than 410.
    #[tokio::test(start_paused = true)]
    async fn an_interrupted_watch_of_past_events_is_an_error() {
        let end = r#"{"type": "DELETED", "object": {"metadata": {"name": "v"}}}"#;
        let forgotten = r#"{"type": "ERROR", "object": {"kind": "Status", "code": 410}}"#;
        let broken = r#"{"type": "ERROR", "object": {"kind": "Status", "code": 500}}"#;
        let cases = [
            (0, "", None),
            (1, "", Some(Some(0))),
            (1, end, Some(Some(1))),
            (0, end, None),
            (0, forgotten, Some(None)),
            (1, broken, None),
            (1, r#"{"type": "DELETED", "obj"#, None),
        ];
        for (lasts, told, wanted) in cases {
            let server = tower::service_fn(move |_: http::Request<Body>| async move {
                tokio::time::sleep(Duration::from_secs(lasts)).await;
                Ok::<_, Infallible>(http::Response::new(Body::from(told.as_bytes().to_vec())))
            });
            let api = Api::new(Client::new(server, "default"));
            let volumes = Resource::new("v1", "PersistentVolume", "persistentvolumes", false);
            let ends = api.ends(&volumes, "v", "7").await.ok().map(|ends| ends.map(|ends| ends.len()));
            assert_eq!(ends, wanted, "{told} for {lasts} s");
        }
    }
}
