//! The limit on open files. Each connection takes a file descriptor, and many systems start programs with a soft limit of 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of this process to its hard limit.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(?current, ?maximum, "raised the limit on open files"),
        Err(error) => tracing::warn!(%error, ?current, ?maximum, "cannot raise the limit on open files"),
    }
}
