//! Reports requests of controllers that were refused because a permission is missing: a metric, a log line and an
//! event each, so that the operator sees which permission is missing. The controllers themselves only retry,
//! and continue when it is granted.

use crate::api::Resource;
use crate::events::{EventSubject, Events};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full};
use kube::Client;
use kube::client::Body;
use object::Value;
use object::access::Access;
use object::status::MISSING_PERMISSION;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The same missing permission is reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A permission that a ServiceAccount lacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MissingPermission {
    /// The ServiceAccount that the controller runs as.
    account: String,
    verb: String,
    group: String,
    /// With its subresource; for other requests, the path.
    resource: String,
}

/// The refused requests of all controllers of a process.
#[derive(Clone, Default)]
pub struct Refusals {
    counts: Family<MissingPermission, Counter>,
    reported: Arc<Mutex<Reported>>,
    pending: Arc<Notify>,
}

#[derive(Default)]
struct Reported {
    at: HashMap<MissingPermission, Instant>,
    /// Those without an event yet.
    unreported: Vec<MissingPermission>,
}

impl Refusals {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests of controllers that were refused because a permission is missing";
        registry.register("controller_requests_forbidden", help, self.counts.clone());
    }

    /// Returns a client of `service` that records refusals as those of this ServiceAccount.
    pub(crate) fn client<S, B>(&self, account: &str, service: S) -> Client
    where
        S: tower::Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        Client::new(RefusalRecorder { inner: service, account: account.into(), refusals: self.clone() }, "default")
    }

    fn note(&self, account: &str, (method, uri): &(Method, Uri), status: &[u8]) {
        let status: Value = serde_json::from_slice(status).unwrap_or_default();
        let Some(missing) = MissingPermission::of(account, method, uri, &status) else { return };
        self.counts.get_or_create(&missing).inc();
        let mut reported = self.reported();
        if reported.at.get(&missing).is_some_and(|at| at.elapsed() < REPORT_EVERY) {
            return;
        }
        tracing::warn!("{}", missing.sentence());
        reported.at.insert(missing.clone(), Instant::now());
        reported.unreported.push(missing);
        self.pending.notify_one();
    }

    /// Records an event per missing permission, on the affected ServiceAccount. Never returns.
    pub async fn report(self, recorders: HashMap<&'static str, Events>) {
        let accounts = Resource::new("v1", "ServiceAccount", "serviceaccounts", true);
        loop {
            let unreported = std::mem::take(&mut self.reported().unreported);
            for missing in unreported {
                let Some(events) = recorders.get(&*missing.account) else { continue };
                let about =
                    EventSubject { resource: &accounts, namespace: "kube-system", name: &missing.account, uid: "" };
                events.record(&about, "Warning", "Forbidden", &missing.sentence());
            }
            self.pending.notified().await;
        }
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().expect("no panic happens under this lock")
    }
}

impl MissingPermission {
    /// The missing permission behind a 403; `None` if the request was refused for another reason, such as a quota.
    ///
    /// A Mainstay server names the permission in a cause. Kubernetes names it in prose only: then it is taken to be
    /// the one that the request itself needs, unless a cause names another reason.
    fn of(account: &str, method: &Method, uri: &Uri, status: &Value) -> Option<MissingPermission> {
        let causes = status.items(&["details", "causes"]);
        let named = causes.iter().find(|cause| cause.text(&["reason"]) == MISSING_PERMISSION);
        match named {
            Some(cause) => MissingPermission::of_cause(account, cause.text(&["field"])),
            None if causes.is_empty() => MissingPermission::of_request(account, method, uri),
            None => None,
        }
    }

    /// Reads the field that [`object::Status::missing_permission`] writes.
    fn of_cause(account: &str, field: &str) -> Option<MissingPermission> {
        let (verb, what) = field.split_once(' ')?;
        let (resource, group) = match what.split_once('.') {
            Some((resource, group)) if !what.starts_with('/') => (resource, group),
            _ => (what, ""),
        };
        Some(MissingPermission {
            account: account.into(),
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
        })
    }

    /// The permission that a request needs, by its method and path.
    fn of_request(account: &str, method: &Method, uri: &Uri) -> Option<MissingPermission> {
        let segments: Vec<&str> = uri.path().split('/').skip(1).collect();
        let (group, rest) = match &segments[..] {
            ["api", _version, rest @ ..] if !rest.is_empty() => ("", rest),
            ["apis", group, _version, rest @ ..] if !rest.is_empty() => (*group, rest),
            _ => return Some(MissingPermission::of_path(account, method, uri)),
        };
        // `namespaces/<name>/<resource>`, but not the subresources of a Namespace.
        let rest = match rest {
            ["namespaces", _, resource, ..] if !matches!(*resource, "status" | "finalize") => &rest[2..],
            _ => rest,
        };
        let (resource, name) = (rest[0], rest.get(1));
        let resource = rest.get(2).map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
        let watches = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let verb = match (method, name) {
            (&Method::GET, _) if watches => "watch",
            (&Method::GET, None) => "list",
            (&Method::GET, Some(_)) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, None) => "deletecollection",
            (&Method::DELETE, Some(_)) => "delete",
            _ => return None,
        };
        Some(MissingPermission { account: account.into(), verb: verb.into(), group: group.into(), resource })
    }

    fn of_path(account: &str, method: &Method, uri: &Uri) -> MissingPermission {
        let verb = method.as_str().to_lowercase();
        MissingPermission { account: account.into(), verb, group: String::new(), resource: uri.path().into() }
    }

    fn sentence(&self) -> String {
        let MissingPermission { account, verb, group, resource } = self;
        let of = if group.is_empty() { "" } else { "." };
        format!(
            "{account} may not {verb} {resource}{of}{group}: add this permission to its role; work that needs it is retried"
        )
    }
}

/// A service that records refusals.
struct RefusalRecorder<S> {
    inner: S,
    account: Arc<str>,
    refusals: Refusals,
}

impl<S, B> tower::Service<Request<Body>> for RefusalRecorder<S>
where
    S: tower::Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = (request.method().clone(), request.uri().clone());
        let (answer, account, refusals) = (self.inner.call(request), self.account.clone(), self.refusals.clone());
        Box::pin(async move {
            let response = answer.await?;
            if response.status() != StatusCode::FORBIDDEN {
                return Ok(response.map(Either::Left));
            }
            let (parts, body) = response.into_parts();
            // An incomplete body is still a refusal.
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            refusals.note(&account, &asked, &bytes);
            Ok(Response::from_parts(parts, Either::Right(Full::new(bytes))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Status, json};

    fn missing(method: &Method, uri: &str, status: &Value) -> Option<String> {
        let missing = MissingPermission::of("a", method, &uri.parse().expect("a path"), status);
        missing.map(|missing| missing.sentence().split_once(':').expect("a sentence").0.to_owned())
    }

    #[test]
    fn a_mainstay_server_names_the_missing_permission() {
        let refused = || Status::forbidden("", "x", "", "a text that is not read");
        for (verb, group, resource, wanted) in [
            ("list", "", "pods", "a may not list pods"),
            ("update", "apps", "statefulsets/status", "a may not update statefulsets/status.apps"),
            ("get", "", "/apis/x.y", "a may not get /apis/x.y"),
            ("escalate", "rbac.example.com", "roles", "a may not escalate roles.rbac.example.com"),
        ] {
            let status = refused().missing_permission(verb, group, resource).to_value();
            assert_eq!(missing(&Method::PATCH, "/api/v1/nodes/n", &status).as_deref(), Some(wanted));
        }
        let quota = refused().denied_by_admission().to_value();
        assert_eq!(missing(&Method::POST, "/api/v1/namespaces/n/pods", &quota), None);
        let ending = refused().with_cause("NamespaceTerminating", "", "").to_value();
        assert_eq!(missing(&Method::POST, "/api/v1/namespaces/n/pods", &ending), None);
    }

    #[test]
    fn for_other_servers_the_request_names_the_missing_permission() {
        let prose = json!({"message": "exceeded quota: any text"});
        for (method, uri, wanted) in [
            (Method::GET, "/api/v1/pods", Some("a may not list pods")),
            (Method::GET, "/api/v1/pods?watch=true&resourceVersion=1", Some("a may not watch pods")),
            (Method::GET, "/api/v1/namespaces/n/pods/p", Some("a may not get pods")),
            (Method::GET, "/api/v1/namespaces/n", Some("a may not get namespaces")),
            (Method::PUT, "/api/v1/namespaces/n/finalize", Some("a may not update namespaces/finalize")),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/n/controllerrevisions",
                Some("a may not create controllerrevisions.apps"),
            ),
            (
                Method::PUT,
                "/apis/apps/v1/namespaces/n/statefulsets/s/status",
                Some("a may not update statefulsets/status.apps"),
            ),
            (Method::PATCH, "/apis/apps/v1/namespaces/n/statefulsets/s", Some("a may not patch statefulsets.apps")),
            (Method::DELETE, "/api/v1/namespaces/n/pods", Some("a may not deletecollection pods")),
            (Method::DELETE, "/api/v1/namespaces/n/pods/p", Some("a may not delete pods")),
            (Method::GET, "/openapi/v3", Some("a may not get /openapi/v3")),
            (Method::GET, "/apis", Some("a may not get /apis")),
            (Method::GET, "/apis/apps/v1", Some("a may not get /apis/apps/v1")),
            (Method::OPTIONS, "/api/v1/pods", None),
        ] {
            assert_eq!(missing(&method, uri, &prose).as_deref(), wanted, "{method} {uri}");
        }
    }
}
