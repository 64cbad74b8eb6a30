//! What this crate needs from the program that contains it.

use anyhow::Result;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use kube::Config;
use std::path::{Path, PathBuf};

/// The program that contains this crate.
pub trait Program: Send + Sync {
    /// Returns the executable whose subcommand `up` starts the server to measure.
    fn executable(&self) -> Result<PathBuf>;

    /// Reads the server's address and the credentials from a kubeconfig.
    fn read_kubeconfig<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Config>>;

    /// Returns one item for each signal to stop that arrives from now on.
    fn stop_signals(&self) -> Result<BoxStream<'static, ()>>;
}

/// Input that the user can correct; its text is one sentence.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}
