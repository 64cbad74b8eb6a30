//! A client whose writes end with the term they belong to.

use crate::lease::Term;
use http::{HeaderValue, Method, Request};
use kube::client::Body;
use std::error::Error;

#[derive(Debug, thiserror::Error)]
#[error("the lease is no longer ours, so nothing is written")]
struct Over;

/// The same server for one term of leading. Before each write the clock is asked whether the term still lasts; and a server of ours is
/// told the term in `header`, and refuses writes of one that is over. `lease` is `<namespace>/<name>`.
pub fn client(inner: kube::Client, header: &'static str, lease: &str, term: &Term) -> kube::Client {
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
                    request.headers_mut().insert(header, named);
                }
            }
            Ok(inner.send(request).await?)
        }
    });
    kube::Client::new(service, "default")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Hold;
    use http::Response;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    const HEADER: &str = "term";

    /// The methods that reach the server, each with the term that it is told, of a client whose term lasts so long.
    async fn arrived(lasts: Duration) -> Vec<(Method, String)> {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let arrived = arrived.clone();
            tower::service_fn(move |request: Request<Body>| {
                let term = request.headers().get(HEADER).and_then(|term| term.to_str().ok());
                let line = (request.method().clone(), term.unwrap_or_default().to_owned());
                arrived.lock().expect("no panic").push(line);
                async { Ok::<_, std::convert::Infallible>(Response::new(Body::empty())) }
            })
        };
        let term = Term { holder: "me".to_owned(), number: 3, hold: Hold::lasting(lasts) };
        let client = client(kube::Client::new(server, "default"), HEADER, "kube-system/l", &term);
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let request = Request::builder().method(method).uri("/x").body(Body::empty()).expect("a request");
            let is_read = request.method() == Method::GET;
            let sent = client.send(request).await;
            assert_eq!(sent.is_ok(), is_read || !lasts.is_zero());
            if let Err(error) = sent {
                assert!(crate::api::root_cause(&error).contains("the lease is no longer ours"), "{error}");
            }
        }
        drop(client);
        std::mem::take(&mut *arrived.lock().expect("no panic"))
    }

    #[tokio::test]
    async fn writes_are_sent_with_their_term_and_only_while_it_lasts() {
        let term = || "kube-system/l 3 me".to_owned();
        let all = arrived(Duration::from_secs(3600)).await;
        assert_eq!(all[0], (Method::GET, String::new()));
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].map(|method| (method, term()));
        assert_eq!(all[1..], writes);
        assert_eq!(arrived(Duration::ZERO).await, [(Method::GET, String::new())]);
    }
}
