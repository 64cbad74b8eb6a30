//! `sim`: runs stories in simulated worlds.

use anyhow::{Result, bail};
use clap::Parser;
use sim::{Plan, stories};

#[derive(Debug, Parser)]
struct Args {
    /// Run so many seeds
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run one seed and print what happens
    #[arg(long)]
    replay: Option<u64>,
    /// Only this story
    #[arg(long)]
    story: Option<String>,
    /// Nothing goes wrong
    #[arg(long)]
    calm: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let story = match &args.story {
        Some(name) => match stories::find(name) {
            Some(story) => story,
            None => bail!("no story {name}"),
        },
        None => &stories::ALL[0],
    };
    let plan = Plan { story, seed: args.replay.unwrap_or(args.from), storm: !args.calm, strike: None };
    let outcome = plan.run();
    for line in &outcome.lines {
        println!("{line}");
    }
    println!("{}\n{:?}\n{:?} {} ms {:?}", outcome.end, outcome.faults, outcome.counted, outcome.virtual_ms, outcome.broken);
    Ok(())
}
