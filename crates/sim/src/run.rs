//! One run: a story in a world, with the faults to inject.

use crate::entropy::{self, Rng};
use crate::fault_point::{Counted, Strike, When};
use crate::final_state;
use crate::random_faults::{self, FAIR, Storm};
use crate::stories::Story;
use crate::world::World;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub story: &'static Story,
    pub seed: u64,
    /// Whether to inject faults at random times.
    pub storm: bool,
    pub strike: Option<(When, Strike)>,
}

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub lines: Vec<String>,
    pub faults: BTreeMap<&'static str, u64>,
    /// Violated rules, and conditions that a story waited for without success.
    pub broken: Vec<String>,
    /// Final state of all objects, as text.
    pub end: String,
    pub counted: Counted,
    /// Whether even an exact story may end in another state: a write arrived late, an object was created again, or no
    /// component can know any more what must happen to a volume.
    pub excused: bool,
    pub virtual_ms: u128,
}

/// Stack size of a run's thread. Nested futures of a debug build need more than the default.
const STACK_BYTES: usize = 32 << 20;

/// Runs `work` on a thread of its own with a paused clock and randomness from `seed`.
pub fn on_own_thread<T: Send + 'static, F: Future<Output = T>>(
    seed: u64,
    work: impl FnOnce() -> F + Send + 'static,
) -> T {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        entropy::seed_thread(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(work())
    });
    match thread.expect("a thread").join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Plan {
    pub fn run(self) -> Outcome {
        // Build shared state first, so that the first world draws the same random numbers as later ones.
        crate::world::prepare();
        on_own_thread(self.seed, move || self.play())
    }

    /// Random number sources for the world, the random faults and the story.
    fn chances(&self) -> (u64, Option<Rng>, Rng) {
        let mut rng = Rng::new(self.seed ^ 0x51);
        let world = rng.next();
        (world, self.storm.then(|| rng.fork()), rng.fork())
    }

    /// Index of the gate combination that the story `flipped` uses with this seed.
    pub fn hand(&self) -> usize {
        crate::stories::hand(&mut self.chances().2)
    }

    async fn play(self) -> Outcome {
        let (seed, storm, story) = self.chances();
        let (world, orders) = World::new(seed).await;
        world.net.set_weather(FAIR);
        let supervised = world.clone();
        let supervisor = tokio::spawn(async move { supervised.supervise(orders).await });
        match self.strike {
            None if !self.storm => world.set_echo(CALM_ECHO),
            Some((When::At(_), strike)) => world.set_echo(strike.echo()),
            // A fault that is repeated, as in random faults, may delay the story for any length of time.
            _ => {}
        }
        world.ledger.points.begin(self.strike);
        let raging = storm.map(|rng| tokio::spawn(Storm { world: world.clone(), rng }.rage()));
        let told = (self.story.tell)(world.clone(), story).await;
        if let Some(raging) = raging {
            raging.abort();
            random_faults::end(&world);
        }
        world.ledger.points.disarm();
        let mut failure = told.err();
        if failure.is_none() {
            failure = final_state::rest(&world).await.err();
        }
        let outcome = Outcome {
            lines: world.log.lines(),
            faults: world.log.faults(),
            broken: world.log.all_broken().into_iter().chain(failure).collect(),
            end: final_state::summary(&world),
            counted: world.ledger.points.counted(),
            excused: world.log.faults().contains_key("late")
                || world.ledger.has_any_returned()
                || world.checker().has_forgotten(),
            virtual_ms: world.elapsed_ms(),
        };
        supervisor.abort();
        // The fault handler holds the world, and the world holds the handler. Break this cycle.
        world.ledger.points.on_strike(|_| {});
        outcome
    }
}

/// Without faults, a component may act this long on the old value of a spec that a user has changed.
const CALM_ECHO: Duration = Duration::from_secs(5);

/// The final state must stay unchanged for this long.
pub const QUIET: Duration = Duration::from_secs(40);

/// Prints the arguments of `sim` that repeat this run.
impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--story {} --replay {}", self.story.name, self.seed)?;
        match self.strike {
            Some((When::At(at), strike)) => write!(f, " --strike {strike} --at {at}"),
            Some((When::Every(nth), strike)) => write!(f, " --strike {strike} --every {nth}"),
            None if self.storm => Ok(()),
            None => f.write_str(" --calm"),
        }
    }
}
