//! The store of a server: a local directory, an etcd, or memory.

use crate::cli::{BadInput, ServingArgs};
use crate::paths;
use anyhow::Result;
use clap::Args;
use server::authn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::etcd::{Config, DEFAULT_PREFIX, Tls, User};
use store::{Etcd, OpenError, Options, Store};

const TRY_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Args)]
pub struct EtcdArgs {
    /// The prefix of the keys in etcd; several clusters in one etcd need different ones
    #[arg(long, env = "MAINSTAY_ETCD_PREFIX", default_value = DEFAULT_PREFIX, value_name = "PREFIX")]
    pub etcd_prefix: String,
    /// Use TLS for etcd, and trust certificates of this CA
    #[arg(long, env = "MAINSTAY_ETCD_CAFILE", value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd
    #[arg(long, env = "MAINSTAY_ETCD_CERTFILE", value_name = "FILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// The key of the client certificate for etcd
    #[arg(long, env = "MAINSTAY_ETCD_KEYFILE", value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The etcd user, NAME:PASSWORD; use the environment variable to keep it out of the list of processes
    #[arg(long, env = "MAINSTAY_ETCD_USER", value_name = "USER", hide_env_values = true)]
    pub etcd_user: Option<String>,
}

impl EtcdArgs {
    /// The etcd at this URL; the error is one sentence.
    pub fn config(&self, url: &str) -> Result<Config, BadInput> {
        let mut config =
            Config::parse(url).and_then(|config| config.with_prefix(&self.etcd_prefix)).map_err(BadInput)?;
        if let Some(ca) = &self.etcd_cafile {
            let client = match (&self.etcd_certfile, &self.etcd_keyfile) {
                (Some(certificate), Some(key)) => Some((pem(certificate)?, pem(key)?)),
                _ => None,
            };
            config.tls = Some(Tls { ca: pem(ca)?, client });
        }
        if let Some(user) = &self.etcd_user {
            let Some((name, password)) = user.split_once(':').filter(|(name, _)| !name.is_empty()) else {
                return Err(BadInput("the etcd user must have the form NAME:PASSWORD".to_owned()));
            };
            config.user = Some(User { name: name.to_owned(), password: password.to_owned() });
        }
        Ok(config)
    }
}

fn pem(path: &Path) -> Result<String, BadInput> {
    let text = store::regular_file::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read {} for etcd: {error}", path.display())))?;
    if !text.contains("-----BEGIN ") {
        return Err(BadInput(format!(
            "{} contains no PEM data: give the certificate and key files for etcd",
            path.display()
        )));
    }
    Ok(text)
}

/// Where state is kept.
#[derive(Clone, Debug)]
pub enum Backend {
    Memory,
    /// A data directory, with the store in a subdirectory.
    Directory(PathBuf),
    Etcd(Config),
}

impl Backend {
    /// The backend for the arguments of a server.
    pub fn of(args: &ServingArgs) -> Result<Backend> {
        if let Some(url) = &args.store {
            return Ok(Backend::Etcd(args.etcd.config(url)?));
        }
        Ok(data_dir(args)?.map_or(Backend::Memory, Backend::Directory))
    }

    /// Opens the store. Waits for an etcd that does not respond yet.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        let (finish, options) = (server::codec::finish, Options::default());
        let config = match self {
            Backend::Memory => return Ok(store::Volatile::new(finish, options)),
            Backend::Directory(directory) => return open_embedded(directory),
            Backend::Etcd(config) => config,
        };
        let mut last_reason = String::new();
        loop {
            match Etcd::open(config, finish, options).await {
                Err(OpenError::Unreachable(why)) => {
                    if why != last_reason {
                        eprintln!("mainstay: cannot reach {}: {why}; retrying.", config.place());
                        last_reason = why;
                    }
                    tokio::time::sleep(TRY_EVERY).await;
                }
                Err(OpenError::Refused(why)) => {
                    return Err(BadInput(format!("{} refuses the user: {why}; see --etcd-user", config.place())).into());
                }
                Err(OpenError::NotOurs) => {
                    return Err(BadInput(format!(
                        "the keys at {} belong to another program, or to a restore or copy that was killed: choose another prefix \
                         with --etcd-prefix, or remove them with etcdctl del --prefix",
                        config.place()
                    ))
                    .into());
                }
                opened => return Ok(opened?),
            }
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Backend::Memory => f.write_str("in memory only (lost when this process ends)"),
            Backend::Directory(directory) => write!(f, "{} (kept across restarts)", directory.display()),
            Backend::Etcd(config) => write!(f, "{} (shared with other servers)", config.place()),
        }
    }
}

/// Opens or creates the store in a data directory. Every error names its directory.
pub fn open_embedded(data_dir: &Path) -> Result<Arc<dyn Store>> {
    let place = store_dir(data_dir);
    store::Embedded::open(&place, server::codec::finish, Options::default()).map_err(|error| match error {
        OpenError::Damaged(_) | OpenError::Newer { .. } => {
            anyhow::anyhow!("{error} (the store in {})", place.display())
        }
        // These errors name the directory themselves.
        other => other.into(),
    })
}

/// The directory of the embedded store in a data directory.
pub fn store_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

/// The directory for this server's own files; `None` with `--in-memory`.
pub fn data_dir(args: &ServingArgs) -> Result<Option<PathBuf>> {
    if args.in_memory {
        return Ok(None);
    }
    let directory = args.data_dir.clone().or_else(paths::data_dir).ok_or_else(|| {
        BadInput(
            "there is no home directory for state: give a directory with --data-dir, or use --in-memory".to_owned(),
        )
    })?;
    authn::files::create_private_directory(&directory)
        .map_err(|error| BadInput(format!("{error}; choose another directory with --data-dir")))?;
    Ok(Some(directory))
}
