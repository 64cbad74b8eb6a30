//! Figures and health of a process that serves no API: plain HTTP for Prometheus and for those who watch over it.

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

/// Who says nothing for this long is cut off.
const HEADER_TIME_MAX: Duration = Duration::from_secs(15);

/// Connections at once. An older one is closed for a new one beyond that, so that idle connections keep no probe out and the controllers
/// keep their file descriptors.
const CONNECTIONS_MAX: usize = 128;

/// What is served: the figures, and whether the process does its work.
pub struct Health {
    registry: Registry,
    hindrance: watch::Receiver<Hindrance>,
}

/// Why the process cannot do its work; `None` when it can.
pub type Hindrance = Option<String>;

impl Health {
    pub fn new(mut registry: Registry, hindrance: watch::Receiver<Hindrance>) -> Health {
        registry.register_collector(Box::new(Process));
        Health { registry, hindrance }
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
                    // Mostly there are no file descriptors left. Wait before the next try instead of spinning.
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
            (&Method::GET | &Method::HEAD, "/readyz") => match &*self.hindrance.borrow() {
                None => (200, text, "ok".to_owned()),
                Some(why) => (503, text, why.clone()),
            },
            (&Method::GET | &Method::HEAD, _) => {
                (404, text, "there are /metrics, /healthz, /livez and /readyz".to_owned())
            }
            _ => (405, text, "this is only for reading".to_owned()),
        };
        let built = Response::builder().status(code).header(http::header::CONTENT_TYPE, media);
        built.body(Full::from(body)).expect("code and media type are ours, and good")
    }

    fn figures(&self, format: Format) -> (u16, &'static str, String) {
        match format.write(&self.registry) {
            Ok(page) => (200, format.content_type(), page),
            Err(error) => (500, "text/plain; charset=utf-8", format!("the metrics cannot be written: {error}")),
        }
    }
}
