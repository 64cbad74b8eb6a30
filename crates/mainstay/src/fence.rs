//! A client whose writes end with the term they belong to.

use http::{HeaderValue, Method, Request};
use kube::client::Body;
use runtime::lease::Term;
use std::error::Error;

#[derive(Debug, thiserror::Error)]
#[error("the lease is no longer ours, so nothing is written")]
struct Over;

/// The same server for one term of leading. Before each write the clock is asked whether the term still lasts; and a server of ours is
/// told the term, and refuses writes of one that is over. `lease` is `<namespace>/<name>`.
pub fn client(inner: kube::Client, lease: &str, term: &Term) -> kube::Client {
    let hold = term.hold.clone();
    // Names of hosts and leases are plain text; where one is not, the clock alone decides.
    let named = HeaderValue::from_str(&format!("{lease} {} {}", term.number, term.holder)).ok();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (inner, hold, named) = (inner.clone(), hold.clone(), named.clone());
        async move {
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                if !hold.lasts() {
                    return Err(Box::<dyn Error + Send + Sync>::from(Over));
                }
                if let Some(named) = named {
                    request.headers_mut().insert(server::LEASE_HEADER, named);
                }
            }
            Ok(inner.send(request).await?)
        }
    });
    kube::Client::new(service, "default")
}
