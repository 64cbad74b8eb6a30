//! `sim`: runs stories in simulated worlds with injected faults.

use clap::Parser;
use sim::{Fault, RunConfig, Story, Trigger, stories};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "Runs stories in simulated worlds with injected faults; the same seed gives the same run")]
struct Args {
    /// Number of seeds to run
    #[arg(long, default_value_t = 50, value_name = "N")]
    seeds: u64,
    /// First seed to run
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    from: u64,
    /// Run one seed and print every step
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
    /// Run only this story; --list prints the names
    #[arg(long, value_name = "NAME")]
    story: Option<String>,
    /// Instead of random faults, inject one fault at each write of each story, one run per write
    #[arg(long)]
    points: bool,
    /// With --points: only at every K-th write
    #[arg(long, default_value_t = 1, value_name = "K")]
    stride: u64,
    #[arg(long, value_name = "FAULT", help = format!("Inject only this fault: {}", fault_names()))]
    fault: Option<String>,
    /// With --replay and --fault: inject at this write or call, counted from 1 [default: at every write of the
    /// controllers]
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    /// Instead of random faults, inject a fault at every K-th write of the controllers until the story ends
    #[arg(long, value_name = "K", conflicts_with_all = ["points", "at"])]
    every: Option<u64>,
    /// With --replay: inject no faults
    #[arg(long)]
    calm: bool,
    /// Number of worlds to run at the same time
    #[arg(long, default_value_t = 2, value_name = "N")]
    jobs: usize,
    /// Print the names of the stories
    #[arg(long)]
    list: bool,
}

/// Exit code for wrong arguments, as in all programs of Mainstay.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// Returns whether all runs passed. The error is one sentence about wrong arguments.
fn run(args: &Args) -> Result<bool, String> {
    if args.list {
        stories::ALL.iter().for_each(|story| println!("{:<24} {}", story.name, story.about));
        return Ok(true);
    }
    if args.stride == 0 || args.every == Some(0) {
        return Err("--stride and --every must be at least 1".to_owned());
    }
    let story = args.story.as_deref().map(find_story).transpose()?;
    let fault = args.fault.as_deref().map(find_fault).transpose()?;
    if fault.is_some() && !args.points && args.every.is_none() && args.replay.is_none() {
        return Err("--fault requires --points, --every or --replay".to_owned());
    }
    let is_every_write = args.at.is_none() && args.every.unwrap_or(1) == 1 && !args.points;
    if let Some(fault) = fault.filter(|fault| fault.prevents_progress() && is_every_write) {
        return Err(format!("{fault} at every write prevents all progress: use --every 2 or more"));
    }
    if let Some(seed) = args.replay {
        return Ok(replay(args, seed, story, fault));
    }
    let tell = |line: &str| println!("{line}");
    let faults = fault.map_or_else(|| Fault::ALL.to_vec(), |fault| vec![fault]);
    let chosen = || stories::ALL.iter().filter(|it| story.is_none_or(|story| story.name == it.name));
    let tally = if let Some(nth) = args.every {
        let mut tally = sim::Totals::default();
        for fault in faults.into_iter().filter(|fault| nth > 1 || !fault.prevents_progress()) {
            let told = sim::every(chosen(), fault, nth, args.jobs, tell);
            println!("{fault}: {} runs, {} failures", told.runs, told.failures.len());
            tally.merge(told);
        }
        tally
    } else if args.points {
        let mut tally = sim::Totals::default();
        for story in chosen() {
            let told = sim::points(story, &faults, args.stride, args.jobs, tell);
            println!("{}: {} runs, {} failures", story.name, told.runs, told.failures.len());
            tally.merge(told);
        }
        tally
    } else {
        sim::seeds(args.from, args.seeds, story, args.jobs, tell)
    };
    println!("{}", tally.text());
    Ok(tally.failures.is_empty())
}

fn replay(args: &Args, seed: u64, story: Option<&'static Story>, fault: Option<Fault>) -> bool {
    let story = story.unwrap_or_else(|| sim::story_of(seed));
    let fault =
        fault.map(|fault| (args.at.map_or_else(|| Trigger::Every(args.every.unwrap_or(1)), Trigger::At), fault));
    let plan = RunConfig { story, seed, random_faults: !args.calm && fault.is_none(), fault };
    let outcome = plan.run();
    outcome.lines.iter().for_each(|line| println!("{line}"));
    println!("\nFinal state:\n{}", outcome.end);
    outcome.violations.iter().for_each(|rule| println!("BROKEN {rule}"));
    let counted = outcome.counted;
    let (commits, requests, calls) = (counted.commits, counted.requests, counted.calls);
    println!("{commits} writes, {requests} of them requested by controllers, {calls} driver calls");
    outcome.violations.is_empty()
}

fn find_story(name: &str) -> Result<&'static Story, String> {
    stories::find(name).ok_or_else(|| format!("unknown story {name:?}; --list prints the names"))
}

fn find_fault(name: &str) -> Result<Fault, String> {
    Fault::parse(name).ok_or_else(|| format!("unknown fault {name:?}; use one of {}", fault_names()))
}

fn fault_names() -> String {
    Fault::ALL.map(Fault::name).join(", ")
}
