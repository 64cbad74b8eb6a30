//! One run: a story in a world, with the faults to inject.

use crate::entropy::{self, Rng};
use crate::fault_point::{Fault, PointCounts, Trigger};
use crate::final_state;
use crate::random_faults::{self, ORDINARY_DELAYS, RandomFaults};
use crate::stories::Story;
use crate::world::World;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    pub story: &'static Story,
    pub seed: u64,
    /// Whether to inject faults at random times.
    pub random_faults: bool,
    pub fault: Option<(Trigger, Fault)>,
}

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub lines: Vec<String>,
    pub faults: BTreeMap<&'static str, u64>,
    /// Violated rules, and conditions that a story waited for without success.
    pub violations: Vec<String>,
    /// Final state of all objects, as text.
    pub end: String,
    pub counted: PointCounts,
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

impl RunConfig {
    pub fn run(self) -> Outcome {
        // Build shared state first, so that the first world draws the same random numbers as later ones.
        crate::world::prepare();
        on_own_thread(self.seed, move || self.run_story())
    }

    /// Random number sources for the world, the random faults and the story.
    fn random_sources(&self) -> (u64, Option<Rng>, Rng) {
        let mut rng = Rng::new(self.seed ^ 0x51);
        let world = rng.next();
        (world, self.random_faults.then(|| rng.fork()), rng.fork())
    }

    /// Index of the gate combination that the story `flipped` uses with this seed.
    pub fn gate_combination(&self) -> usize {
        crate::stories::gate_combination(&mut self.random_sources().2)
    }

    async fn run_story(self) -> Outcome {
        let (seed, random_faults, story) = self.random_sources();
        let (world, orders) = World::new(seed).await;
        world.net.set_fault_rates(ORDINARY_DELAYS);
        let supervised = world.clone();
        let supervisor = tokio::spawn(async move { supervised.supervise(orders).await });
        match self.fault {
            None if !self.random_faults => world.set_echo(ECHO_WITHOUT_FAULTS),
            Some((Trigger::At(_), fault)) => world.set_echo(fault.echo()),
            // A fault that is repeated, as in random faults, may delay the story for any length of time.
            _ => {}
        }
        world.commit_checker.points.begin(self.fault);
        let injecting = random_faults.map(|rng| tokio::spawn(RandomFaults { world: world.clone(), rng }.run()));
        let told = (self.story.run)(world.clone(), story).await;
        if let Some(injecting) = injecting {
            injecting.abort();
            random_faults::stop(&world);
        }
        world.commit_checker.points.disarm();
        let mut failure = told.err();
        if failure.is_none() {
            failure = final_state::settle(&world).await.err();
        }
        let outcome = Outcome {
            lines: world.log.lines(),
            faults: world.log.faults(),
            violations: world.log.violations().into_iter().chain(failure).collect(),
            end: final_state::summary(&world),
            counted: world.commit_checker.points.counted(),
            excused: world.log.faults().contains_key("late")
                || world.commit_checker.may_any_be_recreated()
                || world.checker().has_forgotten(),
            virtual_ms: world.elapsed_ms(),
        };
        supervisor.abort();
        // The fault handler holds the world, and the world holds the handler. Break this cycle.
        world.commit_checker.points.on_fault(|_| {});
        outcome
    }
}

/// Without faults, a component may act this long on the old value of a spec that a user has changed.
const ECHO_WITHOUT_FAULTS: Duration = Duration::from_secs(5);

/// The final state must stay unchanged for this long.
pub const QUIET_PERIOD: Duration = Duration::from_secs(40);

/// Prints the arguments of `sim` that repeat this run.
impl std::fmt::Display for RunConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--story {} --replay {}", self.story.name, self.seed)?;
        match self.fault {
            Some((Trigger::At(at), fault)) => write!(f, " --fault {fault} --at {at}"),
            Some((Trigger::Every(nth), fault)) => write!(f, " --fault {fault} --every {nth}"),
            None if self.random_faults => Ok(()),
            None => f.write_str(" --calm"),
        }
    }
}
