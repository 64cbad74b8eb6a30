//! A running `mainstay up`, or `mainstay server`.

use super::program::Running;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;

/// Where the server keeps its state.
pub enum Place<'a> {
    InMemory,
    Directory(&'a Path),
    /// An etcd by its URL; the server's own files are in the scratch directory.
    Etcd(&'a str),
}

/// A server as a process, ready to serve; killed when dropped.
pub struct Cluster {
    /// The scratch directory of clients: home directories, kubeconfigs, manifests.
    pub directory: TempDir,
    pub kubeconfig: PathBuf,
    pub url: String,
    program: Mutex<Running>,
}

impl Cluster {
    pub fn start(place: Place) -> Cluster {
        Cluster::start_with(place, &[])
    }

    /// Starts a server with more arguments and waits until it prints that it is ready.
    pub fn start_with(place: Place, arguments: &[&str]) -> Cluster {
        Cluster::start_command("up", place, None, arguments)
    }

    /// The same, with this soft and hard limit on open files.
    pub fn start_with_files(place: Place, files: Option<(u32, u32)>, arguments: &[&str]) -> Cluster {
        Cluster::start_command("up", place, files, arguments)
    }

    /// Starts a server without controllers and nodes.
    pub fn start_server(place: Place) -> Cluster {
        Cluster::start_command("server", place, None, &[])
    }

    fn start_command(name: &str, place: Place, files: Option<(u32, u32)>, arguments: &[&str]) -> Cluster {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let kubeconfig = directory.path().join("kubeconfig");
        let mut command = match files {
            None => mainstay(directory.path()),
            Some(files) => with_files(mainstay(directory.path()), files),
        };
        command.args([name, "--listen", "127.0.0.1:0", "--kubeconfig"]).arg(&kubeconfig);
        match place {
            Place::InMemory => command.arg("--in-memory"),
            Place::Directory(data) => command.arg("--data-dir").arg(data),
            Place::Etcd(url) => command.args(["--store", url, "--data-dir"]).arg(directory.path().join("data")),
        };
        command.args(arguments);
        let mut program = Running::start(command);
        program.line_with(&["Mainstay", "is ready"]);
        let line = program.line_with(&["API", "https://"]);
        let url = line.split_whitespace().last().expect("the line has words").to_owned();
        program.line_with(&["Ctrl-C"]);
        Cluster { directory, kubeconfig, url, program: Mutex::new(program) }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file for a client to read and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("the temporary directory can be written");
        path.to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.program.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).id()
    }

    /// The next line of its output that contains all of `parts` in this order.
    #[track_caller]
    pub fn line_with(&self, parts: &[&str]) -> String {
        self.program().line_with(parts)
    }

    /// The same, or its whole output until it ended.
    #[track_caller]
    pub fn line_or_end(&self, parts: &[&str]) -> Result<String, Vec<String>> {
        self.program().line_or_end(parts)
    }

    /// Freezes the process with SIGSTOP.
    pub fn pause(&self) {
        self.program().pause();
    }

    pub fn resume(&self) {
        self.program().resume();
    }

    fn program(&self) -> MutexGuard<'_, Running> {
        self.program.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Stops it as Ctrl-C and init systems do; returns the exit code and the output since then.
    pub fn stop(self) -> (Option<i32>, Vec<String>) {
        let program = self.program.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        program.terminate();
        let (status, lines) = program.finish();
        (status.code(), lines)
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.program.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).id()
    }

    /// The same, for a cluster that others still hold.
    pub fn kill(&self) {
        self.program().end();
    }

    /// Kills it, as a power failure would.
    pub fn crash(self) {
        let program = self.program.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        program.kill();
        program.finish();
    }
}

/// The program under test, without settings from the test's environment.
pub fn mainstay(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    // Files that a killed process leaves behind are removed with its home directory.
    command.env_clear().env("HOME", home).env("TMPDIR", home).current_dir(home);
    for kept in ["PATH", "MAINSTAY_LOG", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

/// The program with other limits on open files, in the same process.
fn with_files(program: Command, (soft, hard): (u32, u32)) -> Command {
    let mut command = Command::new("/bin/sh");
    command.env_clear().args(["-c", "ulimit -Sn $0 && ulimit -Hn $1 && shift && exec \"$@\""]);
    command.args([soft.to_string(), hard.to_string()]).arg(program.get_program());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = program.get_current_dir() {
        command.current_dir(directory);
    }
    command
}
