//! Stop signals while the process starts, or right after the start.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;
use support::mainstay;
use support::program::{PATIENCE, Running};
use tempfile::TempDir;

/// A signal that arrives before the process waits for one is not lost and does not kill: a server that is about to
/// print that it is ready prints it, and stops cleanly.
#[test]
fn a_signal_during_the_start_stops_the_server() {
    let home = TempDir::new().unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    let mut command = mainstay(home.path());
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path().join("data"));
    command.arg("--kubeconfig").arg(&kubeconfig);
    // Nothing reads the output, so that the server blocks while it prints that it is ready.
    let (mut reads, theirs) = UnixStream::pair().unwrap();
    let filler = full(&theirs);
    let mut program = Running::start_into(command, OwnedFd::from(theirs).into());
    let deadline = Instant::now() + PATIENCE;
    while !kubeconfig.exists() {
        assert!(Instant::now() < deadline, "the server does not start");
        std::thread::yield_now();
    }
    program.terminate();
    let mut said = String::new();
    reads.set_read_timeout(Some(PATIENCE)).unwrap();
    reads.read_exact(&mut vec![0; filler]).unwrap();
    reads.read_to_string(&mut said).expect("the server ends");
    program.line_with(&["Stopping."]);
    let (status, lines) = program.finish();
    assert_eq!(status.code(), Some(0), "{status}: {said}{}", lines.join("\n"));
    assert!(said.contains("is ready after"), "{said}");
}

/// Fills a socket's buffer; returns the number of bytes.
fn full(socket: &UnixStream) -> usize {
    socket.set_nonblocking(true).unwrap();
    let mut filled = 0;
    loop {
        match (&mut &*socket).write(&[b'x'; 1]) {
            Ok(written) => filled += written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    socket.set_nonblocking(false).unwrap();
    filled
}
