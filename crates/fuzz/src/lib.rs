//! A fuzzer for everything that parses input: it mutates the inputs of `corpus/` and passes them to a [`Target`].
//!
//! A stable toolchain has no coverage instrumentation (decision 13). Instead, each target describes in a few words what it made of an
//! input, and an input with a new description is mutated further. Inputs depend on the seed alone, so a find can be repeated.
//!
//! This crate is not part of the binary; the other crates must never depend on it.
//!
//! Begin with [`targets`] to add a parser.

mod mutate;
pub mod targets;

use mutate::Mutator;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No input may take more of a processor.
const TIME_MAX: Duration = Duration::from_secs(10);
/// How many inputs of a run are remembered because something new was said of them.
const REMEMBERED_MAX: usize = 4096;

/// Something that reads input.
pub struct Target {
    pub name: &'static str,
    /// Ready to read; what it remembers from one input to the next belongs to it.
    pub start: fn() -> Box<dyn Reader>,
}

pub trait Reader {
    /// Reads an input and says, in a few words without its details, what it made of it. A panic is a find.
    fn read(&mut self, input: &[u8]) -> String;
}

impl<F: FnMut(&[u8]) -> String> Reader for F {
    fn read(&mut self, input: &[u8]) -> String {
        self(input)
    }
}

/// An input that must not be.
pub struct Find {
    pub input: Vec<u8>,
    pub why: String,
}

/// How a run went.
pub struct Outcome {
    pub inputs: u64,
    /// How many different things were said.
    pub said: usize,
    pub find: Option<Find>,
}

impl Target {
    /// Reads every input that is kept, then changed ones until the time is over or something is found.
    pub fn run(&self, time: Duration, seed: u64) -> Outcome {
        let mut corpus = self.corpus();
        let mut reader = (self.start)();
        let mut outcome = Outcome { inputs: 0, said: 0, find: None };
        let mut said = HashSet::new();
        for input in &corpus {
            outcome.inputs += 1;
            match attempt(&mut *reader, input) {
                Ok(words) => drop(said.insert(shape(&words))),
                Err(why) => return Outcome { find: Some(self.least(input.clone(), why)), ..outcome },
            }
        }
        let mut mutator = Mutator::new(seed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let input = mutator.change(&corpus);
            outcome.inputs += 1;
            match attempt(&mut *reader, &input) {
                Ok(words) if said.insert(shape(&words)) && corpus.len() < REMEMBERED_MAX => corpus.push(input),
                Ok(_) => {}
                Err(why) => {
                    outcome.find = Some(self.least(input, why));
                    break;
                }
            }
        }
        outcome.said = said.len();
        outcome
    }

    /// The inputs that are kept; one that is empty is always among them.
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

    /// Keeps an input for all runs to come.
    pub fn keep(&self, input: &[u8]) -> std::io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let file = self.directory().join(format!("found-{:016x}", hasher.finish()));
        std::fs::create_dir_all(self.directory())?;
        std::fs::write(&file, input)?;
        Ok(file)
    }

    /// The find with as much left out as can be while it stays one. A reader that remembers is started anew each time.
    fn least(&self, mut input: Vec<u8>, mut why: String) -> Find {
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
        Find { input, why }
    }
}

fn attempt(reader: &mut dyn Reader, input: &[u8]) -> Result<String, String> {
    let started = processor_time();
    let words = catch_unwind(AssertUnwindSafe(|| reader.read(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    })?;
    let took = processor_time().saturating_sub(started);
    if took > TIME_MAX { Err(format!("it took {took:?}")) } else { Ok(words) }
}

/// How long this thread has run: on a busy machine more time passes than that.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0))
}

/// What is said, without names and numbers: these are the input's.
fn shape(words: &str) -> String {
    let mut shape = String::new();
    let mut quoted = false;
    for c in words.chars().take(400) {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '0'..='9' => {}
            c => shape.push(c),
        }
    }
    shape
}
