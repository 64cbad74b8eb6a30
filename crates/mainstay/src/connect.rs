//! The connection to another API server: finds it and the credentials, and reports why it cannot be used.

use crate::cli::BadInput;
use anyhow::Result;
use kit::api::{Api, ApiError, root_cause};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use object::access::Access;
use object::json;
use server::authz::Rule;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

/// The time after which a dead connection is noticed. Longer than a watch, which is renewed earlier.
const SILENCE_MAX: Duration = Duration::from_secs(295);
const TRY_EVERY: Duration = Duration::from_secs(1);
/// The minor versions of Kubernetes that the controllers support.
const MINORS: std::ops::RangeInclusive<u32> = 33..=37;

/// An API server and a user.
pub struct Target {
    pub url: String,
    pub client: Client,
    /// The source of the configuration, for messages.
    source: String,
}

/// The server's version, and the user that it sees.
pub struct ServerInfo {
    pub version: String,
    pub user: String,
}

impl Target {
    /// Reads the server's address and the credentials from the file, or from the default places. Sends no request yet.
    pub async fn find(kubeconfig: Option<&Path>) -> Result<Target, BadInput> {
        let (mut config, source) = match kubeconfig {
            Some(path) => (read(path).await?, format!("the kubeconfig {}", path.display())),
            None => (infer().await?, "the kubeconfig or ServiceAccount that was found".to_owned()),
        };
        config.read_timeout = Some(SILENCE_MAX);
        config.reset_reader_on_write = true;
        // Callers have timeouts of their own and report what they wait for. A client that retried by itself would block
        // them for minutes without a message.
        config.default_retry = false;
        let agent = concat!("mainstay/", env!("CARGO_PKG_VERSION"));
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config)
            .map_err(|error| BadInput(format!("cannot use {source}: {}; correct it", root_cause(&error))))?;
        Ok(Target { url, client, source })
    }

    /// Waits until the server responds, and prints each new reason once. A permanent refusal is an error.
    pub async fn wait_until_ready(&self) -> Result<ServerInfo, BadInput> {
        let api = Api::new(self.client.clone());
        let mut last_reason = String::new();
        let version = loop {
            let why = match api.get("/version").await {
                Ok(version) => break version.text(&["gitVersion"]).to_owned(),
                Err(ApiError::Refused { code: 401, .. }) => return Err(self.unknown_user()),
                // The server responds, but does not tell its version.
                Err(ApiError::Refused { code: 403 | 404, .. }) => break String::new(),
                Err(ApiError::Refused { code, message, .. }) => format!("it responds with {code} {message}"),
                Err(ApiError::Broken(error)) if is_about_certificates(&error) => return Err(self.untrusted(&error)),
                Err(ApiError::Broken(error)) => root_cause(&error),
            };
            if why != last_reason {
                eprintln!("mainstay: cannot use the API server at {}: {why}; retrying.", self.url);
                last_reason = why;
            }
            tokio::time::sleep(TRY_EVERY).await;
        };
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let user = match api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await {
            Ok(answer) => answer.text(&["status", "userInfo", "username"]).to_owned(),
            Err(error) if error.code() == 401 => return Err(self.unknown_user()),
            Err(error) => {
                tracing::debug!(%error, "cannot read the user name");
                "unknown".to_owned()
            }
        };
        Ok(ServerInfo { version, user })
    }

    fn unknown_user(&self) -> BadInput {
        BadInput(format!(
            "the API server at {} does not accept the credentials of {} (401 Unauthorized): renew them",
            self.url, self.source
        ))
    }

    fn untrusted(&self, error: &dyn Error) -> BadInput {
        BadInput(format!(
            "the certificate of the API server at {} is not signed by the CA in {} ({}): use the server's own CA there",
            self.url,
            self.source,
            root_cause(error)
        ))
    }
}

impl ServerInfo {
    /// A warning about a server version that the controllers do not support.
    pub fn version_warning(&self) -> Option<String> {
        let minor = self.version.strip_prefix("v1.")?.split('.').next()?.parse::<u32>().ok()?;
        (!MINORS.contains(&minor)).then(|| {
            format!(
                "the API server is {}, but these controllers support v1.{} to v1.{}: they may not work correctly",
                self.version,
                MINORS.start(),
                MINORS.end()
            )
        })
    }
}

/// The permissions of this user in a namespace and in the cluster; `None` if the server's answer is incomplete.
pub async fn own_rights(client: &Client, namespace: &str) -> Result<Option<Vec<Rule>>, ApiError> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace},
    });
    let api = Api::new(client.clone());
    let answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &review).await?;
    let rules = answer.items(&["status", "resourceRules"]).iter().map(Rule::from_value);
    Ok((!answer.flag(&["status", "incomplete"])).then(|| rules.collect()))
}

/// Reads a kubeconfig.
pub async fn read(path: &Path) -> Result<Config, BadInput> {
    let unusable = |error: &dyn Error| {
        let why = root_cause(error);
        BadInput(format!("cannot use the kubeconfig {}: {why}; choose another with --kubeconfig", path.display()))
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| unusable(&error))
}

async fn infer() -> Result<Config, BadInput> {
    Config::infer().await.map_err(|error| {
        BadInput(format!(
            "no API server is configured ({}): give a file with --kubeconfig or KUBECONFIG, or run in a pod with a ServiceAccount",
            // The kubeconfig's error is more likely the user's concern than the missing ServiceAccount.
            error.source().map_or_else(|| error.to_string(), ToString::to_string)
        ))
    })
}

fn is_about_certificates(error: &(dyn Error + 'static)) -> bool {
    if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
        return true;
    }
    // An I/O error does not report its inner error as its source.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.is_some_and(|wrapped| is_about_certificates(wrapped)) || error.source().is_some_and(is_about_certificates)
}

#[cfg(test)]
mod tests {
    use super::Target;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn an_unavailable_server_gets_one_request() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let count = count.clone();
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                        count.fetch_add(1, Ordering::Relaxed);
                        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                        stream.write_all(answer).await.unwrap();
                    }
                });
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: {url:?}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let target = Target::find(Some(&file)).await.unwrap();
        let request = http::Request::get("/version").body(Vec::new()).unwrap();
        target.client.request_text(request).await.unwrap_err();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
