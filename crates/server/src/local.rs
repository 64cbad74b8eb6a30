//! The server as an in-process service: the same requests, without a socket. RBAC applies to its callers too.

use crate::app::{Caller, Server, status_response};
use crate::attributes::User;
use crate::body::Body;
use crate::limits::Room;
use crate::request_body::{BoxError, RequestBody};
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::BodyExt;
use object::access::Access;
use object::{Status, Value};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

const AGENT: &str = concat!("mainstay/", env!("CARGO_PKG_VERSION"));

/// The server, called as one user.
#[derive(Clone)]
pub struct Local {
    server: Arc<Server>,
    caller: Caller,
}

impl Local {
    pub fn new(server: Arc<Server>, user: User) -> Local {
        Local { server, caller: Caller::Inside(Arc::new(user)) }
    }
}

impl Server {
    /// Sends an internal request with the user agent `agent`. The error is that of the response.
    pub(crate) async fn send(&self, agent: &str, method: Method, path: &str, body: &Value) -> Result<(), Status> {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method)
            .uri(path.replace(':', "%3A"))
            .header(http::header::CONTENT_TYPE, media)
            .header(USER_AGENT, agent)
            .body(crate::render::to_bytes(body))
            .map_err(Status::internal)?;
        let caller = Caller::Inside(Arc::new(User::apiserver()));
        // Handling a request needs a large future. Boxing keeps the caller's future small.
        let response = Box::pin(self.handle(request, &caller)).await;
        let code = response.status().as_u16();
        if code < 300 {
            return Ok(());
        }
        let bytes: Bytes = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        Err(Status::new(code, "InternalError", format!("{path}: {}", status.text(&["message"]))))
    }
}

impl<B> tower::Service<Request<B>> for Local
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let this = self.clone();
        // The field manager is derived from the user agent, so name this program.
        request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // The body is already in the memory of this process.
            Ok(match RequestBody::new(body).read(Room::unbounded()).await {
                Ok(body) => this.server.handle(Request::from_parts(parts, body), &this.caller).await,
                Err(status) => status_response(&status),
            })
        })
    }
}
