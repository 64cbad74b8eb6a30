//! Configuration of the connection to etcd.

use std::time::Duration;

/// Where the store is, and how to connect.
#[derive(Clone, Debug)]
pub struct Config {
    /// `host:port` of each member.
    pub members: Vec<String>,
    /// Prefix of all keys of this store.
    pub prefix: String,
    /// `None` means plain text.
    pub tls: Option<Tls>,
    pub user: Option<User>,
    pub timing: Timing,
}

/// Certificates and keys as PEM text.
#[derive(Clone)]
pub struct Tls {
    pub ca: String,
    /// Certificate and private key of the client.
    pub client: Option<(String, String)>,
}

#[derive(Clone)]
pub struct User {
    pub name: String,
    pub password: String,
}

/// Timeouts.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For one request to one member. Longer than a commit takes on a slow disk, and short enough to try another member
    /// in time.
    pub attempt: Duration,
    /// For all attempts at one request together.
    pub patience: Duration,
    /// How often to check whether etcd is reachable while no reads arrive.
    pub heartbeat: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { attempt: Duration::from_secs(2), patience: Duration::from_secs(6), heartbeat: Duration::from_secs(2) }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("client", &self.client.is_some()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

pub const DEFAULT_PREFIX: &str = "/mainstay";
const PORT_DEFAULT: u16 = 2379;

impl Config {
    /// Parses `etcd://host:port,host:port`. The error is one sentence.
    pub fn parse(url: &str) -> Result<Config, String> {
        let wrong =
            |why: &str| Err(format!("the store {url:?} {why}; write etcd://host:2379, or etcd://h1:2379,h2:2379"));
        let Some(rest) = url.strip_prefix("etcd://") else {
            return wrong("is not the address of an etcd");
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.is_empty() {
            return wrong("has no member");
        }
        if rest.contains(['/', '?', '#']) {
            return wrong("has a path; set the prefix of the keys with --etcd-prefix");
        }
        if rest.contains('@') {
            return wrong("has a user name; set it with --etcd-user");
        }
        let mut members = Vec::new();
        for member in rest.split(',') {
            let Some(member) = member_of(member) else {
                return wrong(&format!("has a member {member:?} that is not host:port"));
            };
            if !members.contains(&member) {
                members.push(member);
            }
        }
        Ok(Config { members, prefix: DEFAULT_PREFIX.to_owned(), tls: None, user: None, timing: Timing::default() })
    }

    /// Sets the key prefix. The error is one sentence.
    pub fn with_prefix(self, prefix: &str) -> Result<Config, String> {
        let prefix = prefix.trim_end_matches('/');
        if !prefix.starts_with('/') || prefix.contains('\0') {
            return Err(format!("the etcd prefix {prefix:?} does not begin with a slash and a name; write /mainstay"));
        }
        Ok(Config { prefix: prefix.to_owned(), ..self })
    }

    /// The URL of the store with its prefix, for messages.
    pub fn place(&self) -> String {
        format!("etcd://{}{}", self.members.join(","), self.prefix)
    }
}

fn member_of(text: &str) -> Option<String> {
    // Colons inside the brackets of `[::1]:2379` do not separate the port.
    let bare = text.rsplit_once(']').map_or(text, |(_, after)| after);
    let member = if bare.contains(':') { text.to_owned() } else { format!("{text}:{PORT_DEFAULT}") };
    let (host, port) = member.rsplit_once(':')?;
    let host_ok = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c)),
    };
    let port_ok = port.parse::<u16>().is_ok_and(|port| port > 0);
    (host_ok && port_ok).then_some(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_urls_are_parsed_and_others_give_a_one_line_error() {
        let members = |url: &str| Config::parse(url).unwrap().members.join(" ");
        assert_eq!(members("etcd://h1:2379,h2:2380/"), "h1:2379 h2:2380");
        assert_eq!(
            members("etcd://localhost,127.0.0.1:7,[::1]:9,[::1],localhost"),
            "localhost:2379 127.0.0.1:7 [::1]:9 [::1]:2379"
        );
        for bad in [
            "",
            "etcd:",
            "etcd://",
            "etcd:///x",
            "http://h:1",
            "etcd://h:0",
            "etcd://h:x",
            "etcd://h:99999",
            "etcd://,",
            "etcd://h:1/path",
            "etcd://u:p@h:1",
            "etcd://a b:1",
            "etcd://[::1:2",
            "etcd://::1:2379",
        ] {
            let sentence = Config::parse(bad).unwrap_err();
            assert!(sentence.contains("write etcd://") && !sentence.contains('\n'), "{bad}: {sentence}");
        }
        for bad in ["", "/", "x", "//"] {
            assert!(Config::parse("etcd://h").unwrap().with_prefix(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Config::parse("etcd://h").unwrap().with_prefix("/a/b/").unwrap().place(), "etcd://h:2379/a/b");
    }
}
