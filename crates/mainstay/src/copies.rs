//! `mainstay store`: stores as a whole, copied, backed up and restored.

use crate::backend::{EtcdArgs, open_embedded, store_dir};
use crate::cli::BadInput;
use crate::connect::Target;
use crate::signals::Signals;
use crate::volume_data::{self, Volumes};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use csi::directory::archive::{self, Summary};
use futures::{Stream, StreamExt, TryStreamExt};
use object::access::Access;
use server::{authn, codec};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::backup::Reader;
use store::etcd::Config;
use store::{Etcd, Filling, OpenError, Options, Revision, Row, Rows, Store, Sum, regular_file};

/// How far a restored store is ahead of its backup. Clients may have seen revisions that came after the backup; none of them may come
/// again with another meaning.
const AHEAD: Revision = 1_000_000_000;

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy a store that no server uses: from a data directory or an etcd into an empty one
    Copy(CopyArgs),
    /// Write a store into one file, also while servers use it
    Backup(BackupArgs),
    /// Make a store of a backup
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
pub struct CopyArgs {
    /// A data directory, or etcd://host:2379
    #[arg(value_name = "FROM")]
    from: String,
    /// A data directory, or etcd://host:2379, without a store in it
    #[arg(value_name = "TO")]
    to: String,
    #[command(flatten)]
    etcd: EtcdArgs,
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// A data directory, or etcd://host:2379
    #[arg(value_name = "FROM")]
    from: String,
    /// The file to write; it must not be there yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How to reach the server that uses the data directory [default: kubeconfig in the data directory]
    #[arg(long, env = "MAINSTAY_BACKUP_KUBECONFIG", value_name = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Include the data of the built-in class's volumes, of DIR where the driver keeps them elsewhere [default: volumes in the data
    /// directory]. Programs may use them meanwhile; each file is as it was when it was read
    #[arg(long, env = "MAINSTAY_BACKUP_WITH_VOLUMES", value_name = "DIR", num_args = 0..=1, require_equals = true)]
    with_volumes: Option<Option<PathBuf>>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// A file that `mainstay store backup` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A data directory, or etcd://host:2379, without a store in it
    #[arg(value_name = "TO")]
    to: String,
    /// Restore the data of volumes, into DIR where the driver keeps them elsewhere [default: volumes in the data directory]
    #[arg(long, env = "MAINSTAY_RESTORE_WITH_VOLUMES", value_name = "DIR", num_args = 0..=1, require_equals = true)]
    with_volumes: Option<Option<PathBuf>>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

pub async fn run(command: StoreCommand) -> Result<()> {
    let mut signals = Signals::listen()?;
    let work = async {
        match command {
            StoreCommand::Copy(args) => copy(&args).await,
            StoreCommand::Backup(args) => backup(&args).await,
            StoreCommand::Restore(args) => restore(&args).await,
        }
    };
    tokio::select! {
        done = work => done,
        // Dropping the work removes its incomplete files.
        () = signals.next() => bail!("stopped by a signal before it was finished"),
    }
}

/// Where a store is.
enum Place {
    Directory(PathBuf),
    Etcd(Box<Config>),
}

impl Place {
    fn parse(text: &str, etcd: &EtcdArgs) -> Result<Place, BadInput> {
        if text.contains("://") {
            return Ok(Place::Etcd(Box::new(etcd.config(text)?)));
        }
        if text.is_empty() {
            return Err(BadInput(
                "the place of a store is empty: give a data directory or etcd://host:2379".to_owned(),
            ));
        }
        Ok(Place::Directory(PathBuf::from(text)))
    }

    /// Opens a store that is there.
    async fn open(&self) -> Result<Arc<dyn Store>> {
        match self {
            Place::Directory(directory) => open_directory(directory).await,
            Place::Etcd(config) => Ok(Etcd::open(config, codec::finish, Options::default()).await?),
        }
    }

    /// Begins a new store that is after `revision`.
    async fn fill(&self, revision: Revision) -> Result<Filling> {
        let begun = match self {
            Place::Directory(directory) => {
                authn::files::create_private_directory(directory)?;
                Filling::embedded(&store_dir(directory), revision)
            }
            Place::Etcd(config) => Filling::etcd(config, revision).await,
        };
        begun.map_err(|error| match error {
            OpenError::NotEmpty(_) | OpenError::InUse { .. } => BadInput(error.to_string()).into(),
            error => error.into(),
        })
    }

    fn data_dir(&self) -> Option<&Path> {
        match self {
            Place::Directory(directory) => Some(directory),
            Place::Etcd(_) => None,
        }
    }

    async fn sum(&self) -> Result<(Revision, Sum)> {
        let store = self.open().await?;
        let mut export = store.export().await?;
        let mut sum = Sum::default();
        while let Some(page) = export.pages.next().await {
            sum.add(&page?);
        }
        store.close().await;
        Ok((export.revision, sum))
    }
}

/// Opens the store of a data directory that has one.
pub async fn open_directory(directory: &Path) -> Result<Arc<dyn Store>> {
    // Opening would make one.
    if !store_dir(directory).is_dir() {
        return Err(BadInput(format!("there is no store in {}", directory.display())).into());
    }
    let store = open_embedded(directory)?;
    // Certificates of older versions are in a file beside the store, and belong to it.
    if let Some(identity) = authn::files::read(directory)? {
        authn::identity_store::keep(&*store, &identity).await?;
    }
    Ok(store)
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Directory(directory) => write!(f, "{}", directory.display()),
            Place::Etcd(config) => f.write_str(&config.place()),
        }
    }
}

async fn copy(args: &CopyArgs) -> Result<()> {
    let (from, to) = (Place::parse(&args.from, &args.etcd)?, Place::parse(&args.to, &args.etcd)?);
    let store = from.open().await.map_err(in_use)?;
    let mut export = store.export().await?;
    let mut filling = to.fill(export.revision).await?;
    let mut sum = Sum::default();
    while let Some(page) = export.pages.next().await {
        let page = page?;
        sum.add(&page);
        filling.add(page).await?;
    }
    filling.finish().await?;
    store.close().await;
    let (revision, found) = to.sum().await?;
    check(&to, sum, found)?;
    println!("Copied {from} to {to}: {sum}, at revision {revision}.");
    Ok(())
}

fn in_use(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<OpenError>() {
        Some(OpenError::InUse { directory, .. }) => {
            let place = directory.display();
            BadInput(format!(
                "a server uses the store in {place}: stop it first, or make a backup, which needs no stop"
            ))
            .into()
        }
        _ => error,
    }
}

fn check(place: &Place, expected: Sum, found: Sum) -> Result<()> {
    if found != expected {
        bail!("{place} has {found}, but {expected} were written: do not use it");
    }
    Ok(())
}

async fn backup(args: &BackupArgs) -> Result<()> {
    let from = Place::parse(&args.from, &args.etcd)?;
    if args.file.exists() {
        return Err(BadInput(format!("{} is there already: choose another file", args.file.display())).into());
    }
    let asked = args.with_volumes.as_ref();
    let volumes_at = asked.map(|place| volume_data::place(place.as_deref(), from.data_dir())).transpose()?;
    let volumes_at = volumes_at.as_deref();
    let data;
    match from.open().await {
        Ok(store) => {
            let export = store.export().await?;
            data = write(&args.file, store::backup::encode(export).map_err(anyhow::Error::from), volumes_at).await?;
            store.close().await;
        }
        Err(error) => match (error.downcast_ref::<OpenError>(), &from) {
            (Some(OpenError::InUse { .. }), Place::Directory(directory)) => {
                let kubeconfig = args.kubeconfig.clone().unwrap_or_else(|| directory.join("kubeconfig"));
                let pieces = ask_server(&kubeconfig).await?;
                data = write(&args.file, pieces, volumes_at).await?;
            }
            _ => return Err(error),
        },
    }
    let found = verify(&args.file)?;
    println!("Backed up {from} to {}: {}, at revision {}.", args.file.display(), found.sum, found.revision);
    if let (Some(place), Some(data)) = (volumes_at, &data) {
        volume_data::print("Included", place, data);
    }
    found.volumes.print_absent(&args.file, data.as_ref());
    Ok(())
}

/// The backup as the server that uses the store sends it.
async fn ask_server(kubeconfig: &Path) -> Result<impl Stream<Item = Result<bytes::Bytes>> + use<>> {
    let target = Target::find(Some(kubeconfig))
        .await
        .map_err(|error| BadInput(format!("a server uses the store, and it is asked by its kubeconfig: {error}")))?;
    let request = http::Request::get(server::BACKUP_PATH).body(kube::client::Body::empty())?;
    let answer =
        target.client.send(request).await.with_context(|| format!("cannot ask the server at {}", target.url))?;
    if !answer.status().is_success() {
        bail!("the server at {} answers {} to {}", target.url, answer.status(), server::BACKUP_PATH);
    }
    Ok(http_body_util::BodyDataStream::new(answer.into_body()).map_err(anyhow::Error::from))
}

/// Writes a file that only its owner may read. The file gets its name when all of it is on the disk; a write that fails or is
/// interrupted leaves no file.
///
/// The data of volumes follows the store, so that a volume that the store does not know has no data in it.
async fn write(
    file: &Path,
    pieces: impl Stream<Item = Result<bytes::Bytes>>,
    volumes_at: Option<&Path>,
) -> Result<Option<Summary>> {
    let path = PathBuf::from(format!("{}.part", file.display()));
    let cannot = || format!("cannot write {}", path.display());
    let (draft, mut out) = Draft::create(&path).with_context(cannot)?;
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.next().await {
        out.write_all(&piece?).with_context(cannot)?;
    }
    let data = match volumes_at {
        Some(place) => Some(volume_data::append(place, &out).await.with_context(cannot)?),
        None => None,
    };
    out.sync_all().with_context(cannot)?;
    verify(&path)?;
    draft.rename(file).with_context(cannot)?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(cannot)?;
    Ok(data)
}

/// A backup file under its temporary name. Dropping it removes the file.
struct Draft {
    path: PathBuf,
    renamed: bool,
}

impl Draft {
    /// Creates the file. A file of that name, for example of a killed run, is removed first and not written to: the backup holds
    /// all keys, and that file may be readable by others or be a link.
    fn create(path: &Path) -> io::Result<(Draft, File)> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let out = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        Ok((Draft { path: path.to_owned(), renamed: false }, out))
    }

    fn rename(mut self, file: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, file)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, file = %self.path.display(), "cannot remove the incomplete backup");
        }
    }
}

/// The store in a backup file, read to its end.
struct StorePart {
    revision: Revision,
    /// The data of volumes, where the file has any.
    rest: Option<BufReader<File>>,
}

fn wrong(file: &Path, why: &dyn std::fmt::Display) -> BadInput {
    BadInput(format!("the backup {} cannot be used: {why}", file.display()))
}

/// Reads all of the store in a backup; what is wrong with it is one sentence.
fn each_page(file: &Path, mut take: impl FnMut(Rows)) -> Result<StorePart, BadInput> {
    let wrong = |why: &dyn std::fmt::Display| wrong(file, why);
    let opened = regular_file::open(File::options().read(true), file).map_err(|error| wrong(&error))?;
    let mut reader = Reader::open_part(BufReader::new(opened)).map_err(|error| wrong(&error))?;
    loop {
        let page = reader.page().map_err(|error| wrong(&error))?;
        if page.is_empty() {
            let (revision, mut rest) = (reader.revision, reader.into_rest());
            let has_volumes = volume_data::follows(&mut rest).map_err(|error| wrong(&error))?;
            return Ok(StorePart { revision, rest: has_volumes.then_some(rest) });
        }
        take(page);
    }
}

/// What a backup file has, all of it read and checked.
struct Found {
    revision: Revision,
    sum: Sum,
    volumes: Volumes,
    data: Option<Summary>,
}

fn verify(file: &Path) -> Result<Found, BadInput> {
    let (mut sum, mut volumes) = (Sum::default(), Volumes::default());
    let StorePart { revision, rest } = each_page(file, |page| {
        sum.add(&page);
        volumes.add(&page);
    })?;
    let data = rest.map(archive::check).transpose().map_err(|error| wrong(file, &error))?;
    Ok(Found { revision, sum, volumes, data })
}

async fn restore(args: &RestoreArgs) -> Result<()> {
    let to = Place::parse(&args.to, &args.etcd)?;
    let asked = args.with_volumes.as_ref();
    let volumes_at = asked.map(|place| volume_data::place(place.as_deref(), to.data_dir())).transpose()?;
    // All of the file is checked before anything is written.
    let known = verify(&args.file)?;
    if known.data.is_none() && asked.is_some() {
        return Err(wrong(&args.file, &"it has no data of volumes: it was made without --with-volumes").into());
    }
    if let Some(place) = &volumes_at {
        volume_data::check_empty(place)?;
    }
    let mut strange = None;
    each_page(&args.file, |page| {
        strange = strange.take().or_else(|| page.into_iter().find(|(key, row)| !is_ours(key, row)));
    })?;
    if let Some((key, _)) = strange {
        let file = args.file.display();
        return Err(BadInput(format!(
            "the backup {file} cannot be used: no server of ours keeps what it has at {key:?}"
        ))
        .into());
    }
    let mut filling = to.fill(known.revision + AHEAD).await?;
    let mut sum = Sum::default();
    let mut pages = Vec::new();
    let StorePart { rest, .. } = each_page(&args.file, |page| pages.push(page))?;
    let mut volumes = 0;
    for page in pages {
        let page: Rows = page.into_iter().filter_map(|(key, row)| from_the_past(key, row, &mut volumes)).collect();
        sum.add(&page);
        filling.add(page).await?;
    }
    // Before the store is complete: a store that is served has its volumes.
    let data = match (&volumes_at, rest) {
        (Some(place), Some(rest)) => Some((place, volume_data::restore(rest, place).await?)),
        _ => None,
    };
    filling.finish().await?;
    let (now, found) = to.sum().await?;
    check(&to, sum, found)?;
    println!("Restored {} to {to}: {sum}, at revision {now}.", args.file.display());
    if let Some((place, data)) = &data {
        volume_data::print("Restored", place, data);
    }
    let place = volumes_at.clone().or_else(|| to.data_dir().map(volume_data::directory));
    known.volumes.print_missing(place.as_deref(), known.data.is_some() && data.is_none())?;
    if volumes > 0 {
        println!(
            "Of its {volumes} volumes, those whose claims are gone are kept until you confirm their deletion: see docs/volumes.md."
        );
    }
    Ok(())
}

/// Whether a server may have written a row. Checksums hold for whatever a stranger writes, and a server that finds something else than an
/// object of that name where it looks for one cannot do its work.
fn is_ours(key: &str, row: &Row) -> bool {
    let Some(path) = key.strip_prefix('/') else { return false };
    let words: Vec<&str> = path.split('/').collect();
    let is_word = |word: &&str| !matches!(*word, "" | "." | "..") && !word.chars().any(char::is_control);
    if !words.iter().all(is_word) || !(2..=4).contains(&words.len()) {
        return false;
    }
    let read = serde_json::from_slice::<object::Value>(&codec::finish(&row.value, row.modified));
    let Some(object) = read.ok().filter(object::Value::is_object) else { return false };
    match words[..] {
        // What the server keeps for itself.
        ["mainstay", ..] => true,
        [_, _, namespace, name] => {
            object.text(&["metadata", "name"]) == name && object.text(&["metadata", "namespace"]) == namespace
        }
        [_, _, name] => object.text(&["metadata", "name"]) == name,
        _ => false,
    }
}

/// A row of a backup as it may come back. The world went on since: what volumes were known to be for, and what was about to be done to
/// them, may be out of date, and nothing may be deleted because of it. So it is forgotten: which claims they served, that they are bound,
/// that their deletion was confirmed, and the journal of calls to drivers. A volume whose claim is there is found to be bound again and is one like any other; another one
/// is kept until the user confirms.
fn from_the_past(key: Arc<str>, row: Row, volumes: &mut usize) -> Option<(Arc<str>, Row)> {
    let journal = format!("/core/configmaps/{}/{}", runtime::csi::JOURNAL_NAMESPACE, runtime::csi::JOURNAL_NAME);
    if *key == *journal {
        return None;
    }
    if !key.starts_with("/core/persistentvolumes/") {
        return Some((key, row));
    }
    let read = serde_json::from_slice::<object::Value>(&codec::finish(&row.value, row.modified));
    let Ok(mut volume) = read else { return Some((key, row)) };
    *volumes += 1;
    volume.cut(&["metadata", "annotations", runtime::csi::RECORD]);
    volume.cut(&["metadata", "annotations", runtime::csi::CONFIRM]);
    runtime::volume_from_backup(&mut volume);
    if volume.text(&["status", "phase"]) == "Bound" {
        volume.put(&["status", "phase"], "Pending");
    }
    Some((key, Row { value: codec::encode(&volume), ..row }))
}
