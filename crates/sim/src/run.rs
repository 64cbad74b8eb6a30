//! One run: a story in a world, with what is to go wrong.

use crate::end;
use crate::entropy::{self, Rng};
use crate::point::{Counted, Strike, When};
use crate::stories::Story;
use crate::storm::{self, FAIR, Storm};
use crate::world::World;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub story: &'static Story,
    pub seed: u64,
    /// Whether parts die and the network misbehaves at random.
    pub storm: bool,
    pub strike: Option<(When, Strike)>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub lines: Vec<String>,
    pub faults: BTreeMap<&'static str, u64>,
    /// Rules that were broken, or what was waited for in vain.
    pub broken: Vec<String>,
    /// How everything was in the end.
    pub end: String,
    pub counted: Counted,
    /// Something happened after which even an exact story may end differently: a write was late, something came once more, or nobody can
    /// know any more what was to become of a volume.
    pub excused: bool,
    pub virtual_ms: u128,
}

/// Deep futures in a debug build need their room.
const STACK_BYTES: usize = 32 << 20;

/// Runs work on a thread of its own, whose time stands still and whose chance comes from the seed.
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
        // What is shared by all worlds is made before, so that the first world is like the others.
        crate::world::prepare();
        on_own_thread(self.seed, move || self.play())
    }

    /// Where the world, the storm and the story take their chance from.
    fn chances(&self) -> (u64, Option<Rng>, Rng) {
        let mut rng = Rng::new(self.seed ^ 0x51);
        let world = rng.next();
        (world, self.storm.then(|| rng.fork()), rng.fork())
    }

    /// Which gates the story `flipped` flips.
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
            // Over and over, as in a storm, it may take as long as it will.
            _ => {}
        }
        world.ledger.points.begin(self.strike);
        let raging = storm.map(|rng| tokio::spawn(Storm { world: world.clone(), rng }.rage()));
        let told = (self.story.tell)(world.clone(), story).await;
        if let Some(raging) = raging {
            raging.abort();
            storm::end(&world);
        }
        world.ledger.points.disarm();
        let mut failure = told.err();
        if failure.is_none() {
            failure = end::rest(&world).await.err();
        }
        let outcome = Outcome {
            lines: world.log.lines(),
            faults: world.log.faults(),
            broken: world.log.all_broken().into_iter().chain(failure).collect(),
            end: end::summary(&world),
            counted: world.ledger.points.counted(),
            excused: world.log.faults().contains_key("late")
                || world.ledger.has_any_returned()
                || world.checker().has_forgotten(),
            virtual_ms: world.elapsed_ms(),
        };
        supervisor.abort();
        // What is to be done then holds the world, and the world holds it.
        world.ledger.points.on_strike(|_| {});
        outcome
    }
}

/// How long somebody may act on what was said before where nothing goes wrong.
const CALM_ECHO: Duration = Duration::from_secs(5);

/// So long must rest last.
pub const QUIET: Duration = Duration::from_secs(40);

/// As the command that shows it again.
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
