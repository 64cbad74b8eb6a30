//! A client whose writes are refused when the leader's term is over.

use crate::lease::Term;
use http::{HeaderValue, Method, Request};
use kube::client::Body;
use std::error::Error;

#[derive(Debug, thiserror::Error)]
#[error("this process no longer holds the lease; the write was not sent")]
struct LeaseNotHeld;

/// Returns a client of the same server for one term of a leader. Before each write it checks by the clock
/// that the term has not expired. It names the term in `header`, and a Mainstay server refuses writes of a
/// term that is over. `lease` is `<namespace>/<name>`.
pub fn client(inner: kube::Client, header: &'static str, lease: &str, term: &Term) -> kube::Client {
    let hold = term.hold.clone();
    // Names of hosts and leases are plain ASCII. If one is not, only the clock is checked.
    let named = HeaderValue::from_str(&format!("{lease} {} {}", term.number, term.holder)).ok();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (inner, hold, named) = (inner.clone(), hold.clone(), named.clone());
        async move {
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                if !hold.lasts() {
                    return Err(Box::<dyn Error + Send + Sync>::from(LeaseNotHeld));
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

    /// Returns the methods that reach the server through a client whose term lasts this long, each with the
    /// value of the header.
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
                assert!(crate::api::root_cause(&error).contains("no longer holds the lease"), "{error}");
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
