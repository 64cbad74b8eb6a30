//! `cargo run --release -p fuzz -- [TARGET] --seconds 600`: searches for inputs that cause a panic, and stores them.

use anyhow::{Result, bail};
use clap::Parser;
use std::time::Duration;

/// Passes mutated inputs to every parser
#[derive(Parser)]
struct Args {
    /// Only this target
    target: Option<String>,
    /// Seconds per target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the mutations: the same seed gives the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let known: Vec<&str> = fuzz::targets::ALL.iter().map(|target| target.name).collect();
    if let Some(name) = args.target.as_deref().filter(|name| !known.contains(name)) {
        bail!("unknown target {name:?}; use one of {}", known.join(", "));
    }
    // Each failure is printed below with its input.
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = 0;
    for target in
        fuzz::targets::ALL.iter().filter(|target| args.target.as_deref().is_none_or(|name| name == target.name))
    {
        let outcome = target.run(Duration::from_secs(args.seconds), args.seed);
        println!("{:<10} {:>9} inputs, {:>5} different outcomes", target.name, outcome.inputs, outcome.outcomes);
        if let Some(find) = outcome.find {
            found += 1;
            println!("  {}\n  stored as {}", find.why, target.keep(&find.input)?.display());
        }
    }
    if found > 0 {
        bail!("{found} targets failed");
    }
    Ok(())
}
