//! Which version this server is, as `/version` and the metric `kubernetes_build_info` say it.

use object::{Value, json};
use std::sync::OnceLock;

pub const MAJOR: &str = "1";
pub const MINOR: &str = "37";
/// The Kubernetes release whose API this is, and the version of this program after it.
pub const GIT_VERSION: &str = concat!("v1.37.0+mainstay.", env!("CARGO_PKG_VERSION"));
pub const COMPILER: &str = "rustc";
pub const GO_VERSION: &str = "none";

/// From what the program was built. The program says so at its start; a library does not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The commit of the sources; empty where they had none.
    pub commit: String,
    /// RFC 3339.
    pub date: String,
}

static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// A build of this commit, `seconds` after 1970.
    pub fn new(commit: &str, seconds: &str) -> Build {
        let at = seconds.parse().ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        Build { commit: commit.to_owned(), date: at.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string() }
    }

    /// Makes it the build of this process. The first call counts.
    pub fn set(self) {
        let _ = BUILD.set(self);
    }

    /// The build of this process.
    pub fn get() -> Build {
        BUILD.get().cloned().unwrap_or_else(|| Build::new("", "0"))
    }

    /// Sources of a commit are a clean tree, as far as the build knows; without one, an archive.
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

/// Operating system and architecture; clients know architectures by Go's names.
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
