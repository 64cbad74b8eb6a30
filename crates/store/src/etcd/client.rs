//! Requests to etcd. One member is used at a time; if it does not respond, the next one is.

use super::config::{Config, Timing, User};
use super::wire::rpc;
use crate::Error;
use bytes::Bytes;
use rpc::auth_client::AuthClient;
use rpc::kv_client::KvClient;
use rpc::maintenance_client::MaintenanceClient;
use rpc::watch_client::WatchClient;
use std::error::Error as _;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Response, Status, Streaming};

/// A page of a list, or the first response of a watch after an interruption, may be large. etcd limits the size itself.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay after all members were tried without success.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Client {
    members: Vec<(String, Channel)>,
    /// Index of the member in use. All requests and the watch go to the same member, so that the watch soon shows what
    /// a response reported.
    current: watch::Sender<usize>,
    user: Option<User>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    pub timing: Timing,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The request was not executed. A later retry may succeed.
    #[error("{0}")]
    Refused(String),
    /// The request was not executed: etcd is out of space and accepts only deletions.
    #[error("{0}")]
    NoSpace(String),
    /// The requested revision was compacted.
    #[error("the revision was compacted")]
    Compacted,
    /// The request was not executed, and a retry will fail too.
    #[error("{0}")]
    TooLarge(String),
    /// etcd denied access.
    #[error("{0}")]
    Denied(String),
    /// It is unknown whether the request was executed.
    #[error("{0}")]
    Unknown(String),
}

impl Failure {
    /// Converts the failure of a read, or of a write that certainly was not executed.
    pub fn into_error(self) -> Error {
        match self {
            Failure::TooLarge(why) => Error::TooLarge(why),
            Failure::NoSpace(why) => Error::OutOfSpace(why),
            other => Error::Unavailable(other.to_string()),
        }
    }
}

impl Client {
    pub fn new(config: &Config) -> Result<Client, String> {
        let members = config.members.iter().map(|member| {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(|error| format!("{member} is not a valid address: {error}"))?
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                // Many writes and their events share the connection. The default HTTP/2 windows of 64 KiB would slow
                // them down.
                .http2_adaptive_window(true);
            if let Some(tls) = &config.tls {
                let mut client = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
                if let Some((certificate, key)) = &tls.client {
                    client = client.identity(Identity::from_pem(certificate, key));
                }
                endpoint = endpoint
                    .tls_config(client)
                    .map_err(|error| format!("the certificates for etcd cannot be used: {}", root_cause(&error)))?;
            }
            Ok((member.clone(), endpoint.connect_lazy()))
        });
        Ok(Client {
            members: members.collect::<Result<_, String>>()?,
            current: watch::Sender::new(0),
            user: config.user.clone(),
            token: Mutex::new(None),
            timing: config.timing,
        })
    }

    /// Returns the member in use, and notifies when another one is chosen.
    pub fn member(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// Switches to the next member, unless another one than `member` is in use already.
    pub fn avoid(&self, member: usize) {
        self.current.send_if_modified(|current| {
            let same = *current == member && self.members.len() > 1;
            if same {
                *current = (member + 1) % self.members.len();
            }
            same
        });
    }

    pub async fn range(&self, request: rpc::RangeRequest) -> Result<rpc::RangeResponse, Failure> {
        self.read(|channel| {
            let request = self.request(request.clone());
            async move { kv(channel).range(request).await }
        })
        .await
    }

    pub async fn status(&self) -> Result<rpc::StatusResponse, Failure> {
        self.read(|channel| {
            let request = self.request(rpc::StatusRequest {});
            async move { MaintenanceClient::new(channel).status(request).await }
        })
        .await
    }

    pub async fn compact(&self, revision: i64) -> Result<(), Failure> {
        let done = self.read(|channel| {
            let request = self.request(rpc::CompactionRequest { revision });
            async move { kv(channel).compact(request).await }
        });
        match done.await {
            // Another server compacted this revision already.
            Ok(_) | Err(Failure::Compacted) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Sends a transaction. It is retried only if it certainly was not executed.
    pub async fn txn(&self, request: rpc::TxnRequest) -> Result<rpc::TxnResponse, Failure> {
        let deadline = Instant::now() + self.timing.patience;
        let mut logged_in = false;
        let mut tried = 0;
        loop {
            let (member, channel) = self.channel();
            tried += 1;
            let sent = self.request(request.clone());
            let failure = match timeout_at(deadline, kv(channel).txn(sent)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if is_stale_login(&status) && !logged_in => {
                    logged_in = true;
                    self.login().await?;
                    continue;
                }
                Ok(Err(status)) => self.classify(member, &status),
                Err(_) => Failure::Unknown(format!("{} does not respond", self.members[member].0)),
            };
            if matches!(failure, Failure::Unknown(_)) {
                self.avoid(member);
                return Err(failure);
            }
            if !matches!(failure, Failure::Refused(_)) || tried >= self.members.len() {
                return Err(failure);
            }
            self.avoid(member);
        }
    }

    /// Opens a watch on the member in use. Returns that member and the stream of responses.
    pub async fn watch(
        &self,
        (from, to): (Bytes, Bytes),
        start_revision: i64,
    ) -> Result<(usize, Streaming<rpc::WatchResponse>), Failure> {
        let create = rpc::WatchCreateRequest { key: from, range_end: to, start_revision, fragment: true };
        let create = rpc::WatchRequest { request_union: Some(rpc::watch_request::RequestUnion::CreateRequest(create)) };
        let (member, channel) = self.channel();
        // The request stream must stay open; etcd ends the watch when it ends.
        let asked = futures::StreamExt::chain(futures::stream::iter([create]), futures::stream::pending());
        let mut client = WatchClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        match timeout(self.timing.attempt, client.watch(self.request(asked))).await {
            Ok(Ok(answer)) => Ok((member, answer.into_inner())),
            Ok(Err(status)) => {
                if is_stale_login(&status) {
                    self.login().await?;
                }
                self.avoid(member);
                Err(self.classify(member, &status))
            }
            Err(_) => {
                self.avoid(member);
                Err(Failure::Refused(format!("{} does not respond", self.members[member].0)))
            }
        }
    }

    /// Sends a request to one member after the other until one responds or `timing.patience` has passed. Only for
    /// requests that may be executed twice.
    async fn read<T, F>(&self, ask: impl Fn(Channel) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + self.timing.patience;
        let mut logged_in = false;
        for tried in 1.. {
            let (member, channel) = self.channel();
            let failure = match timeout(self.timing.attempt, ask(channel)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if is_stale_login(&status) && !logged_in => {
                    logged_in = true;
                    self.login().await?;
                    continue;
                }
                Ok(Err(status)) => match self.classify(member, &status) {
                    Failure::Unknown(why) | Failure::Refused(why) => Failure::Refused(why),
                    certain => return Err(certain),
                },
                Err(_) => Failure::Refused(format!("{} does not respond", self.members[member].0)),
            };
            self.avoid(member);
            let round = tried % self.members.len() == 0;
            if Instant::now() + PAUSE >= deadline {
                return Err(failure);
            }
            if round {
                tokio::time::sleep(PAUSE).await;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Logs in and stores the token, if the configuration has a user.
    pub async fn login(&self) -> Result<(), Failure> {
        let Some(user) = &self.user else { return Ok(()) };
        let (member, channel) = self.channel();
        let request = rpc::AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
        let answer = timeout(self.timing.attempt, AuthClient::new(channel).authenticate(request)).await;
        let token = match answer {
            Ok(Ok(answer)) => answer.into_inner().token,
            Ok(Err(status)) => {
                let failure = self.classify(member, &status);
                if !matches!(failure, Failure::Denied(_)) {
                    self.avoid(member);
                }
                return Err(failure);
            }
            Err(_) => {
                self.avoid(member);
                return Err(Failure::Refused(format!("{} does not respond", self.members[member].0)));
            }
        };
        let token = token
            .parse()
            .map_err(|_| Failure::Denied("etcd's login token is not valid in a request header".to_owned()))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(())
    }

    fn channel(&self) -> (usize, Channel) {
        let member = *self.current.borrow();
        (member, self.members[member].1.clone())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member that knows no leader then fails immediately instead of waiting.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn classify(&self, member: usize, status: &Status) -> Failure {
        // etcd's own client also identifies these errors by their messages, because several of them share a gRPC code.
        let text = status.message();
        let said = format!("{}: {}", self.members[member].0, text);
        if is_unsent(status) {
            return Failure::Refused(format!("{}: {}", self.members[member].0, root_cause(status)));
        }
        match status.code() {
            Code::OutOfRange if text.contains("compacted") => Failure::Compacted,
            Code::InvalidArgument if text.contains("too large") || text.contains("too many operations") => {
                Failure::TooLarge(said)
            }
            Code::ResourceExhausted if text.contains("larger than max") => Failure::TooLarge(said),
            Code::ResourceExhausted if text.contains("space exceeded") => {
                Failure::NoSpace(format!("{said}; {}", super::space::ADVICE))
            }
            Code::ResourceExhausted => Failure::Refused(said),
            Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument | Code::FailedPrecondition => {
                Failure::Denied(said)
            }
            _ => Failure::Unknown(said),
        }
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Tokens expire after some minutes, and when the member that issued them restarts.
fn is_stale_login(status: &Status) -> bool {
    let text = status.message();
    let no_login = status.code() == Code::InvalidArgument && text.contains("user name is empty");
    no_login || (status.code() == Code::Unauthenticated && text.contains("invalid auth token"))
}

/// Whether the request certainly never left this machine, because there was no connection.
fn is_unsent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
