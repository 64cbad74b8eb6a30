//! The signals that stop the process: SIGINT (Ctrl-C), and SIGTERM from init systems.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Catches signals from its creation on, so create it before opening or printing anything. A signal between two calls
/// of [`Signals::next`] is returned by the second. Once a handler is installed the system no longer ends the process by
/// itself.
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

    /// Waits for a stop signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// A token that is cancelled by the next stop signal.
    pub fn stop(mut self) -> CancellationToken {
        let stop = CancellationToken::new();
        let token = stop.clone();
        tokio::spawn(async move {
            self.next().await;
            eprintln!("Stopping.");
            token.cancel();
        });
        stop
    }
}
