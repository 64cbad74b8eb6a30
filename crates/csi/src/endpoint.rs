//! Where a driver is found.

use std::fmt;
use std::path::{Path, PathBuf};

/// Linux keeps 108 bytes for the address of a socket, one of them for its end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A unix socket by its absolute path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(PathBuf);

/// The text is one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CSI endpoint {endpoint:?} {why}")]
pub struct BadEndpoint {
    endpoint: String,
    why: &'static str,
}

impl Endpoint {
    /// Reads `unix:///path`, `unix:/path` or `/path`.
    pub fn parse(text: &str) -> Result<Endpoint, BadEndpoint> {
        let bad = |why| Err(BadEndpoint { endpoint: text.to_owned(), why });
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if text.is_empty() {
            return bad("is empty; write unix:///path/of/the.sock");
        }
        if !path.starts_with('/') {
            return bad("is not the absolute path of a unix socket; write unix:///path/of/the.sock");
        }
        if path.contains('\0') || path.ends_with('/') {
            return bad("does not name a socket; write unix:///path/of/the.sock");
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return bad("is too long; a socket's path has at most 107 bytes");
        }
        Ok(Endpoint(path.into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl std::str::FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, BadEndpoint> {
        Endpoint::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_absolute_sockets_and_others_get_a_sentence() {
        for good in ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"] {
            assert_eq!(Endpoint::parse(good).unwrap().to_string(), "unix:///run/csi.sock");
        }
        let long = format!("/{}", "x".repeat(107));
        for bad in ["", "unix://", "unix://csi.sock", "csi.sock", "tcp://host:1", "dns:///x", "/run/", "/a\0b", &long] {
            let sentence = Endpoint::parse(bad).unwrap_err().to_string();
            assert!(
                sentence.starts_with(&format!("the CSI endpoint {bad:?} ")) && !sentence.contains('\n'),
                "{sentence}"
            );
        }
    }
}
