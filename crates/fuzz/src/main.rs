//! `cargo run --release -p fuzz -- [TARGET] --seconds 600`: looks for inputs that must not be, and keeps what it finds.

use anyhow::{Result, bail};
use clap::Parser;
use std::time::Duration;

/// Gives changed inputs to whatever reads input
#[derive(Parser)]
struct Args {
    /// Only this one of the targets
    target: Option<String>,
    /// How long each of them is tried
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the changes come from: the same seed, the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let known: Vec<&str> = fuzz::targets::ALL.iter().map(|target| target.name).collect();
    if let Some(name) = args.target.as_deref().filter(|name| !known.contains(name)) {
        bail!("there is no target {name:?}; there are {}", known.join(", "));
    }
    // A panic is told below, with its input.
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = 0;
    for target in
        fuzz::targets::ALL.iter().filter(|target| args.target.as_deref().is_none_or(|name| name == target.name))
    {
        let outcome = target.run(Duration::from_secs(args.seconds), args.seed);
        println!("{:<10} {:>9} inputs, {:>5} different answers", target.name, outcome.inputs, outcome.said);
        if let Some(find) = outcome.find {
            found += 1;
            println!("  {}\n  kept as {}", find.why, target.keep(&find.input)?.display());
        }
    }
    if found > 0 {
        bail!("{found} of the targets read something that must not be");
    }
    Ok(())
}
