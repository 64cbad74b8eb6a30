//! Cache of discovery and OpenAPI documents. A document is built at its first request and kept until the kinds
//! change.

use crate::app::Server;
use crate::body::Body;
use crate::discovery::{self, Document, Form};
use crate::negotiate;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, header};
use object::{Kinds, Status, Value, openapi};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Encoded documents by path and form, all built from the same table of kinds.
#[derive(Default)]
pub struct DiscoveryCache {
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    kinds: Option<Arc<Kinds>>,
    documents: HashMap<(String, Variant), Arc<Finished>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variant {
    Discovery(Form),
    OpenApi,
    OpenApiProtobuf,
}

struct Finished {
    content_type: &'static str,
    bytes: Bytes,
    packed: Bytes,
    etag: String,
}

impl DiscoveryCache {
    /// Returns the document at a path without trailing slash, or `None` if there is none.
    pub fn answer(&self, server: &Server, parts: &Parts, path: &str) -> Option<Result<Response<Body>, Status>> {
        let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let variant = match path {
            "/openapi/v2" if accept.contains(openapi::V2_PROTOBUF_ASKED) => Variant::OpenApiProtobuf,
            path if path.starts_with("/openapi/") => Variant::OpenApi,
            _ => Variant::Discovery(Form::choose(accept)),
        };
        let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let address = host.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str)).unwrap_or("");
        let kinds = server.registry.kinds();
        let finished = self.find(server, &kinds, path, variant, address)?;
        Some(send(&finished, parts))
    }

    fn find(
        &self,
        server: &Server,
        kinds: &Arc<Kinds>,
        path: &str,
        variant: Variant,
        address: &str,
    ) -> Option<Arc<Finished>> {
        // The plain core document contains the address of the request, so it is not cached.
        let kept = !(path == "/api" && variant == Variant::Discovery(Form::Plain));
        let key = (path.to_owned(), variant);
        {
            let mut made = self.made.lock().expect("no panic happens under this lock");
            if !made.kinds.as_ref().is_some_and(|of| Arc::ptr_eq(of, kinds)) {
                made.kinds = Some(kinds.clone());
                made.documents.clear();
            }
            if let Some(finished) = made.documents.get(&key) {
                return Some(finished.clone());
            }
        }
        let finished = Arc::new(make(server, kinds, path, variant, address)?);
        if kept {
            let mut made = self.made.lock().expect("no panic happens under this lock");
            if made.kinds.as_ref().is_some_and(|of| Arc::ptr_eq(of, kinds)) {
                made.documents.insert(key, finished.clone());
            }
        }
        Some(finished)
    }
}

fn make(server: &Server, kinds: &Kinds, path: &str, variant: Variant, address: &str) -> Option<Finished> {
    let plain = |value: Value| Document { value, content_type: "application/json" };
    let words: Vec<&str> = path.split('/').skip(1).collect();
    let form = match variant {
        Variant::Discovery(form) => form,
        _ => Form::Plain,
    };
    let document = match words.as_slice() {
        [] | [""] => plain(index(kinds)),
        ["api"] => discovery::api(kinds, form, address),
        ["apis"] => discovery::apis(kinds, form),
        ["api", version] => plain(discovery::resources(kinds, "", version)?),
        ["apis", group] => plain(discovery::group(kinds, group)?),
        ["apis", group, version] => plain(discovery::resources(kinds, group, version)?),
        ["version"] => plain(crate::version::document()),
        ["openapi", "v2"] if variant == Variant::OpenApiProtobuf => {
            let bytes = openapi::v2_protobuf(&openapi::v2(kinds, crate::version::GIT_VERSION));
            return Some(finish(openapi::V2_PROTOBUF_TYPE, Bytes::from(bytes)));
        }
        ["openapi", "v2"] => plain(openapi::v2(kinds, crate::version::GIT_VERSION)),
        ["openapi", "v3"] => plain(openapi::v3_index(kinds)),
        ["openapi", "v3", "api", version] => plain(openapi::v3(kinds, "", version, crate::version::GIT_VERSION)?),
        ["openapi", "v3", "apis", group, version] => {
            plain(openapi::v3(kinds, group, version, crate::version::GIT_VERSION)?)
        }
        [".well-known", "openid-configuration"] => {
            plain(server.authn.tokens.openid_configuration(server.authn.tokens.issuer()))
        }
        ["openid", "v1", "jwks"] => plain(server.authn.tokens.jwks()),
        _ => return None,
    };
    Some(finish(document.content_type, crate::render::to_bytes(&document.value)))
}

/// The list of paths at the root.
fn index(kinds: &Kinds) -> Value {
    let mut paths: std::collections::BTreeSet<String> =
        ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            .map(str::to_owned)
            .into();
    for kind in kinds.iter() {
        if kind.group.is_empty() {
            paths.insert(format!("/api/{}", kind.version));
        } else {
            paths.insert(format!("/apis/{}", kind.group));
            paths.insert(format!("/apis/{}/{}", kind.group, kind.version));
        }
    }
    object::json!({"paths": paths})
}

fn finish(content_type: &'static str, bytes: Bytes) -> Finished {
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let etag: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02X}")).collect();
    Finished { content_type, packed: crate::app::gzip(&bytes), bytes, etag: format!("\"{etag}\"") }
}

fn send(finished: &Finished, parts: &Parts) -> Result<Response<Body>, Status> {
    let builder = Response::builder()
        .header(header::CONTENT_TYPE, finished.content_type)
        .header(header::ETAG, &finished.etag)
        .header(header::VARY, "Accept, Accept-Encoding");
    let known = parts.headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let built = if known.is_some_and(|tags| tags.contains(&finished.etag)) {
        builder.status(304).body(Body::empty())
    } else if negotiate::takes_gzip(&parts.headers) && finished.bytes.len() > 1024 {
        builder.header(header::CONTENT_ENCODING, "gzip").body(Body::Once(finished.packed.clone()))
    } else {
        builder.body(Body::Once(finished.bytes.clone()))
    };
    built.map_err(Status::internal)
}
