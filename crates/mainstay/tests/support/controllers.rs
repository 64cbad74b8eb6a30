//! `mainstay controllers` and `mainstay nodes` as processes.

use super::cluster::{Cluster, mainstay};
use super::program::{PATIENCE, Running};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A process with controllers.
pub struct Controllers {
    pub program: Running,
    /// Where its figures and its health are, without `http://`.
    address: String,
}

impl Controllers {
    pub fn start(cluster: &Cluster, kubeconfig: &Path, arguments: &[&str]) -> Controllers {
        let mut command = mainstay(cluster.path());
        command
            .arg("controllers")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments);
        let mut program = Running::start(command);
        let line = program.line_with(&["metrics", "http://"]);
        let url = line.split("http://").nth(1).expect("it is in the line");
        let address = url.trim_end_matches("/metrics").to_owned();
        Controllers { program, address }
    }

    /// GET over plain HTTP: the code and the body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        (code, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// Waits until the metrics contain this line; they follow asynchronously.
    pub fn until_figure(&self, line: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (code, figures) = self.get("/metrics");
            assert_eq!(code, 200, "{figures}");
            if figures.lines().any(|found| found == line) {
                return;
            }
            assert!(Instant::now() < deadline, "no {line} in\n{figures}");
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Stops it cleanly; returns its output.
    pub fn stop(self) -> Vec<String> {
        self.program.terminate();
        let (status, lines) = self.program.finish();
        assert_eq!(status.code(), Some(0), "{lines:?}");
        lines
    }
}

/// Simulated nodes, as the user of the kubeconfig.
pub fn nodes(cluster: &Cluster, kubeconfig: &Path) -> Running {
    let mut command = mainstay(cluster.path());
    command.arg("nodes").arg("--kubeconfig").arg(kubeconfig);
    let mut nodes = Running::start(command);
    nodes.line_with(&["The nodes run"]);
    nodes
}
