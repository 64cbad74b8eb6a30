//! Paths that are not resources: health, version, discovery, OpenAPI, metrics, backup.

use crate::app::Server;
use crate::attributes::{Attributes, User};
use crate::authn::CertificateRequest;
use crate::body::Body;
use crate::exposition::Format;
use crate::request::Query;
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Response, request::Parts};
use object::Status;
use std::time::Duration;

/// The whole store as one file. It contains every Secret and the keys of the CA.
pub const BACKUP_PATH: &str = "/mainstay/backup";

/// Signs a client certificate, which lets its holder act as the user in it. Query: `user`, `group` (repeatable),
/// `seconds` (lifetime), `publicKey` (PEM).
pub const CLIENT_CERTIFICATE_PATH: &str = "/mainstay/clientcertificate";

/// The permission that a request for this path needs. The backup needs the verb `backup` on the resource `stores` in
/// the group `mainstay.dev` instead of the path. A client certificate needs the verb `sign` on `clientcertificates` in
/// the same group. The reason: rules for the path `*` are often granted to monitoring, and rules that read every
/// resource to auditors. Of the rules with wildcards, only those with every verb on every resource include these two.
pub fn attributes(method: &Method, path: &str) -> Attributes {
    let own = match trimmed(path) {
        BACKUP_PATH => Some(("backup", "stores")),
        CLIENT_CERTIFICATE_PATH => Some(("sign", "clientcertificates")),
        _ => None,
    };
    if let Some((verb, resource)) = own {
        return Attributes {
            verb: verb.to_owned(),
            group: "mainstay.dev".to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            ..Attributes::default()
        };
    }
    Attributes { verb: method.as_str().to_ascii_lowercase(), path: path.to_owned(), ..Attributes::default() }
}

/// The path without trailing slashes. [`attributes`] and [`answer`] must agree on it.
fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

pub async fn answer(
    server: &Server,
    parts: &Parts,
    path: &str,
    query: &Query,
    user: &User,
) -> Result<Response<Body>, Status> {
    if trimmed(path) == CLIENT_CERTIFICATE_PATH {
        return if parts.method == Method::POST {
            sign(server, query, user)
        } else {
            Err(Status::method_not_allowed())
        };
    }
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Err(Status::method_not_allowed());
    }
    let trimmed = trimmed(path);
    if trimmed == BACKUP_PATH {
        return if parts.method == Method::GET { backup(server).await } else { Err(Status::method_not_allowed()) };
    }
    let words: Vec<&str> = trimmed.split('/').skip(1).collect();
    match words.as_slice() {
        [check @ ("healthz" | "livez" | "readyz"), rest @ ..] => health(server, check, rest, query),
        ["metrics"] => {
            server.limits.refresh();
            let format = Format::negotiate(&parts.headers);
            let page = server.metrics.page(&server.registry.kinds(), format).map_err(Status::internal)?;
            Ok(plain(200, format.content_type(), page))
        }
        _ => server.discovery_cache.answer(server, parts, trimmed).ok_or_else(Status::no_such_path)?,
    }
}

async fn backup(server: &Server) -> Result<Response<Body>, Status> {
    let export = server.store.export().await.map_err(|error| crate::verbs::store_status(&error))?;
    // If reading fails, the file has no end record, so readers detect it.
    let pieces = store::backup::encode(export).take_while(|piece| {
        if let Err(error) = piece {
            tracing::error!(%error, "a backup was aborted");
        }
        std::future::ready(piece.is_ok())
    });
    let body = Body::Stream(Box::pin(pieces.filter_map(|piece| std::future::ready(piece.ok()))));
    Response::builder()
        .header(http::header::CONTENT_TYPE, "application/octet-stream")
        .body(body)
        .map_err(Status::internal)
}

/// Responds with a client certificate in PEM.
fn sign(server: &Server, query: &Query, by: &User) -> Result<Response<Body>, Status> {
    let Some(ca) = &server.ca else { return Err(Status::no_such_path()) };
    let seconds = query.get("seconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    let request = CertificateRequest {
        user: query.get("user").unwrap_or_default().to_owned(),
        groups: query.all("group").map(str::to_owned).collect(),
        lifetime: Duration::from_secs(seconds),
    };
    request.validate().map_err(Status::bad_request)?;
    let public_key = query.get("publicKey").unwrap_or_default();
    let signed = request.sign(ca, public_key, server.env.clock.now());
    let pem = signed.map_err(|error| Status::bad_request(error.to_string()))?;
    tracing::info!(user = request.user, groups = ?request.groups, seconds, by = by.name, "signed a client certificate");
    Ok(plain(200, "application/x-pem-file", pem))
}

pub fn plain(code: u16, content_type: &str, text: impl Into<Bytes>) -> Response<Body> {
    let built = Response::builder().status(code).header(http::header::CONTENT_TYPE, content_type);
    built.body(Body::Once(text.into())).unwrap_or_else(|error| crate::app::status_response(&Status::internal(error)))
}

/// The checks of each health path, by name.
fn checks(server: &Server, path: &str) -> Vec<(&'static str, Result<(), String>)> {
    let mut checks = vec![("ping", Ok(())), ("store", server.store.healthy().map_err(|error| error.to_string()))];
    if path == "readyz" {
        let ready = if server.is_ready() { Ok(()) } else { Err("the server is starting or stopping".to_owned()) };
        checks.push(("serving", ready));
        checks.push(("store-space", server.store.out_of_space().map_or(Ok(()), Err)));
    }
    checks
}

fn health(server: &Server, path: &str, rest: &[&str], query: &Query) -> Result<Response<Body>, Status> {
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut checks = checks(server, path);
    match rest {
        [] => checks.retain(|(name, _)| !excluded.contains(name)),
        [name] => checks.retain(|(check, _)| check == name),
        _ => checks.clear(),
    }
    if checks.is_empty() {
        return Err(Status::no_such_path());
    }
    let failed = checks.iter().any(|(_, result)| result.is_err());
    if !failed && query.all("verbose").next().is_none() {
        return Ok(plain(200, "text/plain; charset=utf-8", "ok"));
    }
    let mut text = String::new();
    for (name, result) in &checks {
        match result {
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => text.push_str(&format!("[-]{name} failed: {why}\n")),
        }
    }
    text.push_str(&format!("{path} check {}\n", if failed { "failed" } else { "passed" }));
    Ok(plain(if failed { 500 } else { 200 }, "text/plain; charset=utf-8", text))
}
