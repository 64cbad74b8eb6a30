//! Serves a driver at a unix socket.

use super::DirectoryDriver;
use super::service::Service;
use crate::endpoint::Endpoint;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower::ServiceExt;

/// How long running calls may take to end after the driver stops accepting calls.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long connections may take to close after the last call, so that a client that does not react delays nothing.
const FAREWELL: Duration = Duration::from_millis(200);

/// Why a socket cannot be served; the text is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("another process serves the socket {0}; stop it or choose another socket")]
    InUse(PathBuf),
    #[error("{0} exists and is not a socket; remove it or choose another path")]
    NotASocket(PathBuf),
    #[error("the path of the socket is too long: {0} has {1} bytes, and {max} are possible", max = crate::endpoint::SOCKET_PATH_BYTES_MAX)]
    TooLong(PathBuf, usize),
    #[error("cannot serve the socket {0}: {1}")]
    Failed(PathBuf, io::Error),
}

/// A served driver. Dropping it ends everything at once, as the end of a process would; the socket file then stays.
#[derive(Debug)]
pub struct Serving {
    socket: PathBuf,
    /// Device and inode of the socket file, so that no other file is removed.
    identity: (u64, u64),
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Serving {
    /// Serves at a socket. A socket file that a dead process left is replaced; a socket that another process serves is
    /// not.
    pub async fn start(driver: Arc<DirectoryDriver>, socket: &Path) -> Result<Serving, ListenError> {
        let failed = |error| ListenError::Failed(socket.to_owned(), error);
        let length = socket.as_os_str().len();
        if length > crate::endpoint::SOCKET_PATH_BYTES_MAX {
            return Err(ListenError::TooLong(socket.to_owned(), length));
        }
        remove_stale(socket).await?;
        let listener = UnixListener::bind(socket).map_err(failed)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let identity = identity(socket).map_err(failed)?;
        let socket = std::path::absolute(socket).map_err(failed)?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, Service { driver }, stop.clone()));
        Ok(Serving { socket, identity, stop, task })
    }

    /// The endpoint for clients.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Stops accepting calls, waits for running ones, and removes the socket.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the CSI server failed");
        }
        if identity(&self.socket).is_ok_and(|found| found == self.identity)
            && let Err(error) = std::fs::remove_file(&self.socket)
        {
            tracing::warn!(%error, socket = %self.socket.display(), "cannot remove the socket");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The connection of a call.
#[derive(Clone, Debug)]
pub struct Connection {
    severed: CancellationToken,
}

impl Connection {
    /// Closes the connection. Never returns, because the future that awaits this is dropped with the connection.
    pub async fn sever<T>(self) -> T {
        self.severed.cancel();
        std::future::pending().await
    }
}

/// An endpoint for callers inside this process, without a socket. `serving` returns the driver for each connection and
/// when it stops; `None` refuses the connection. Cancelling `cut` closes all connections and refuses new ones, as when
/// the caller's process ends.
pub fn inside(
    name: &str,
    cut: CancellationToken,
    serving: impl Fn() -> Option<(Arc<DirectoryDriver>, CancellationToken)> + Send + Sync + 'static,
) -> Endpoint {
    let calls = Arc::new(watch::Sender::new(0));
    Endpoint::inside(name, move || {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let (driver, dead) = serving().filter(|_| !cut.is_cancelled()).ok_or_else(refused)?;
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (cut, calls) = (cut.clone(), Arc::clone(&calls));
        tokio::spawn(async move {
            let serving = serve(ours, Service { driver }, CancellationToken::new(), calls);
            cut.run_until_cancelled(dead.run_until_cancelled(serving)).await
        });
        Ok(theirs)
    })
}

/// The buffer of a connection in memory, in bytes.
const PIPE_BYTES: usize = 64 << 10;

/// The transports of calls.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

async fn remove_stale(socket: &Path) -> Result<(), ListenError> {
    let failed = |error| ListenError::Failed(socket.to_owned(), error);
    let metadata = match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(failed)?,
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket(socket.to_owned()));
    }
    match UnixStream::connect(socket).await {
        Ok(_) => Err(ListenError::InUse(socket.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(socket).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

fn identity(socket: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(socket)?;
    Ok((metadata.dev(), metadata.ino()))
}

async fn accept(listener: UnixListener, service: Service, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let calls = Arc::new(watch::Sender::new(0));
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, service.clone(), stop.clone(), Arc::clone(&calls)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Usually the process has no file descriptors left: wait until some calls have ended.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    let mut calls = calls.subscribe();
    if tokio::time::timeout(PATIENCE, calls.wait_for(|under_way| *under_way == 0)).await.is_err() {
        tracing::warn!("calls are still running after {PATIENCE:?}; stopping without their responses");
        return;
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, ended).await.is_err() {
        tracing::debug!("closing connections that clients keep open");
    }
}

async fn serve(stream: impl Stream, service: Service, stop: CancellationToken, calls: Arc<watch::Sender<usize>>) {
    let severed = CancellationToken::new();
    let route = {
        let severed = severed.clone();
        service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(Connection { severed: severed.clone() });
            let (under_way, service) = (UnderWay::begin(&calls), service.clone());
            async move {
                let answer = route(service, request).await;
                drop(under_way);
                answer
            }
        })
    };
    let connection =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), route);
    let mut connection = std::pin::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            () = severed.cancelled() => return,
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A call that is being executed.
struct UnderWay(Arc<watch::Sender<usize>>);

impl UnderWay {
    fn begin(calls: &Arc<watch::Sender<usize>>) -> UnderWay {
        calls.send_modify(|count| *count += 1);
        UnderWay(Arc::clone(calls))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

type Answer = http::Response<tonic::body::Body>;

async fn route(service: Service, request: http::Request<Incoming>) -> Result<Answer, Infallible> {
    match request.uri().path().split('/').nth(1) {
        Some("csi.v1.Identity") => IdentityServer::new(service).oneshot(request).await,
        Some("csi.v1.Controller") => ControllerServer::new(service).oneshot(request).await,
        Some("csi.v1.Node") => NodeServer::new(service).oneshot(request).await,
        _ => Ok(Status::unimplemented("this driver has no such service").into_http()),
    }
}
