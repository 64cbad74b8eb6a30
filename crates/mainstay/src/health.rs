//! Metrics and health checks of a process that serves no API, over plain HTTP.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use server::connections::{ConnectionGuard, Connections};
use server::exposition::Format;
use server::process::Process;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A connection without a request for this long is closed.
const HEADER_TIME_MAX: Duration = Duration::from_secs(15);

/// The limit of open connections. Beyond it the oldest one is closed for a new one, so that idle connections do not
/// block probes and the controllers keep their file descriptors.
const CONNECTIONS_MAX: usize = 128;

/// Serves the metrics, and whether the process does its work.
pub struct Health {
    registry: Registry,
    obstacle: watch::Receiver<Obstacle>,
}

/// Why the process cannot do its work; `None` if it can.
pub type Obstacle = Option<String>;

impl Health {
    pub fn new(mut registry: Registry, obstacle: watch::Receiver<Obstacle>) -> Health {
        registry.register_collector(Box::new(Process));
        Health { registry, obstacle }
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let this = Arc::new(self);
        let connections = Connections::new(CONNECTIONS_MAX);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = shutdown.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (held, _) = connections.admit(peer.ip()).await;
                    drop(tokio::spawn(this.clone().connection(stream, shutdown.clone(), held)));
                }
                Err(error) => {
                    // Usually no file descriptors are left. Wait before the next try instead of spinning.
                    tracing::warn!(%error, "cannot accept a connection");
                    connections.close_one();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, shutdown: CancellationToken, held: ConnectionGuard) {
        let service = service_fn(move |request| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME_MAX);
        tokio::select! {
            ended = builder.serve_connection(TokioIo::new(stream), service) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
            }
            () = held.closing().cancelled_owned() => {}
            () = shutdown.cancelled() => {}
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let text = "text/plain; charset=utf-8";
        let (code, media, body) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => self.figures(Format::negotiate(request.headers())),
            (&Method::GET | &Method::HEAD, "/healthz" | "/livez") => (200, text, "ok".to_owned()),
            (&Method::GET | &Method::HEAD, "/readyz") => match &*self.obstacle.borrow() {
                None => (200, text, "ok".to_owned()),
                Some(why) => (503, text, why.clone()),
            },
            (&Method::GET | &Method::HEAD, _) => {
                (404, text, "unknown path; supported paths: /metrics, /healthz, /livez and /readyz".to_owned())
            }
            _ => (405, text, "only GET and HEAD are supported".to_owned()),
        };
        let built = Response::builder().status(code).header(http::header::CONTENT_TYPE, media);
        built.body(Full::from(body)).expect("the status code and the media type are valid")
    }

    fn figures(&self, format: Format) -> (u16, &'static str, String) {
        match format.write(&self.registry) {
            Ok(page) => (200, format.content_type(), page),
            Err(error) => (500, "text/plain; charset=utf-8", format!("cannot encode the metrics: {error}")),
        }
    }
}
