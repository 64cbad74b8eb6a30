//! Reads every stored input, and mutated inputs for a short time. `MAINSTAY_FUZZ_SECONDS` sets the seconds per
//! target, `MAINSTAY_FUZZ_SEED` another seed.

use std::time::Duration;

#[test]
fn the_corpus_and_mutations_of_it_do_not_fail() {
    let seconds = std::env::var("MAINSTAY_FUZZ_SECONDS").map_or(1.0, |text| text.parse().expect("a number of seconds"));
    // The same seed in each run, so that a failure is caused by the current change. To search for new failures, use
    // the program.
    let seed = std::env::var("MAINSTAY_FUZZ_SEED").map_or(1, |text| text.parse().expect("a seed"));
    // Silence panics that are caught on purpose: the store engine panics on damaged files.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes: Vec<_> =
        fuzz::targets::ALL.iter().map(|target| (target, target.run(Duration::from_secs_f64(seconds), seed))).collect();
    std::panic::set_hook(usual);
    for (target, outcome) in outcomes {
        assert!(target.corpus().len() > 1, "{} has no corpus", target.name);
        println!("{}: {} inputs, {} different outcomes, seed {seed}", target.name, outcome.inputs, outcome.outcomes);
        if let Some(find) = outcome.find {
            panic!("{} (seed {seed}): {}\nfor {:?}", target.name, find.why, String::from_utf8_lossy(&find.input));
        }
        assert!(outcome.outcomes > 1, "{} describes every input alike", target.name);
    }
}
