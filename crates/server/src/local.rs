//! The server as a service inside its own process: the same requests, without a socket. Callers are held to their roles all the same.

use crate::app::{Caller, Server};
use crate::attributes::User;
use crate::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The server, as one user.
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(crate::http::respond(&this.server, request, &this.caller).await) })
    }
}
