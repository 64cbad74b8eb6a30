//! Finds the process that uses a data directory or port, for the message of a second start.

use serde::{Deserialize, Serialize};
use server::authn::files;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const FILE: &str = "running.json";

/// A record that a running server writes into its data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub pid: u32,
    pub api: String,
    pub kubeconfig: PathBuf,
}

impl Running {
    /// Reads the record. A killed process leaves its record, so the caller must check the process id.
    pub fn read(data_dir: &Path) -> Option<Running> {
        let bytes = store::regular_file::read(&data_dir.join(FILE)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub fn write(&self, data_dir: &Path) {
        let path = data_dir.join(FILE);
        // Remove an old record, which would name another process. This works on a full disk too.
        Running::remove(data_dir);
        let text = serde_json::to_vec(self).expect("numbers and text are JSON");
        if let Err(error) = files::write_private(&path, &text) {
            tracing::debug!(%error, "cannot write the record of this process");
        }
    }

    pub fn remove(data_dir: &Path) {
        match std::fs::remove_file(data_dir.join(FILE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::debug!(%error, directory = %data_dir.display(), "cannot remove {FILE}");
            }
            _ => {}
        }
    }

    /// The message of a second start on the same data directory.
    pub fn refusal(&self, data_dir: &Path) -> String {
        let Running { pid, api, kubeconfig } = self;
        format!(
            "process {pid} already serves {} at {api}, with the kubeconfig {}; use it, stop it, or start another server with \
             --listen and --data-dir",
            data_dir.display(),
            kubeconfig.display()
        )
    }
}

/// A process that listens on a TCP port.
#[derive(Debug, PartialEq, Eq)]
pub struct Listener {
    pub pid: u32,
    /// Its program and subcommand. Further arguments may contain passwords.
    pub command: String,
}

/// The process that listens on the address's port. `None` if unknown: not Linux, or another user's process.
pub fn listener(address: SocketAddr) -> Option<Listener> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<String> = tables.iter().flat_map(|table| listening_inodes(table, address.port())).collect();
    let processes = std::fs::read_dir("/proc").ok()?;
    processes.filter_map(Result::ok).find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(process.path().join("fd")).ok()?.filter_map(Result::ok);
        let holds = files.any(|file| {
            let target = std::fs::read_link(file.path()).unwrap_or_default();
            inodes.iter().any(|inode| target.as_os_str() == format!("socket:[{inode}]").as_str())
        });
        let command = std::fs::read(process.path().join("cmdline")).ok().filter(|_| holds)?;
        Some(Listener { pid, command: short_command(&String::from_utf8_lossy(&command)) })
    })
}

/// The name of the program and its first argument, from NUL-terminated arguments.
fn short_command(arguments: &str) -> String {
    let mut words = arguments.split('\0').filter(|word| !word.is_empty());
    let program = words.next().unwrap_or("unknown");
    let name = program.rsplit('/').next().unwrap_or(program);
    match words.next().filter(|word| !word.starts_with('-')) {
        Some(subcommand) => format!("{name} {subcommand}"),
        None => name.to_owned(),
    }
}

/// The inodes of the sockets that listen on a port, from a table as in /proc/net/tcp.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = rows.filter(|row| row.len() > 9 && row[3] == LISTEN && row[1].ends_with(&format!(":{port:04X}")));
    listening.map(|row| row[9].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = super::listener(listener.local_addr().unwrap()).unwrap();
        assert_eq!(found.pid, std::process::id());
        assert!(found.command.contains("mainstay"), "{found:?}");
    }

    #[test]
    fn commands_are_named_without_their_secrets() {
        assert_eq!(short_command("/usr/bin/mainstay\0up\0--etcd-user\0a:b\0"), "mainstay up");
        assert_eq!(short_command("nginx\0-g\0secret\0"), "nginx");
        assert_eq!(short_command(""), "unknown");
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1 x\n\
            \x20  1: 0100007F:192B 0100007F:8000 01 00000000:00000000 00:00000000 00000000  1000        0 222 1 x\n\
            \x20  2: 00000000:192C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 333 1 x\n\
            \x20  3: short\n";
        assert_eq!(listening_inodes(table, 6443), ["111"]);
    }
}
