//! Requests to an API server, untyped: paths and JSON.

use kube::Client;
use object::Value;
use object::access::Access;
use std::sync::Arc;

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

    /// The URL of the collection, in a namespace or (`""`) everywhere.
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
            // Names of RBAC objects may hold anything that a path can carry when it is escaped.
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
    /// The server said no.
    #[error("{message} ({code})")]
    Refused { code: u16, reason: String, message: String },
    /// There was no answer, or not one that can be read.
    #[error(transparent)]
    Broken(kube::Error),
}

impl ApiError {
    pub fn code(&self) -> u16 {
        match self {
            ApiError::Refused { code, .. } => *code,
            ApiError::Broken(_) => 0,
        }
    }
    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }
    pub fn is_conflict(&self) -> bool {
        self.code() == 409
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> ApiError {
        match error {
            kube::Error::Api(status) => {
                ApiError::Refused { code: status.code, reason: status.reason.clone(), message: status.message.clone() }
            }
            error => ApiError::Broken(error),
        }
    }
}

/// A client that speaks paths and JSON.
#[derive(Clone)]
pub struct Api {
    pub client: Client,
}

impl Api {
    pub fn new(client: Client) -> Api {
        Api { client }
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        let bytes = body.map(|value| value.to_string().into_bytes()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, media)
            .header(http::header::ACCEPT, "application/json")
            .body(bytes)
            .map_err(|error| ApiError::Broken(kube::Error::HttpError(error)))?;
        Ok(self.client.request::<Value>(request).await?)
    }

    pub async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.send("GET", path, "application/json", None).await
    }
    /// GET of the metadata alone: of an object, or of a list's items.
    pub async fn metadata(&self, path: &str) -> Result<Value, ApiError> {
        let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,\
                      application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, accept)
            .body(Vec::new())
            .map_err(|error| ApiError::Broken(kube::Error::HttpError(error)))?;
        Ok(self.client.request::<Value>(request).await?)
    }
    /// GET where absence is an answer.
    pub async fn find(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.get(path).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
    pub async fn create(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send("POST", path, "application/json", Some(body)).await
    }
    pub async fn replace(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send("PUT", path, "application/json", Some(body)).await
    }
    pub async fn merge(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send("PATCH", path, "application/merge-patch+json", Some(body)).await
    }
    pub async fn strategic(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.send("PATCH", path, "application/strategic-merge-patch+json", Some(body)).await
    }
    /// Server-side apply under `manager`, taking fields from others.
    pub async fn apply(&self, path: &str, manager: &str, body: &Value) -> Result<Value, ApiError> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        self.send("PATCH", &path, "application/apply-patch+yaml", Some(body)).await
    }
    pub async fn delete(&self, path: &str, options: &Value) -> Result<Value, ApiError> {
        self.send("DELETE", path, "application/json", Some(options)).await
    }

    /// All resources that can be listed, watched and deleted, in their preferred versions.
    pub async fn discover(&self) -> Result<Vec<Resource>, ApiError> {
        let mut group_versions = vec!["api/v1".to_owned()];
        let groups = self.get("/apis").await?;
        for group in groups.items(&["groups"]) {
            group_versions.push(format!("apis/{}", group.text(&["preferredVersion", "groupVersion"])));
        }
        let mut found = Vec::new();
        for group_version in group_versions {
            // A group that vanished between the two requests is not there any more: nothing to find in it.
            let Some(list) = self.find(&format!("/{group_version}")).await? else { continue };
            let api_version = list.text(&["groupVersion"]).to_owned();
            found.extend(list.items(&["resources"]).iter().filter_map(|resource| collectable(&api_version, resource)));
        }
        Ok(found)
    }
}

fn collectable(api_version: &str, resource: &Value) -> Option<Resource> {
    let plural = resource.text(&["name"]);
    let can = |verb: &str| resource.items(&["verbs"]).iter().any(|has| has == verb);
    if plural.contains('/') || !["list", "watch", "delete"].iter().all(|verb| can(verb)) {
        return None;
    }
    Some(Resource::new(api_version, resource.text(&["kind"]), plural, resource.flag(&["namespaced"])))
}
