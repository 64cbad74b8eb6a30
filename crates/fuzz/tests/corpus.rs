//! Every input that was ever found is read again, and others for a short while. `MAINSTAY_FUZZ_SECONDS` makes it longer for each target,
//! `MAINSTAY_FUZZ_SEED` makes other inputs.

use std::time::Duration;

#[test]
fn what_is_kept_and_what_is_near_it_is_read() {
    let seconds = std::env::var("MAINSTAY_FUZZ_SECONDS").map_or(1.0, |text| text.parse().expect("a number of seconds"));
    // The same seed in each run, so that a failure here comes of the change at hand. To look for what is new, use the program.
    let seed = std::env::var("MAINSTAY_FUZZ_SEED").map_or(1, |text| text.parse().expect("a seed"));
    // Panics that are caught on the way are no news: the engine's, on damaged files.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes: Vec<_> =
        fuzz::targets::ALL.iter().map(|target| (target, target.run(Duration::from_secs_f64(seconds), seed))).collect();
    std::panic::set_hook(usual);
    for (target, outcome) in outcomes {
        assert!(target.corpus().len() > 1, "{} has no corpus", target.name);
        println!("{}: {} inputs, {} different answers, seed {seed}", target.name, outcome.inputs, outcome.said);
        if let Some(find) = outcome.find {
            panic!("{} (seed {seed}): {}\nfor {:?}", target.name, find.why, String::from_utf8_lossy(&find.input));
        }
        assert!(outcome.said > 1, "{} says the same of everything", target.name);
    }
}
