//! Log lines, to stderr: warnings and errors unless `MAINSTAY_LOG` asks for more (`info`, `server=debug`).
//!
//! The client library says of each failed connection only that it failed; who asked says why, and what it does about it.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

pub fn start() {
    let filter = EnvFilter::try_from_env("MAINSTAY_LOG")
        .unwrap_or_else(|_| EnvFilter::new("warn,kube_client::client::builder=off"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
}
