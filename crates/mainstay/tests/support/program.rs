//! Running programs, and their output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The timeout of every wait. Nothing takes this long unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program that has ended.
#[derive(Debug)]
pub struct Said {
    pub command: String,
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

/// A running program; killed when dropped.
pub struct Running {
    command: String,
    child: Child,
    lines: Receiver<(usize, String)>,
    seen: Vec<String>,
    /// The output of stdout and stderr after the last line that was read. The two streams have no common order: while
    /// one is read, the other keeps its lines.
    unread: [Vec<String>; 2],
}

/// Runs a program to its end.
pub fn run(mut command: Command, stdin: &str) -> Said {
    let text = describe(&command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut input = child.stdin.take().expect("stdin is piped");
    let given = stdin.to_owned();
    // In a thread of its own, so that a program that writes before it has read everything does not block. A program
    // that closes its stdin early does not read the rest.
    let writer = std::thread::spawn(move || drop(input.write_all(given.as_bytes())));
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{text}: {error}"));
    writer.join().expect("the writer does not panic");
    Said {
        command: text,
        status: output.status,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Said {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// The output of a program that must have succeeded.
    #[track_caller]
    pub fn succeeded(self) -> String {
        assert!(self.status.success(), "{self}");
        self.out
    }

    /// The error text of a program that must have failed.
    #[track_caller]
    pub fn failed(self) -> String {
        assert!(!self.status.success(), "this was to fail: {self}");
        self.err.trim_end().to_owned()
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{}\nstdout:\n{}\nstderr:\n{}", self.command, self.status, self.out, self.err)
    }
}

impl Running {
    /// Starts a program and reads both output streams.
    pub fn start(command: Command) -> Running {
        Running::start_into(command, Stdio::piped())
    }

    /// The same, with another stdout.
    pub fn start_into(mut command: Command, stdout: Stdio) -> Running {
        let text = describe(&command);
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error}"));
        let (sender, lines) = channel();
        let stdout = child.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>);
        let streams: [Box<dyn Read + Send>; 2] = [
            stdout.unwrap_or_else(|| Box::new(std::io::empty())),
            Box::new(child.stderr.take().expect("stderr is piped")),
        ];
        for (at, stream) in streams.into_iter().enumerate() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                // Keep reading when the test no longer does, or the program would block on a full pipe.
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    drop(sender.send((at, line)));
                }
            });
        }
        Running { command: text, child, lines, seen: Vec::new(), unread: Default::default() }
    }

    /// The next line of a stream that contains all of `parts` in this order.
    #[track_caller]
    pub fn line_with(&mut self, parts: &[&str]) -> String {
        match self.line_or_end(parts) {
            Ok(line) => line,
            Err(said) => panic!("{} ended without saying {parts:?}; it said:\n{}", self.command, said.join("\n")),
        }
    }

    /// The same, or the whole output until the program ended.
    #[track_caller]
    pub fn line_or_end(&mut self, parts: &[&str]) -> Result<String, Vec<String>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for unread in &mut self.unread {
                if let Some(at) = unread.iter().position(|line| in_order(line, parts)) {
                    return Ok(unread.drain(..=at).next_back().expect("the line is there"));
                }
            }
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((stream, line)) => {
                    self.seen.push(line.clone());
                    self.unread[stream].push(line);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.seen.clone()),
                Err(RecvTimeoutError::Timeout) => {
                    let said = self.seen.join("\n");
                    panic!("{} is still running without saying {parts:?}; it said:\n{said}", self.command);
                }
            }
        }
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The output so far, up to the last line that was read.
    pub fn said(&self) -> &[String] {
        &self.seen
    }

    /// All lines until the end of the program, and its exit status.
    #[track_caller]
    pub fn finish(mut self) -> (ExitStatus, Vec<String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((_, line)) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} does not end; it said:\n{}", self.command, self.seen.join("\n"))
                }
            }
        }
        let status = self.child.wait().expect("the child is ours");
        (status, std::mem::take(&mut self.seen))
    }

    /// Sends SIGTERM, as `kill` does.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal("-INT");
    }

    /// Sends SIGKILL, as a power failure would.
    pub fn kill(&self) {
        self.signal("-KILL");
    }

    /// The same, and waits until the process has ended.
    pub fn end(&mut self) {
        self.kill();
        self.child.wait().expect("the child is ours");
    }

    /// Freezes the program with SIGSTOP.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("/bin/sh")
            .args(["-c", "kill \"$1\" \"$2\"", "sh", signal, &self.child.id().to_string()])
            .status()
            .expect("there is a shell");
        assert!(status.success(), "{} cannot be signalled", self.command);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; in both cases it has ended after this.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    format!("{} {}", command.get_program().to_string_lossy(), words.join(" "))
}

fn in_order(line: &str, parts: &[&str]) -> bool {
    let mut rest = line;
    parts.iter().all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}
