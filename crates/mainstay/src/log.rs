//! Log lines on stderr, as text or JSON.
//!
//! A level without a target is about Mainstay's own crates; its libraries log warnings and errors unless they are named. Warnings and
//! errors that repeat are collapsed into one line with a count.

mod line;
mod repeats;

use clap::Args;
use line::{Fields, Line};
use repeats::{Repeats, Verdict};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The crates of this workspace that log.
const OWN: [&str; 10] = ["mainstay", "server", "store", "runtime", "kit", "node", "csi", "object", "plan", "tree"];
/// How often counts of repeated lines are looked at.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// Log lines to print: off, error, warn, info, debug or trace; for single parts too, as in warn,server=debug,hyper=info.
    /// At debug, server::requests logs each request
    #[arg(long, env = "MAINSTAY_LOG", default_value = "warn", value_name = "LEVELS", value_parser = Levels::parse, global = true, help_heading = "Logging")]
    pub log_level: Levels,
    /// The form of log lines
    #[arg(
        long,
        env = "MAINSTAY_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT",
        global = true,
        help_heading = "Logging"
    )]
    pub log_format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    /// One JSON object a line
    Json,
}

/// Which lines are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels(Vec<(String, LevelFilter)>);

impl Levels {
    /// Reads a level, or a list of `target=level` with at most one level for all of Mainstay.
    pub fn parse(text: &str) -> Result<Levels, String> {
        let mut base = LevelFilter::WARN;
        let mut named = Vec::new();
        // An empty variable is one that is not set.
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None => base = level(part)?,
                Some((target, word)) if !target.trim().is_empty() => {
                    named.push((target.trim().to_owned(), level(word.trim())?))
                }
                Some(_) => return Err(format!("{part:?} names no part; write TARGET=LEVEL, as in server=debug")),
            }
        }
        let libraries = ("".to_owned(), base.min(LevelFilter::WARN));
        // The client logs each failed connection as an error; its caller reports the failure with the reason.
        let client = ("kube_client::client::builder".to_owned(), LevelFilter::OFF);
        let own = OWN.iter().map(|name| ((*name).to_owned(), base));
        Ok(Levels([libraries, client].into_iter().chain(own).chain(named).collect()))
    }

    fn targets(&self) -> Targets {
        Targets::new().with_targets(self.0.clone())
    }
}

fn level(word: &str) -> Result<LevelFilter, String> {
    match word.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!(
            "there is no level {word:?}; use off, error, warn, info, debug or trace, or TARGET=LEVEL, as in server=debug"
        )),
    }
}

static OUTPUT: OnceLock<Arc<Output>> = OnceLock::new();

/// Begins to log. Called once.
pub fn start(args: &LogArgs) {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let output = Arc::new(Output { format: args.log_format, colours, repeats: Mutex::default() });
    let lines = Lines(OUTPUT.get_or_init(|| output).clone());
    tracing_subscriber::registry().with(lines.with_filter(args.log_level.targets())).init();
    std::thread::spawn(|| {
        loop {
            std::thread::park_timeout(FLUSH_EVERY);
            flush(false);
        }
    });
}

/// Prints the counts of collapsed lines: all, or those whose time has passed.
pub fn flush(all: bool) {
    let Some(output) = OUTPUT.get() else { return };
    let lines = output.repeats.lock().unwrap_or_else(PoisonError::into_inner).flush(Instant::now(), all);
    lines.iter().for_each(|line| output.print(line));
}

struct Output {
    format: Format,
    colours: bool,
    repeats: Mutex<Repeats>,
}

impl Output {
    fn print(&self, line: &Line) {
        let text = match self.format {
            Format::Text => line.text(self.colours),
            Format::Json => line.json(),
        };
        // There is no other place for the line where stderr is closed or full.
        drop(std::io::stderr().lock().write_all(text.as_bytes()));
    }
}

struct Lines(Arc<Output>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let line = Line::new(*metadata.level(), metadata.target(), fields);
        if *metadata.level() > Level::WARN {
            return self.0.print(&line);
        }
        let verdict = self.0.repeats.lock().unwrap_or_else(PoisonError::into_inner).note(&line, Instant::now());
        match verdict {
            Verdict::Print => self.0.print(&line),
            Verdict::PrintAfter(counted) => {
                self.0.print(&counted);
                self.0.print(&line);
            }
            Verdict::Count => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled(levels: &str, target: &str, level: Level) -> bool {
        Levels::parse(levels).unwrap().targets().would_enable(target, &level)
    }

    #[test]
    fn a_level_is_about_mainstay_and_libraries_are_named() {
        let cases = [
            ("warn", "server::http", Level::WARN, true),
            ("warn", "server::http", Level::INFO, false),
            ("debug", "server::http", Level::DEBUG, true),
            ("debug", "hyper::proto", Level::DEBUG, false),
            ("debug", "h2", Level::INFO, false),
            ("debug", "rustls", Level::WARN, true),
            ("error", "rustls", Level::WARN, false),
            ("debug,hyper=trace", "hyper::proto", Level::TRACE, true),
            ("server=debug", "server::requests", Level::DEBUG, true),
            ("server=debug", "kit::worker", Level::INFO, false),
            ("debug,server::requests=off", "server::requests", Level::DEBUG, false),
            ("debug", "kube_client::client::builder", Level::ERROR, false),
            (
                "debug,kube_client=debug,kube_client::client::builder=debug",
                "kube_client::client::builder",
                Level::DEBUG,
                true,
            ),
            ("off", "server", Level::ERROR, false),
            ("", "server", Level::WARN, true),
            (" Info , store = trace ", "store::mark", Level::TRACE, true),
        ];
        for (levels, target, level, expected) in cases {
            assert_eq!(enabled(levels, target, level), expected, "{levels:?} {target} {level}");
        }
    }

    #[test]
    fn unknown_levels_are_refused() {
        for (text, part) in
            [("loud", "\"loud\""), ("server=loud", "\"loud\""), ("=debug", "names no part"), ("warn,,x", "\"x\"")]
        {
            assert!(Levels::parse(text).unwrap_err().contains(part), "{text}");
        }
    }
}
