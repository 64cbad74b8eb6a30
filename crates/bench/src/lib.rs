//! `mainstay bench`: runs the same work against any Kubernetes API server and reports it as a table, as JSON and as a plot.
//!
//! This crate is a client. It must never know the server, the store or the controllers: what it needs from the program
//! that contains it is in [`Program`].
//!
//! Begin with [`run`], and with `session` for what happens before and after the work.

mod args;
mod client;
mod dependants;
mod follow;
mod growth;
mod kubelet;
mod load;
mod own;
mod pairs;
mod plateau;
mod plot;
mod program;
mod progress;
mod report;
mod resize;
mod session;
mod sets;
mod soak;
mod usage;

pub use args::{BenchArgs, Work};
pub use program::{BadInput, Program};

use anyhow::{Context, Result};
use progress::Progress;
use report::Report;
use session::{Session, Stops};
use sets::Shape;
use std::sync::Arc;
use std::time::Duration;
use usage::Usage;

/// The parallel sets; how many replicas they have can be chosen.
const PARALLEL_SETS: usize = 4;
const ORDERED_REPLICAS: usize = 5;
/// Controllers fill their caches in the first moments; idle is after that.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// Runs the work that the flags choose and prints the report.
pub async fn run(args: Box<BenchArgs>, program: Arc<dyn Program>) -> Result<()> {
    args.check()?;
    let progress = Progress::default();
    let shown = progress.clone();
    tokio::spawn(async move { shown.show().await });
    let mut report = Report::new(progress.clone());
    let stops = Stops::on_signals(program.stop_signals()?);
    if args.growth || !args.sizes.is_empty() {
        growth::run(&args, &program, &progress, &stops, &mut report).await?;
    } else {
        let work = async |session: &mut Session, report: &mut Report| work(session, &args, report).await;
        session::run(&args, &program, &progress, &stops, &mut report, work).await?;
    }
    print!("{}", report.table());
    if let Some(path) = &args.json {
        std::fs::write(path, report.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, plot::svg(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

async fn work(session: &mut Session, args: &BenchArgs, report: &mut Report) -> Result<()> {
    if args.soak > 0 {
        return soak::run(&session.load, Duration::from_secs(args.soak), report).await;
    }
    if let Some(took) = session.started_in {
        let detail = "first start, own CA and bootstrap objects made, until /readyz";
        report.figure("start until ready", took.as_secs_f64() * 1e3, "ms", detail);
        tokio::time::sleep(IDLE_AFTER).await;
        let memory = Usage::ask(&session.load.target).await?.memory_mb()?;
        report.figure("resident memory, idle", memory, "MB", "two seconds after the start");
    }
    let load = &session.load;
    let wants = |work: Work, count: usize| count > 0 && (args.only.is_empty() || args.only.contains(&work));
    if wants(Work::Api, args.objects) {
        load.run(args.objects, report).await?;
    }
    for (sets, replicas, parallel) in
        [(args.sets, ORDERED_REPLICAS, false), (if args.sets > 0 { PARALLEL_SETS } else { 0 }, args.replicas, true)]
    {
        for claims in [true, false] {
            if wants(Work::Sets, sets * replicas) {
                sets::run(load, Shape { sets, replicas, parallel, claims }, report).await?;
            }
        }
    }
    if wants(Work::Bind, args.pairs) {
        pairs::run(load, args.pairs, report).await?;
    }
    if wants(Work::Provision, args.volumes) {
        pairs::provision(load, &args.driver, args.volumes, report).await?;
    }
    if wants(Work::Resize, args.claims) {
        resize::run(load, &args.driver, args.claims, report).await?;
    }
    if wants(Work::Gc, args.dependants) {
        dependants::run(load, args.dependants, report).await?;
    }
    if wants(Work::Restart, args.stored) {
        restart(session, args, report).await?;
    }
    if session.started_in.is_some() {
        session.clean().await?;
        let memory = Usage::ask(&session.load.target).await?.memory_mb()?;
        report.figure("resident memory, after", memory, "MB", "after all work, objects deleted");
    }
    Ok(())
}

/// Stops and starts our own server with objects in its store.
async fn restart(session: &mut Session, args: &BenchArgs, report: &mut Report) -> Result<()> {
    if let Some(why) = session.cannot_restart() {
        report.leave_out("restart", why);
        return Ok(());
    }
    let count = args.stored;
    session.load.create_objects(count).await?;
    session.load.progress.begin("restart", 0);
    let (stopped_in, started_in) = session.restart().await?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    report.figure("stop", ms(stopped_in), "ms", format!("with {count} objects of 1 KB, until the process is gone"));
    report.figure("restart until ready", ms(started_in), "ms", format!("with {count} objects of 1 KB, until /readyz"));
    let memory = Usage::ask(&session.load.target).await?.memory_mb()?;
    report.figure("resident memory, restarted", memory, "MB", format!("with {count} objects of 1 KB"));
    Ok(())
}
