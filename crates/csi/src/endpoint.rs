//! The endpoint of a driver.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::UnixStream;

/// Linux has 108 bytes for the path of a socket, one of them for the final NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A unix socket by its absolute path, or a driver inside this process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(Place);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Socket(PathBuf),
    Inside(Inside),
}

/// A driver inside this process: a name, and a function that connects to it.
#[derive(Clone)]
struct Inside {
    name: Arc<str>,
    connect: Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>,
}

/// A connection to a driver.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The text is one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CSI endpoint {endpoint:?} {why}")]
pub struct BadEndpoint {
    endpoint: String,
    why: &'static str,
}

impl Endpoint {
    /// Parses `unix:///path`, `unix:/path` or `/path`.
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
        Ok(Endpoint(Place::Socket(path.into())))
    }

    /// A driver that is reached without a socket: `connect` opens each connection.
    pub fn inside(name: &str, connect: impl Fn() -> io::Result<DuplexStream> + Send + Sync + 'static) -> Endpoint {
        Endpoint(Place::Inside(Inside { name: name.into(), connect: Arc::new(connect) }))
    }

    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        match &self.0 {
            Place::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Place::Inside(inside) => Ok(Box::new((inside.connect)()?)),
        }
    }
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl PartialEq for Inside {
    fn eq(&self, other: &Inside) -> bool {
        self.name == other.name
    }
}

impl Eq for Inside {}

impl PartialOrd for Inside {
    fn partial_cmp(&self, other: &Inside) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Inside {
    fn cmp(&self, other: &Inside) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for Inside {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Socket(path) => write!(f, "unix://{}", path.display()),
            Place::Inside(inside) => write!(f, "inside:{}", inside.name),
        }
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
    fn endpoints_are_absolute_sockets_and_others_are_refused() {
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
