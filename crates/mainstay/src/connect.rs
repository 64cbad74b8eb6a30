//! An API server elsewhere: how it is found, who we are there, and what is said when it cannot be used.

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

/// A dead connection is noticed after this time at the latest: longer than the watches, which are renewed before.
const SILENCE_MAX: Duration = Duration::from_secs(295);
const TRY_EVERY: Duration = Duration::from_secs(1);
/// The minor versions of Kubernetes that the controllers are made for.
const MINORS: std::ops::RangeInclusive<u32> = 33..=37;

/// An API server as one user.
pub struct Target {
    pub url: String,
    pub client: Client,
    /// Where it was found, for people.
    source: String,
}

/// What a server says of itself and of us.
pub struct Greeting {
    pub version: String,
    pub user: String,
}

impl Target {
    /// Reads where the server is and who we are: from the file, or from where such things usually are. Asks nobody yet.
    pub async fn find(kubeconfig: Option<&Path>) -> Result<Target, BadInput> {
        let (mut config, source) = match kubeconfig {
            Some(path) => (read(path).await?, format!("the kubeconfig {}", path.display())),
            None => (infer().await?, "the kubeconfig or ServiceAccount found".to_owned()),
        };
        config.read_timeout = Some(SILENCE_MAX);
        config.reset_reader_on_write = true;
        // Those who ask have their own patience, and say what they wait for. A client that tried again by itself would hold them for
        // minutes, in silence.
        config.default_retry = false;
        let agent = concat!("mainstay/", env!("CARGO_PKG_VERSION"));
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config)
            .map_err(|error| BadInput(format!("{source} cannot be used: {}; mend it there", root_cause(&error))))?;
        Ok(Target { url, client, source })
    }

    /// Waits until the server answers, and says once why that takes time. What the server refuses for good is an error.
    pub async fn greet(&self) -> Result<Greeting, BadInput> {
        let api = Api::new(self.client.clone());
        let mut said = String::new();
        let version = loop {
            let why = match api.get("/version").await {
                Ok(version) => break version.text(&["gitVersion"]).to_owned(),
                Err(ApiError::Refused { code: 401, .. }) => return Err(self.unknown_user()),
                // It is there, and keeps its version to itself.
                Err(ApiError::Refused { code: 403 | 404, .. }) => break String::new(),
                Err(ApiError::Refused { code, message, .. }) => format!("it answers {code} {message}"),
                Err(ApiError::Broken(error)) if is_about_certificates(&error) => return Err(self.untrusted(&error)),
                Err(ApiError::Broken(error)) => root_cause(&error),
            };
            if why != said {
                eprintln!("mainstay: cannot use the API server at {}: {why}; trying again until it can.", self.url);
                said = why;
            }
            tokio::time::sleep(TRY_EVERY).await;
        };
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let user = match api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await {
            Ok(answer) => answer.text(&["status", "userInfo", "username"]).to_owned(),
            Err(error) if error.code() == 401 => return Err(self.unknown_user()),
            Err(error) => {
                tracing::debug!(%error, "the server does not say who we are");
                "a user that it does not name".to_owned()
            }
        };
        Ok(Greeting { version, user })
    }

    fn unknown_user(&self) -> BadInput {
        BadInput(format!(
            "the API server at {} does not accept the credentials of {} (401 Unauthorized): renew them there",
            self.url, self.source
        ))
    }

    fn untrusted(&self, error: &dyn Error) -> BadInput {
        BadInput(format!(
            "the API server at {} is not the one that {} knows ({}): use the server's own certificate authority there",
            self.url,
            self.source,
            root_cause(error)
        ))
    }
}

impl Greeting {
    /// A sentence about a server that the controllers were not made for.
    pub fn doubt(&self) -> Option<String> {
        let minor = self.version.strip_prefix("v1.")?.split('.').next()?.parse::<u32>().ok()?;
        (!MINORS.contains(&minor)).then(|| {
            format!(
                "the API server is {}, and these controllers were made for v1.{} to v1.{}: watch them closely",
                self.version,
                MINORS.start(),
                MINORS.end()
            )
        })
    }
}

/// What the server lets us do in a namespace and everywhere; `None` where it cannot say all of it.
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
            "no API server is known ({}): give a file with --kubeconfig or KUBECONFIG, or run in a pod with a ServiceAccount",
            // The kubeconfig's failure is nearer to what the user meant than the absence of a pod.
            error.source().map_or_else(|| error.to_string(), ToString::to_string)
        ))
    })
}

fn is_about_certificates(error: &(dyn Error + 'static)) -> bool {
    if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
        return true;
    }
    // An I/O error hides what it wraps from its source.
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
    async fn a_server_that_is_not_there_for_us_is_asked_once() {
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
