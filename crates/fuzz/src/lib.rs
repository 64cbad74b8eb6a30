//! A fuzzer for all code that parses input. It mutates the inputs of `corpus/` and passes them to a [`Target`].
//!
//! A stable toolchain has no coverage instrumentation (decision 13). Instead, each target returns a short description
//! of the outcome, and an input with a new description is mutated further. Inputs depend on the seed alone, so a
//! failure can be repeated.
//!
//! This crate is not part of the binary. Begin with [`targets`] to add a parser.

mod mutate;
pub mod targets;

use mutate::Mutator;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit of processor time for one input.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Number of inputs with a new description that a run keeps for further mutation.
const CORPUS_MAX: usize = 4096;

/// A parser under test.
pub struct Target {
    pub name: &'static str,
    /// Creates a reader. Its state is kept from one input to the next.
    pub start: fn() -> Box<dyn Reader>,
}

pub trait Reader {
    /// Parses an input and describes the outcome in a few words, without details of the input. A panic is a failure.
    fn read(&mut self, input: &[u8]) -> String;
}

impl<F: FnMut(&[u8]) -> String> Reader for F {
    fn read(&mut self, input: &[u8]) -> String {
        self(input)
    }
}

/// An input that causes a panic or takes too long.
pub struct FailingInput {
    pub input: Vec<u8>,
    pub why: String,
}

/// The result of a run.
pub struct Outcome {
    pub inputs: u64,
    /// Number of different descriptions.
    pub outcomes: usize,
    pub find: Option<FailingInput>,
}

impl Target {
    /// Reads the corpus, then mutated inputs, until the time is over or an input fails.
    pub fn run(&self, time: Duration, seed: u64) -> Outcome {
        let mut corpus = self.corpus();
        let mut reader = (self.start)();
        let mut outcome = Outcome { inputs: 0, outcomes: 0, find: None };
        let mut outcomes = HashSet::new();
        for input in &corpus {
            outcome.inputs += 1;
            match attempt(&mut *reader, input) {
                Ok(description) => drop(outcomes.insert(shape(&description))),
                Err(why) => return Outcome { find: Some(self.minimize(input.clone(), why)), ..outcome },
            }
        }
        let mut mutator = Mutator::new(seed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let input = mutator.change(&corpus);
            outcome.inputs += 1;
            match attempt(&mut *reader, &input) {
                Ok(description) if outcomes.insert(shape(&description)) && corpus.len() < CORPUS_MAX => {
                    corpus.push(input)
                }
                Ok(_) => {}
                Err(why) => {
                    outcome.find = Some(self.minimize(input, why));
                    break;
                }
            }
        }
        outcome.outcomes = outcomes.len();
        outcome
    }

    /// The stored inputs, and an empty one.
    pub fn corpus(&self) -> Vec<Vec<u8>> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.directory())
            .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
            .unwrap_or_default();
        files.sort();
        let kept = files.iter().filter_map(|file| std::fs::read(file).ok());
        std::iter::once(Vec::new()).chain(kept).collect()
    }

    pub fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Adds an input to the stored corpus.
    pub fn keep(&self, input: &[u8]) -> std::io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let file = self.directory().join(format!("found-{:016x}", hasher.finish()));
        std::fs::create_dir_all(self.directory())?;
        std::fs::write(&file, input)?;
        Ok(file)
    }

    /// Shortens a failing input while it still fails. Each attempt uses a new reader.
    fn minimize(&self, mut input: Vec<u8>, mut why: String) -> FailingInput {
        let mut length = input.len().div_ceil(2).max(1);
        let end = Instant::now() + TIME_MAX;
        while length > 0 && Instant::now() < end {
            let mut at = 0;
            while at < input.len() && Instant::now() < end {
                let mut shorter = input.clone();
                shorter.drain(at..(at + length).min(input.len()));
                match attempt(&mut *(self.start)(), &shorter) {
                    Err(still) => (input, why) = (shorter, still),
                    Ok(_) => at += length,
                }
            }
            length /= 2;
        }
        FailingInput { input, why }
    }
}

fn attempt(reader: &mut dyn Reader, input: &[u8]) -> Result<String, String> {
    let started = processor_time();
    let description = catch_unwind(AssertUnwindSafe(|| reader.read(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message").to_owned()
    })?;
    let took = processor_time().saturating_sub(started);
    if took > TIME_MAX { Err(format!("it took {took:?}")) } else { Ok(description) }
}

/// Processor time of this thread. Unlike elapsed time, it does not grow while other processes run.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0))
}

/// The description without quoted text and numbers, which come from the input.
fn shape(description: &str) -> String {
    let mut shape = String::new();
    let mut quoted = false;
    for c in description.chars().take(400) {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '0'..='9' => {}
            c => shape.push(c),
        }
    }
    shape
}
