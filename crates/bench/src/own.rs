//! A server of our own, in a process of its own: start-up and memory are its figures too.

use crate::Program;
use crate::client::Target;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Method;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// How long it may take to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

pub struct Server {
    pub target: Target,
    in_memory: bool,
    nodes: u32,
    program: Arc<dyn Program>,
    child: Child,
    directory: Directory,
}

/// Goes with whoever holds it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("mainstay: cannot remove {}: {error}", self.0.display());
        }
    }
}

impl Server {
    /// Starts one; gives also how long it took until it was ready.
    pub async fn start(program: Arc<dyn Program>, in_memory: bool, nodes: u32) -> Result<(Server, Duration)> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mainstay-bench-{}-{number}", std::process::id()));
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("cannot create {}", path.display()))?;
        let directory = Directory(path);
        let (child, target, took) = spawn(&*program, &directory.0, in_memory, nodes).await?;
        Ok((Server { target, in_memory, nodes, program, child, directory }, took))
    }

    /// Stops it and starts it again with what it has stored; gives how long each took.
    pub async fn restart(&mut self) -> Result<(Duration, Duration)> {
        let asked = Instant::now();
        let pid = self.child.id().context("the server is gone")?.to_string();
        let told = Command::new("/bin/sh").args(["-c", "kill -TERM \"$1\"", "sh", &pid]).status().await?;
        if !told.success() {
            bail!("the server could not be told to stop");
        }
        tokio::time::timeout(STOP_TIME_MAX, self.child.wait())
            .await
            .context("the server did not stop in a minute")??;
        let stopped_in = asked.elapsed();
        let (child, target, took) = spawn(&*self.program, &self.directory.0, self.in_memory, self.nodes).await?;
        (self.child, self.target) = (child, target);
        Ok((stopped_in, took))
    }

    /// Ends it; what it stored goes with it.
    pub async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

async fn spawn(
    program: &dyn Program,
    directory: &Path,
    in_memory: bool,
    nodes: u32,
) -> Result<(Child, Target, Duration)> {
    let kubeconfig = directory.join("kubeconfig");
    let mut command = Command::new(program.executable()?);
    command.args(["up", "--listen", "127.0.0.1:0", "--nodes", &nodes.to_string(), "--kubeconfig"]).arg(&kubeconfig);
    // It is killed in the end, and what it leaves behind goes with the directory.
    command.env("TMPDIR", directory);
    // Ctrl-C is for us; we end it.
    command.process_group(0);
    if in_memory {
        command.arg("--in-memory");
    } else {
        command.arg("--data-dir").arg(directory.join("data"));
    }
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let stdout = child.stdout.take().context("the server has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    match lines.next_line().await? {
        Some(line) if line.contains("is ready") => {}
        other => bail!("the server did not start: {}", other.unwrap_or_default()),
    }
    // The rest of its words are not needed, but must be read.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let target = Target::new(&program.read_kubeconfig(&kubeconfig).await?)?;
    target.connect().await?.call(Method::GET, "/readyz", "", Bytes::new()).await?;
    Ok((child, target, started.elapsed()))
}
