//! One server and one namespace, from start to clean end: whatever happens to the work, what it made goes.

use crate::client::Target;
use crate::load::Load;
use crate::own;
use crate::pairs;
use crate::progress::Progress;
use crate::report::Report;
use crate::{BenchArgs, Program};
use anyhow::{Result, bail};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Enough for all pods of a soak.
const SOAK_NODES: u32 = 4;

pub struct Session {
    pub load: Load,
    /// Of a server of our own.
    pub started_in: Option<Duration>,
    own: Option<own::Server>,
    in_memory: bool,
}

/// Ctrl-C, once and again.
pub struct Stops {
    once: CancellationToken,
    twice: CancellationToken,
}

impl Stops {
    pub fn on_signals(mut signals: BoxStream<'static, ()>) -> Stops {
        let stops = Stops { once: CancellationToken::new(), twice: CancellationToken::new() };
        let (once, twice) = (stops.once.clone(), stops.twice.clone());
        tokio::spawn(async move {
            for (stop, said) in [
                (once, "Stopping: what was made is deleted first. Ctrl-C again leaves it."),
                (twice, "Leaving at once."),
            ] {
                if signals.next().await.is_none() {
                    return;
                }
                eprintln!("{said}");
                stop.cancel();
            }
        });
        stops
    }
}

/// Does work in a session, and cleans up after it.
pub async fn run(
    args: &BenchArgs,
    program: &Arc<dyn Program>,
    progress: &Progress,
    stops: &Stops,
    report: &mut Report,
    work: impl AsyncFnOnce(&mut Session, &mut Report) -> Result<()>,
) -> Result<()> {
    let mut session = tokio::select! {
        biased;
        () = stops.once.cancelled() => bail!("interrupted"),
        session = Session::start(args, program, progress) => session?,
    };
    let worked = tokio::select! {
        biased;
        () = stops.once.cancelled() => None,
        result = async {
            session.load.begin().await?;
            work(&mut session, report).await
        } => Some(result),
    };
    let namespace = session.load.namespace.clone();
    let cleaned = tokio::select! {
        biased;
        () = stops.twice.cancelled() => {
            bail!("interrupted; the namespace {namespace} and volumes of that name are left: delete them by hand")
        }
        cleaned = session.end() => cleaned,
    };
    match worked {
        Some(result) => result.and(cleaned),
        None => cleaned.and_then(|()| bail!("interrupted; what was made is deleted")),
    }
}

impl Session {
    async fn start(args: &BenchArgs, program: &Arc<dyn Program>, progress: &Progress) -> Result<Session> {
        progress.begin("starting", 0);
        let (own, target, started_in) = match &args.kubeconfig {
            Some(path) => {
                let target = Target::new(&program.read_kubeconfig(path).await?)?;
                (None, target.and(&args.servers), None)
            }
            None => {
                // The bench plays the kubelet, here as elsewhere. In a soak pods run, so that volumes are made for them.
                let nodes = if args.soak > 0 { SOAK_NODES } else { 0 };
                let (own, took) = own::Server::start(program.clone(), args.in_memory, nodes).await?;
                let target = own.target.clone();
                (Some(own), target, Some(took))
            }
        };
        let load = Load::new(target, args.clients, progress.clone());
        Ok(Session { load, started_in, own, in_memory: args.in_memory })
    }

    /// Why the server cannot be stopped and started, where it cannot.
    pub fn cannot_restart(&self) -> Option<&'static str> {
        match (&self.own, self.in_memory) {
            (None, _) => Some("only a server of our own is stopped and started"),
            (Some(_), true) => Some("with --in-memory there is nothing to start with"),
            (Some(_), false) => None,
        }
    }

    /// Stops and starts the server; gives how long each took.
    pub async fn restart(&mut self) -> Result<(Duration, Duration)> {
        let Some(own) = &mut self.own else { bail!("only a server of our own is stopped and started") };
        let times = own.restart().await?;
        self.load.target = own.target.clone();
        Ok(times)
    }

    /// Removes all that was made.
    pub async fn clean(&self) -> Result<()> {
        self.load.progress.begin("cleaning up", 0);
        let cleaned = self.load.clean().await;
        let freed = pairs::clean(&self.load).await;
        cleaned.and(freed)
    }

    /// A server of our own goes with all that it has.
    async fn end(self) -> Result<()> {
        match self.own {
            Some(own) => own.stop().await,
            None => self.clean().await,
        }
    }
}
