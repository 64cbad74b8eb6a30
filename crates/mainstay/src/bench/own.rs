//! A server of our own, in a process of its own: start-up and memory are its figures too.

use super::report::Report;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

pub struct Server {
    pub kubeconfig: PathBuf,
    child: Child,
    directory: PathBuf,
}

impl Server {
    pub async fn start(in_memory: bool, report: &mut Report) -> Result<Server> {
        let directory = std::env::temp_dir().join(format!("mainstay-bench-{}", std::process::id()));
        server::authn::files::create_private_directory(&directory)?;
        let kubeconfig = directory.join("kubeconfig");
        let mut command = Command::new(std::env::current_exe().context("cannot find our own binary")?);
        command.args(["up", "--listen", "127.0.0.1:0", "--kubeconfig"]).arg(&kubeconfig);
        // It is killed in the end, and what it leaves behind goes with the directory.
        command.env("TMPDIR", &directory);
        if in_memory {
            command.arg("--in-memory");
        } else {
            command.arg("--data-dir").arg(directory.join("data"));
        }
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await? {
            Some(line) if line.contains("is ready") => {}
            other => bail!("the server did not start: {}", other.unwrap_or_default()),
        }
        report.figure(
            "start until ready",
            started.elapsed().as_secs_f64() * 1000.0,
            "ms",
            "first start, own CA and bootstrap objects made",
        );
        // The rest of its words are not needed, but must be read.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        // Controllers fill their caches in the first moments; idle is after that.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let server = Server { kubeconfig, child, directory };
        report.figure("resident memory, idle", server.resident_mb()?, "MB", "two seconds after the start");
        Ok(server)
    }

    fn resident_mb(&self) -> Result<f64> {
        let pid = self.child.id().context("the server is gone")?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kilobytes / 1024.0)
    }

    pub async fn stop(mut self, report: &mut Report) -> Result<()> {
        report.figure("resident memory, after", self.resident_mb()?, "MB", "after all work, objects deleted");
        self.child.kill().await?;
        std::fs::remove_dir_all(&self.directory)?;
        Ok(())
    }
}
