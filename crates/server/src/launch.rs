//! Builds and starts a server.

use crate::app::Server;
use crate::attributes::User;
use crate::authn::{self, Authenticator, CertError, ClientCertificates, Identity, ServiceAccountTokens, StaticTokens};
use crate::authz::Authorizer;
use crate::env::Env;
use crate::limits::Limits;
use crate::local::Local;
use object::{Gates, Status, Value};
use std::net::SocketAddr;
use std::sync::Arc;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The parts of a server.
pub struct Launch {
    pub store: Arc<dyn Store>,
    pub identity: Identity,
    pub gates: Gates,
    pub env: Env,
    pub static_tokens: StaticTokens,
    pub limits: Limits,
    /// Objects to create beside the server's own, such as the roles of controllers.
    pub bootstrap: Vec<Value>,
    /// Where to listen. `None`: the server is reachable only inside this process.
    pub listener: Option<TcpListener>,
    /// The server's URL, as the issuer in tokens.
    pub issuer: String,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Certificates(#[from] CertError),
    #[error("cannot store the first objects: {0}")]
    Bootstrap(Status),
    #[error("cannot listen: {0}")]
    Listen(#[from] std::io::Error),
}

/// A running server. Dropping it does not stop it; [`Running::stop`] does.
pub struct Running {
    pub server: Arc<Server>,
    pub address: Option<SocketAddr>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Launch {
    /// Starts the server. When this returns, it accepts requests.
    pub async fn start(self) -> Result<Running, LaunchError> {
        let authn = Authenticator {
            certificates: ClientCertificates::new(&self.identity.ca.certificate_pem)?,
            static_tokens: self.static_tokens,
            tokens: ServiceAccountTokens::new(
                &self.identity.service_account_key_pem,
                &self.issuer,
                &[],
                self.store.clone(),
            )?,
            env: self.env.clone(),
        };
        let authz = Arc::new(Authorizer::new(self.store.clone()));
        let mut server = Server::new(self.store, self.gates, self.env, authn, authz);
        server.limits = self.limits;
        server.ca = Some(self.identity.ca.clone());
        server.metrics.extend(|registry| server.limits.register(registry));
        server.admission.root_ca.clone_from(&self.identity.ca.certificate_pem);
        let server = Arc::new(server);
        crate::bootstrap::run(&server, self.bootstrap).await.map_err(LaunchError::Bootstrap)?;
        let shutdown = server.stopping.clone();
        let tasks = TaskTracker::new();
        tasks.spawn(crate::housekeeping::run(server.clone(), shutdown.clone()));
        tasks.spawn(crate::crd_lifecycle::run(server.clone(), shutdown.clone()));
        tasks.spawn(crate::admission::quota::repair::run(server.clone(), shutdown.clone()));
        let mut address = None;
        if let Some(listener) = self.listener {
            address = Some(listener.local_addr()?);
            let tls = authn::server_config(&self.identity, server.env.clock.clone())?;
            tasks.spawn(crate::http::serve(server.clone(), listener, tls, shutdown.clone()));
        }
        server.set_ready(true);
        Ok(Running { server, address, tasks, shutdown })
    }
}

impl Running {
    /// The server as an in-process service that acts as `user`.
    pub fn local(&self, user: User) -> Local {
        Local::new(self.server.clone(), user)
    }

    /// Stops the server: refuses new requests, ends watches, lets open requests finish, and closes the store.
    pub async fn stop(self) {
        self.server.set_ready(false);
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.server.store.close().await;
    }
}
