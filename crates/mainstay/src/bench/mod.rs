//! `mainstay bench`: the same work against any Kubernetes API server, as a table and as JSON.

mod client;
mod follow;
mod load;
mod own;
mod pairs;
mod report;
mod sets;
mod soak;

use crate::cli::BenchArgs;
use anyhow::{Context, Result};
use client::Target;
use load::Load;
use report::Report;
use sets::Shape;

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
    let target = Target::read(&kubeconfig).await?.and(&args.servers);
    let load = Load::new(target, args.clients, args.objects).await?;
    let result = work(&load, &args, &mut report).await;
    // Whatever happened, what we made goes.
    let cleaned = load.clean().await;
    let freed = pairs::clean(&load).await;
    if let Some(own) = own {
        own.stop(&mut report).await?;
    }
    result?;
    cleaned?;
    freed?;
    print!("{}", report.table());
    if let Some(path) = &args.json {
        std::fs::write(path, report.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

async fn work(load: &Load, args: &BenchArgs, report: &mut Report) -> Result<()> {
    if args.soak > 0 {
        return soak::run(load, std::time::Duration::from_secs(args.soak), report).await;
    }
    if args.objects > 0 {
        load.run(report).await?;
    }
    if args.sets > 0 {
        let ordered = Shape { name: "ordered", sets: args.sets, replicas: 5, parallel: false, claims: true };
        sets::run(load, ordered, report).await?;
        let parallel = Shape { name: "parallel", sets: 4, replicas: 250, parallel: true, claims: false };
        sets::run(load, parallel, report).await?;
    }
    if args.pairs > 0 {
        pairs::run(load, args.pairs, report).await?;
    }
    if args.volumes > 0 {
        pairs::provision(load, &args.driver, args.volumes, report).await?;
    }
    Ok(())
}
