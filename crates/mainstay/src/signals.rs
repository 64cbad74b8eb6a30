//! How the process is told to end: Ctrl-C, and what init systems send.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listens from when it is made, so that it is made before anything is opened or said: what comes between two waits is heard by the second. (Who only
/// listens while it waits loses that: once anybody has listened the system no longer ends the process by itself.)
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn listen() -> Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
        })
    }

    /// Waits until the process is told to end, since it was last told here.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Cancelled when the process is told to end.
    pub fn stop(mut self) -> CancellationToken {
        let stop = CancellationToken::new();
        let told = stop.clone();
        tokio::spawn(async move {
            self.next().await;
            eprintln!("Stopping.");
            told.cancel();
        });
        stop
    }
}
