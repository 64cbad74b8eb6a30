//! The version of this server, as in `/version` and in the metric `kubernetes_build_info`.

use object::{Value, json};
use std::sync::OnceLock;

pub const MAJOR: &str = "1";
pub const MINOR: &str = "37";
/// The Kubernetes release whose API this is, followed by the version of this program.
pub const GIT_VERSION: &str = concat!("v1.37.0+mainstay.", env!("CARGO_PKG_VERSION"));
pub const COMPILER: &str = "rustc";
pub const GO_VERSION: &str = "none";

/// Build information. The program sets it at its start, because a library does not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Commit of the sources; empty if unknown.
    pub commit: String,
    /// RFC 3339.
    pub date: String,
}

static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// Build information for this commit and time in Unix seconds.
    pub fn new(commit: &str, seconds: &str) -> Build {
        let at = seconds.parse().ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        Build { commit: commit.to_owned(), date: at.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string() }
    }

    /// Sets the build of this process. Only the first call has an effect.
    pub fn set(self) {
        let _ = BUILD.set(self);
    }

    /// The build of this process.
    pub fn get() -> Build {
        BUILD.get().cloned().unwrap_or_else(|| Build::new("", "0"))
    }

    /// The state of the sources: clean if the commit is known, otherwise an archive.
    pub fn tree_state(&self) -> &'static str {
        if self.commit.is_empty() { "archive" } else { "clean" }
    }
}

/// `/version`.
pub fn document() -> Value {
    let build = Build::get();
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": build.commit,
        "gitTreeState": build.tree_state(),
        "buildDate": build.date,
        "goVersion": GO_VERSION,
        "compiler": COMPILER,
        "platform": platform(),
    })
}

/// Operating system and architecture. Clients expect Go's names of architectures.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_one_that_clients_parse_and_has_a_date() {
        assert_eq!(Build::new("abc", "1767225600").date, "2026-01-01T00:00:00Z");
        assert_eq!(Build::new("", "soon"), Build::new("", "0"));
        assert_eq!((Build::new("", "0").tree_state(), Build::new("abc", "0").tree_state()), ("archive", "clean"));
        assert_eq!(document()["minor"], "37");
        assert!(document()["gitVersion"].as_str().is_some_and(|text| text.starts_with("v1.37.0+mainstay.")));
    }
}
