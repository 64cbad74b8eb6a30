//! `mainstay bench`: the same work against any Kubernetes API server, as a table and as JSON.

mod client;
mod load;
mod own;
mod report;

use crate::cli::BenchArgs;
use anyhow::{Context, Result};
use client::Target;
use load::Load;
use report::Report;

pub async fn run(args: Box<BenchArgs>) -> Result<()> {
    let mut report = Report::default();
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => {
            Some(own::Server::start(args.in_memory, &mut report).await.context("cannot start a server of our own")?)
        }
    };
    let kubeconfig = match (&args.kubeconfig, &own) {
        (Some(path), _) => path.clone(),
        (None, Some(own)) => own.kubeconfig.clone(),
        (None, None) => unreachable!("a server of our own is started when none is given"),
    };
    let target = Target::read(&kubeconfig).await?;
    let load = Load::new(target, args.clients, args.objects).await?;
    let result = load.run(&mut report).await;
    // Whatever happened, what we made goes.
    let cleaned = load.clean().await;
    if let Some(own) = own {
        own.stop(&mut report).await?;
    }
    result?;
    cleaned?;
    print!("{}", report.table());
    if let Some(path) = &args.json {
        std::fs::write(path, report.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
