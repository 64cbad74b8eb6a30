//! `mainstay kubeconfig`: the administrator's kubeconfig, or one for a user with a client certificate of its own.
//!
//! The CA's key is in the store. A stopped server's store is opened, and the certificate is signed here. A running server holds the lock of
//! its store, so it is asked to sign, as the administrator and for a key that is made here: neither key leaves its process.

mod merge;
mod yaml;

use crate::cli::{BadInput, duration, https};
use crate::connect::Target;
use crate::copies;
use crate::paths;
use crate::running::Running;
use anyhow::{Context, Result};
use base64::Engine;
use clap::Args;
use kit::api::root_cause;
use merge::Entries;
use serde_json::{Map, Value};
use server::authn::{self, CertificateRequest, ClientKey, Identity, files};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{OpenError, regular_file};

/// Where a server listens that has left no kubeconfig.
const DEFAULT_URL: &str = "https://127.0.0.1:6443";

#[derive(Debug, Args)]
pub struct KubeconfigArgs {
    /// The data directory of the server, which may run or not [default: mainstay in the user's data directory]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Ask the running server of this administrator's kubeconfig, and use no data directory
    #[arg(long, env = "MAINSTAY_ADMIN_KUBECONFIG", value_name = "FILE")]
    pub admin_kubeconfig: Option<PathBuf>,
    /// Make a client certificate for this user [default: the administrator, with its own certificate]
    #[arg(long, env = "MAINSTAY_KUBECONFIG_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// Groups of the user; may be given several times
    #[arg(long, env = "MAINSTAY_KUBECONFIG_GROUPS", value_name = "NAME", value_delimiter = ',', requires = "user")]
    pub group: Vec<String>,
    /// How long the user's certificate is valid, such as 8h or 30d: from 10m to 365d, because it cannot be revoked [default: 8h]
    #[arg(long = "for", env = "MAINSTAY_KUBECONFIG_FOR", value_name = "TIME", value_parser = duration, requires = "user")]
    pub lifetime: Option<Duration>,
    /// Allow users and groups whose names begin with system:, such as system:masters, which may do everything
    #[arg(long, env = "MAINSTAY_KUBECONFIG_ALLOW_SYSTEM_NAMES", requires = "user")]
    pub allow_system_names: bool,
    /// The address of the server, for clients on other machines [default: as in the administrator's kubeconfig]
    #[arg(long, env = "MAINSTAY_KUBECONFIG_SERVER", value_name = "URL", value_parser = https)]
    pub server: Option<http::Uri>,
    /// The name of the cluster. The administrator's context has this name; a user's context is USER@NAME
    #[arg(long, env = "MAINSTAY_KUBECONFIG_NAME", default_value = "mainstay", value_name = "NAME")]
    pub name: String,
    /// Merge cluster, user and context into this file, and keep all else in it [default: of $KUBECONFIG the first file that exists, or
    /// ~/.kube/config]
    #[arg(long, env = "MAINSTAY_KUBECONFIG_MERGE", value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub merge: Option<Option<PathBuf>>,
    /// With --merge: overwrite entries of the same names that belong to another server
    #[arg(long, env = "MAINSTAY_KUBECONFIG_REPLACE", requires = "merge")]
    pub replace: bool,
    /// Write the kubeconfig to this new file, readable by its owner only, instead of stdout
    #[arg(long, env = "MAINSTAY_KUBECONFIG_OUTPUT", value_name = "FILE", conflicts_with = "merge")]
    pub output: Option<PathBuf>,
}

pub async fn run(args: KubeconfigArgs) -> Result<()> {
    let request = request(&args)?;
    if args.name.trim().is_empty() {
        return Err(BadInput("the name of the cluster is empty: give another with --name".to_owned()).into());
    }
    if let Some(file) = args.output.as_deref().filter(|file| file.symlink_metadata().is_ok()) {
        return Err(BadInput(format!("{} is there already: choose another file", file.display())).into());
    }
    let place = Place::of(&args)?;
    let merge_at = args.merge.as_ref().map(|file| merge_target(file.as_deref(), &place.kubeconfig)).transpose()?;
    let (mut cluster, user) = place.credentials(request.as_ref()).await?;
    if let Some(url) = &args.server {
        cluster.insert("server".to_owned(), url.to_string().trim_end_matches('/').into());
    }
    let names = match &request {
        Some(CertificateRequest { user, .. }) => [format!("{user}@{}", args.name), format!("{user}@{}", args.name)],
        None => [format!("{}-admin", args.name), args.name.clone()],
    };
    let [user_name, context_name] = names;
    let entries = Entries { cluster_name: args.name.clone(), user_name, context_name, cluster, user };
    let told = match (&merge_at, &args.output) {
        (Some(file), _) => merge_into(file, &entries, args.replace)?,
        (None, Some(file)) => {
            files::write_private(file, entries.alone().as_bytes())?;
            format!("Wrote {}.", file.display())
        }
        (None, None) => {
            io::stdout().write_all(entries.alone().as_bytes()).context("cannot print the kubeconfig")?;
            String::new()
        }
    };
    tell(&told, request.as_ref());
    Ok(())
}

/// What the user's certificate is to say; `None` for the administrator.
fn request(args: &KubeconfigArgs) -> Result<Option<CertificateRequest>, BadInput> {
    const DEFAULT_LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);
    let Some(user) = &args.user else { return Ok(None) };
    let mut groups: Vec<String> = Vec::new();
    for group in &args.group {
        if !groups.contains(group) {
            groups.push(group.clone());
        }
    }
    let request =
        CertificateRequest { user: user.clone(), groups, lifetime: args.lifetime.unwrap_or(DEFAULT_LIFETIME) };
    request.validate().map_err(BadInput)?;
    match request.system_name() {
        Some(name) if !args.allow_system_names => Err(BadInput(format!(
            "names that begin with system: are those of Kubernetes' own components, and system:masters may do everything: \
             choose another name than {name}, or add --allow-system-names"
        ))),
        _ => Ok(Some(request)),
    }
}

/// The server that the kubeconfig is for.
struct Place {
    /// `None` asks the running server.
    data_dir: Option<PathBuf>,
    /// The administrator's kubeconfig, which the server writes at each start.
    kubeconfig: PathBuf,
}

impl Place {
    fn of(args: &KubeconfigArgs) -> Result<Place, BadInput> {
        if let Some(kubeconfig) = &args.admin_kubeconfig {
            return Ok(Place { data_dir: None, kubeconfig: kubeconfig.clone() });
        }
        let data_dir = args.data_dir.clone().or_else(paths::data_dir).ok_or_else(|| {
            BadInput("there is no home directory: say where the server keeps its state with --data-dir".to_owned())
        })?;
        let record = Running::read(&data_dir).map(|record| record.kubeconfig);
        let kubeconfig = record.unwrap_or_else(|| data_dir.join("kubeconfig"));
        if !crate::backend::store_dir(&data_dir).is_dir() && !kubeconfig.is_file() {
            return Err(BadInput(format!(
                "there is no server's state in {}: run mainstay up first, or say with --data-dir or --admin-kubeconfig which server is \
                 meant",
                data_dir.display()
            )));
        }
        Ok(Place { data_dir: Some(data_dir), kubeconfig })
    }

    /// The fields of the cluster and of the user.
    async fn credentials(
        &self,
        request: Option<&CertificateRequest>,
    ) -> Result<(Map<String, Value>, Map<String, Value>)> {
        let admin = Admin::read(&self.kubeconfig);
        if let (None, Ok(admin)) = (request, &admin) {
            return Ok((admin.cluster.clone(), admin.user.clone()));
        }
        let Some(identity) = self.identity().await? else {
            let Admin { cluster, .. } = admin?;
            let Some(request) = request else { unreachable!("the administrator's kubeconfig was read") };
            return Ok((cluster, ask_server(&self.kubeconfig, request).await?));
        };
        let url =
            admin.ok().and_then(|admin| admin.cluster.get("server").cloned()).unwrap_or_else(|| DEFAULT_URL.into());
        let mut cluster = Map::new();
        cluster.insert("server".to_owned(), url);
        cluster.insert("certificate-authority-data".to_owned(), data(&identity.ca.certificate_pem));
        let user = match request {
            None => certificate_of(&identity.admin.certificate_pem, &identity.admin.key_pem),
            Some(request) => {
                let key = ClientKey::generate()?;
                let certificate = request.sign(&identity.ca, &key.public_pem(), jiff::Timestamp::now())?;
                certificate_of(&certificate, &key.private_pem())
            }
        };
        Ok((cluster, user))
    }

    /// The certificates and keys in the store; `None` where a running server uses it, or where it is not in the data directory.
    async fn identity(&self) -> Result<Option<Identity>> {
        let Some(data_dir) = self.data_dir.as_deref() else { return Ok(None) };
        if !crate::backend::store_dir(data_dir).is_dir() {
            return Ok(None);
        }
        let store = match copies::open_directory(data_dir).await {
            Ok(store) => store,
            Err(error) if matches!(error.downcast_ref(), Some(OpenError::InUse { .. })) => return Ok(None),
            Err(error) => return Err(error),
        };
        let identity = authn::identity_store::read(&*store);
        store.close().await;
        let place = || format!("cannot read the certificates in the store in {}", data_dir.display());
        let identity = identity.with_context(place)?;
        let missing =
            || BadInput(format!("the store in {} has no certificates yet: run mainstay up once", data_dir.display()));
        Ok(Some(identity.ok_or_else(missing)?))
    }
}

/// What the administrator's kubeconfig says about its current context.
struct Admin {
    cluster: Map<String, Value>,
    user: Map<String, Value>,
}

impl Admin {
    fn read(path: &Path) -> Result<Admin, BadInput> {
        let wrong = |why: &str| {
            let path = path.display();
            BadInput(format!(
                "cannot use the administrator's kubeconfig {path}: {why}; give another with --admin-kubeconfig"
            ))
        };
        let text = regular_file::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
        let decoded = object::decode::yaml(text.as_bytes()).map_err(|status| wrong(&status.message))?;
        let config = serde_json::to_value(decoded.value).map_err(|error| wrong(&error.to_string()))?;
        let entry = |list: &str, field: &str, name: &Value| {
            let entries = config[list].as_array()?;
            entries.iter().find(|entry| entry["name"] == *name)?[field].as_object().cloned()
        };
        let found = || {
            let context = entry("contexts", "context", &config["current-context"])?;
            let cluster = entry("clusters", "cluster", context.get("cluster")?)?;
            Some(Admin { cluster, user: entry("users", "user", context.get("user")?)? })
        };
        let admin = found().ok_or_else(|| wrong("its current context is incomplete"))?;
        let files = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];
        if let Some(field) =
            files.iter().find(|field| admin.cluster.contains_key(**field) || admin.user.contains_key(**field))
        {
            return Err(wrong(&format!("its {field} refers to another file")));
        }
        Ok(admin)
    }
}

/// Has the running server sign a certificate for a new key.
async fn ask_server(kubeconfig: &Path, request: &CertificateRequest) -> Result<Map<String, Value>> {
    let target = Target::find(Some(kubeconfig)).await?;
    let key = ClientKey::generate()?;
    let (seconds, public_key) = (request.lifetime.as_secs().to_string(), key.public_pem());
    let mut query = vec![("user", request.user.as_str()), ("seconds", &seconds), ("publicKey", &public_key)];
    query.extend(request.groups.iter().map(|group| ("group", group.as_str())));
    let query: Vec<String> = query.iter().map(|(key, value)| format!("{key}={}", percent_encoded(value))).collect();
    let uri = format!("{}?{}", server::CLIENT_CERTIFICATE_PATH, query.join("&"));
    let asked = target.client.request_text(http::Request::post(uri).body(Vec::new())?).await;
    let certificate = asked.map_err(|error| match &error {
        kube::Error::Api(status) => {
            BadInput(format!("the server at {} signs no certificate: {}", target.url, status.message))
        }
        error => BadInput(format!(
            "cannot ask the server at {} to sign a certificate: {}; start it, or name another with --data-dir or --admin-kubeconfig",
            target.url,
            root_cause(error)
        )),
    })?;
    Ok(certificate_of(&certificate, &key.private_pem()))
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

fn data(pem: &str) -> Value {
    base64::engine::general_purpose::STANDARD.encode(pem).into()
}

fn certificate_of(certificate_pem: &str, key_pem: &str) -> Map<String, Value> {
    let fields = [("client-certificate-data", certificate_pem), ("client-key-data", key_pem)];
    fields.into_iter().map(|(field, pem)| (field.to_owned(), data(pem))).collect()
}

/// The file to merge into: the one given, or the one that kubectl would write to.
fn merge_target(given: Option<&Path>, admin_kubeconfig: &Path) -> Result<PathBuf, BadInput> {
    let file = given.map_or_else(default_target, |file| Ok(file.to_owned()))?;
    let real = match (fs::canonicalize(&file), file.symlink_metadata()) {
        (Ok(real), _) => real,
        (Err(_), Err(_)) => file,
        // Replacing the link would detach it from its target.
        (Err(error), Ok(_)) => {
            return Err(BadInput(format!(
                "cannot follow the link {}: {error}; mend it, or give a file with --merge=FILE",
                file.display()
            )));
        }
    };
    if fs::canonicalize(admin_kubeconfig).is_ok_and(|admin| admin == real) {
        return Err(BadInput(format!(
            "{} is the server's own file, which it writes at each start: give another file with --merge=FILE, or unset KUBECONFIG to merge \
             into ~/.kube/config",
            real.display()
        )));
    }
    Ok(real)
}

fn default_target() -> Result<PathBuf, BadInput> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if let Some(file) = listed.iter().find(|path| path.exists()).or_else(|| listed.last()) {
        return Ok(file.clone());
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| BadInput("there is no home directory: give a file with --merge=FILE".to_owned()))?;
    Ok(PathBuf::from(home).join(".kube/config"))
}

/// Merges and says what was done.
fn merge_into(file: &Path, entries: &Entries, replace: bool) -> Result<String> {
    if let Some(directory) = file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        files::create_private_directory(directory)?;
    }
    let _lock = Lock::take(file)?;
    let refused = |why: String| BadInput(format!("nothing is merged into {}: {why}", file.display()));
    let text = match regular_file::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| refused(format!("it cannot be read: {error}")))?,
    };
    let merged = entries.merge_into(&text, replace).map_err(refused)?;
    let mut told = String::new();
    if merged.changed {
        if merge::has_comments(&text) {
            let copy = free_name(file);
            files::write_private(&copy, text.as_bytes())?;
            told = format!(" Its comments are lost, as with kubectl config; {} is a copy from before.", copy.display());
        }
        files::write_private(file, merged.text.as_bytes())?;
    }
    let name = &entries.context_name;
    let use_it = match merged.is_current {
        true => "It is the current context.".to_owned(),
        false => format!("Use it with kubectl --context {}.", crate::announce::shell_word(name)),
    };
    let done = if merged.changed { "Merged the context" } else { "Nothing to change: the context" };
    let into = if merged.changed { "into" } else { "is in" };
    Ok(format!("{done} {name} {into} {}.{told} {use_it}", file.display()))
}

/// A name beside the file that no file has.
fn free_name(file: &Path) -> PathBuf {
    let name = |suffix: &str| PathBuf::from(format!("{}.bak{suffix}", file.display()));
    let mut names = std::iter::once(name("")).chain((1..).map(|number: u32| name(&format!(".{number}"))));
    names.find(|name| name.symlink_metadata().is_err()).expect("some number is free")
}

/// The lock that kubectl takes while it writes a kubeconfig.
struct Lock(PathBuf);

impl Lock {
    fn take(file: &Path) -> Result<Lock, BadInput> {
        let path = PathBuf::from(format!("{}.lock", file.display()));
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(Lock(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(BadInput(format!(
                "another program writes {}: try again, or remove {} if that program was killed",
                file.display(),
                path.display()
            ))),
            Err(error) => Err(BadInput(format!("cannot create {}: {error}", path.display()))),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(%error, file = %self.0.display(), "cannot remove the lock");
        }
    }
}

/// Says what was done and what the user may do: on stdout, or beside a kubeconfig that is printed there.
fn tell(done: &str, request: Option<&CertificateRequest>) {
    let mut lines: Vec<String> = Some(done.to_owned()).filter(|done| !done.is_empty()).into_iter().collect();
    if let Some(request) = request {
        let lifetime = i64::try_from(request.lifetime.as_secs()).unwrap_or(i64::MAX);
        let end = jiff::Timestamp::now().as_second().saturating_add(lifetime);
        let end = jiff::Timestamp::from_second(end).map(|end| format!(" until {end}")).unwrap_or_default();
        let user = crate::announce::shell_word(&request.user);
        lines.push(format!(
            "The certificate is valid{end}. The user has the rights that are bound to it or its groups, for example by:"
        ));
        lines.push(format!("  kubectl create clusterrolebinding NAME --clusterrole=view --user={user}"));
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let written =
        if done.is_empty() { io::stderr().write_all(text.as_bytes()) } else { io::stdout().write_all(text.as_bytes()) };
    // The reader may have closed the stream; the work is done.
    drop(written);
}
