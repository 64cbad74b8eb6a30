//! What controllers are refused for lack of a right: counted, logged and told in an event, so that whoever runs them sees which
//! right is missing. The controllers themselves only try again, and go on as soon as they are given it.

use crate::api::Resource;
use crate::events::{About, Events};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use kube::Client;
use kube::client::Body;
use object::Value;
use object::access::Access;
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

/// The same right is spoken of this often at most, however often it is asked for.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A right that somebody lacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lack {
    /// The ServiceAccount whose rights the controller has.
    account: String,
    verb: String,
    group: String,
    /// With its subresource; a path where it is about none.
    resource: String,
}

/// What was refused to the controllers of a process.
#[derive(Clone, Default)]
pub struct Refusals {
    counts: Family<Lack, Counter>,
    told: Arc<Mutex<Told>>,
    news: Arc<Notify>,
}

#[derive(Default)]
struct Told {
    at: HashMap<Lack, Instant>,
    /// What no event tells of yet.
    open: Vec<Lack>,
}

impl Refusals {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests of controllers that were refused for lack of a right";
        registry.register("controller_requests_forbidden", help, self.counts.clone());
    }

    /// A client of `service` whose refusals are noted as those of this ServiceAccount.
    pub(crate) fn client<S, B>(&self, account: &str, service: S) -> Client
    where
        S: tower::Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        Client::new(Attentive { inner: service, account: account.into(), refusals: self.clone() }, "default")
    }

    fn note(&self, account: &str, status: &[u8]) {
        let status: Value = serde_json::from_slice(status).unwrap_or_default();
        let Some(lack) = Lack::read(account, status.text(&["message"])) else { return };
        self.counts.get_or_create(&lack).inc();
        let mut told = self.told();
        if told.at.get(&lack).is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            return;
        }
        tracing::warn!("{}", lack.sentence());
        told.at.insert(lack.clone(), Instant::now());
        told.open.push(lack);
        self.news.notify_one();
    }

    /// Tells of what is refused, each in the name of whom it is refused to. Does not end by itself.
    pub(crate) async fn tell(self, voices: HashMap<&'static str, Events>) {
        let accounts = Resource::new("v1", "ServiceAccount", "serviceaccounts", true);
        loop {
            let open = std::mem::take(&mut self.told().open);
            for lack in open {
                let Some(events) = voices.get(&*lack.account) else { continue };
                let about = About { resource: &accounts, namespace: "kube-system", name: &lack.account, uid: "" };
                events.say(&about, "Warning", "Forbidden", &lack.sentence());
            }
            self.news.notified().await;
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no panic happens under this lock")
    }
}

impl Lack {
    /// What an answer is about that says `User "…" cannot VERB resource "RESOURCE" in API group "GROUP"…`, or `cannot VERB path
    /// "PATH"`, or that a role would grant more than its writer has, or that who lets an owner wait may not. Others are refused for other
    /// reasons, such as quotas.
    fn read(account: &str, message: &str) -> Option<Lack> {
        let lack = |verb: &str, group: &str, resource: &str| Lack {
            account: account.into(),
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
        };
        let grants = ["attempting to grant RBAC permissions not currently held", "to use the aggregationRule"];
        if grants.iter().any(|text| message.contains(text)) {
            let (resource, group) = message.split(' ').next()?.split_once('.')?;
            return Some(lack("escalate", group, resource));
        }
        if message.contains("cannot set an ownerRef on a resource you can't delete") {
            let subject = message.split(' ').next()?;
            let (resource, group) = subject.split_once('.').unwrap_or((subject, ""));
            return Some(lack("delete", group, resource));
        }
        if message.contains("an ownerReference refers to a resource you can't set finalizers on") {
            // It does not say which: no other owners are made to wait by what we write.
            return Some(lack("update", "apps", "statefulsets/finalizers"));
        }
        let (_, rest) = message.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(' ')?;
        let quoted: Vec<&str> = rest.split('"').collect();
        match quoted[..] {
            ["resource ", resource, " in API group ", group, ..] => Some(lack(verb, group, resource)),
            ["path ", path, ..] if quoted.len() > 2 => Some(lack(verb, "", path)),
            _ => None,
        }
    }

    fn sentence(&self) -> String {
        let Lack { account, verb, group, resource } = self;
        let of = if group.is_empty() { "" } else { "." };
        format!(
            "{account} may not {verb} {resource}{of}{group}: give the right to its role; what depends on it waits until then"
        )
    }
}

/// A service that listens for refusals.
struct Attentive<S> {
    inner: S,
    account: Arc<str>,
    refusals: Refusals,
}

impl<S, B> tower::Service<Request<Body>> for Attentive<S>
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
        let (answer, account, refusals) = (self.inner.call(request), self.account.clone(), self.refusals.clone());
        Box::pin(async move {
            let response = answer.await?;
            if response.status() != StatusCode::FORBIDDEN {
                return Ok(response.map(Either::Left));
            }
            let (parts, body) = response.into_parts();
            // A refusal that breaks off in its middle is one all the same.
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            refusals.note(&account, &bytes);
            Ok(Response::from_parts(parts, Either::Right(Full::new(bytes))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacks_are_read_from_refusals_and_said_in_a_sentence() {
        let cases = [
            (
                r#"pods is forbidden: User "system:serviceaccount:kube-system:a" cannot list resource "pods" in API group "" at the cluster scope"#,
                Some("a may not list pods"),
            ),
            (
                r#"statefulsets.apps "web" is forbidden: User "u" cannot update resource "statefulsets/status" in API group "apps" in the namespace "n""#,
                Some("a may not update statefulsets/status.apps"),
            ),
            (r#"forbidden: User "u" cannot get path "/apis""#, Some("a may not get /apis")),
            (
                "clusterroles.rbac.authorization.k8s.io \"view\" is forbidden: user \"u\" (groups=[]) is attempting to grant RBAC \
                 permissions not currently held:\n{}",
                Some("a may not escalate clusterroles.rbac.authorization.k8s.io"),
            ),
            (
                "clusterroles.rbac.authorization.k8s.io \"view\" is forbidden: must have cluster-admin privileges to use the \
                 aggregationRule",
                Some("a may not escalate clusterroles.rbac.authorization.k8s.io"),
            ),
            (
                r#"pods "p" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#,
                Some("a may not update statefulsets/finalizers.apps"),
            ),
            (
                r#"persistentvolumeclaims "c" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"#,
                Some("a may not delete persistentvolumeclaims"),
            ),
            (
                r#"controllerrevisions.apps "r" is forbidden: cannot set an ownerRef on a resource you can't delete: RBAC: x, <nil>"#,
                Some("a may not delete controllerrevisions.apps"),
            ),
            (r#"pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#, None),
            (
                r#"configmaps "c" is forbidden: unable to create new content in namespace n because it is being terminated"#,
                None,
            ),
            (r#"User "u" cannot "#, None),
            (r#"User "u" cannot list resource "pods"#, None),
            (r#"User "u" cannot get path "/x"#, None),
            ("", None),
        ];
        for (message, said) in cases {
            let lack = Lack::read("a", message);
            let sentence = lack.as_ref().map(Lack::sentence);
            assert_eq!(sentence.as_deref().and_then(|sentence| sentence.split(':').next()), said, "{message}");
        }
    }
}
