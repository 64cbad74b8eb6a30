//! Limits the open connections. Each connection needs a file descriptor, and the store and the controllers need
//! descriptors too.
//!
//! A new connection is unauthenticated, and few unauthenticated connections may be open at once. At this limit the
//! server closes an older unauthenticated connection instead of refusing the new one, so that a client with many idle
//! connections cannot block other clients. When the client of a connection authenticates, the connection moves to a
//! slot in the priority level of its user ([`crate::limits`]).

use crate::limits::{Permit, RequestClass};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The network address of a client. One machine often has all IPv6 addresses of a /64 network, so only the network
/// counts.
type Source = IpAddr;

/// The unauthenticated connections of one listener.
pub struct Connections {
    slots: Arc<Semaphore>,
    open: Mutex<OpenConnections>,
}

/// For each source, the numbers of its connections and the tokens that close them. A source without connections has no
/// entry.
#[derive(Default)]
struct OpenConnections {
    next: u64,
    by_source: HashMap<Source, BTreeMap<u64, CancellationToken>>,
}

/// One connection and the slot that it uses.
pub struct Connection {
    connections: Arc<Connections>,
    source: Source,
    number: u64,
    closing: CancellationToken,
    slot: Mutex<Slot>,
}

enum Slot {
    Unauthenticated { _permit: OwnedSemaphorePermit },
    Authenticated { _permit: Permit },
    Closed,
}

/// Releases the slot of a connection when dropped, even if a request still refers to the [`Connection`].
pub struct ConnectionGuard(Arc<Connection>);

impl Connections {
    /// `max` is the limit of unauthenticated connections that are open at once.
    pub fn new(max: usize) -> Arc<Connections> {
        Arc::new(Connections { slots: Arc::new(Semaphore::new(max)), open: Mutex::default() })
    }

    /// How many more unauthenticated connections can open before one must be closed.
    pub fn available(&self) -> usize {
        self.slots.available_permits()
    }

    /// Reserves a slot for a new connection, and returns how many connections were closed for it. Waits until the file
    /// descriptors of these are free.
    pub async fn admit(self: &Arc<Connections>, address: IpAddr) -> (ConnectionGuard, u64) {
        let mut closed = 0;
        let permit = loop {
            if let Ok(permit) = self.slots.clone().try_acquire_owned() {
                break permit;
            }
            closed += u64::from(self.close_one());
            // A connection whose token is cancelled closes at once.
            let Ok(permit) = self.slots.clone().acquire_owned().await else { continue };
            break permit;
        };
        let (source, closing) = (source(address), CancellationToken::new());
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.by_source.entry(source).or_default().insert(number, closing.clone());
        drop(open);
        let slot = Mutex::new(Slot::Unauthenticated { _permit: permit });
        let connection = Connection { connections: self.clone(), source, number, closing, slot };
        (ConnectionGuard(Arc::new(connection)), closed)
    }

    /// Closes the oldest unauthenticated connection of the source with the most of them. Returns `false` if there is
    /// none.
    pub fn close_one(&self) -> bool {
        let mut open = self.open();
        let largest = open.by_source.iter().max_by_key(|(_, connections)| connections.len());
        let Some((source, &number)) = largest.and_then(|(source, of)| Some((*source, of.keys().next()?))) else {
            return false;
        };
        let closing = open.remove(source, number);
        drop(open);
        if let Some(closing) = closing {
            closing.cancel();
        }
        true
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().expect("no panic happens under this lock")
    }
}

impl OpenConnections {
    fn remove(&mut self, source: Source, number: u64) -> Option<CancellationToken> {
        let connections = self.by_source.get_mut(&source)?;
        let closing = connections.remove(&number);
        if connections.is_empty() {
            self.by_source.remove(&source);
        }
        closing
    }
}

impl Connection {
    /// Counts the connection for the authenticated user. If the user's share of connections is used up, the connection
    /// stays unauthenticated for the limits, and may be closed to make room for a new one.
    pub(crate) fn authenticated(&self, class: &RequestClass) {
        let mut slot = self.slot();
        if let Slot::Unauthenticated { .. } = *slot
            && let Some(permit) = class.connection()
        {
            self.connections.open().remove(self.source, self.number);
            *slot = Slot::Authenticated { _permit: permit };
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().expect("no panic happens under this lock")
    }
}

impl ConnectionGuard {
    pub fn connection(&self) -> Arc<Connection> {
        self.0.clone()
    }

    /// Cancelled when the connection must be closed at once.
    pub fn closing(&self) -> CancellationToken {
        self.0.closing.clone()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.open().remove(self.0.source, self.0.number);
        *self.0.slot() = Slot::Closed;
    }
}

fn source(address: IpAddr) -> Source {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::User;
    use crate::limits::Limits;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Opens a connection in a task that closes it when the token is cancelled.
    async fn open(connections: &Arc<Connections>, from: &str) -> (Arc<Connection>, CancellationToken) {
        let (held, _) = connections.admit(address(from)).await;
        let parts = (held.connection(), held.closing());
        tokio::spawn(async move {
            held.closing().cancelled().await;
            drop(held);
        });
        parts
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_one_of_the_source_with_the_most() {
        let connections = Connections::new(5);
        let (_, other) = open(&connections, "192.0.2.1").await;
        // One machine with several addresses of its network.
        let mut greedy = Vec::new();
        for last in 1..=4 {
            greedy.push(open(&connections, &format!("2001:db8::{last}")).await.1);
        }
        assert_eq!(connections.available(), 0);
        for at in 0..3 {
            let (_, next) = open(&connections, &format!("198.51.100.{at}")).await;
            let left: Vec<bool> = greedy.iter().map(CancellationToken::is_cancelled).collect();
            assert_eq!(left, (0..4).map(|index| index <= at).collect::<Vec<_>>());
            assert!(!other.is_cancelled() && !next.is_cancelled());
        }
        assert_eq!(source(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[tokio::test]
    async fn authenticated_connections_use_the_share_of_their_user() {
        // Connections may use 768 of 1,024 descriptors, those of ordinary users 426.
        let limits = Limits::default().with_open_files(Some(1024));
        let connections = limits.connections.clone();
        let all = connections.available();
        let of = |user: &User| limits.classify(user, false);
        let user = |name: &str| User { name: name.to_owned(), ..User::default() };
        let mut held = Vec::new();
        while connections.available() == all {
            let (connection, closed) = connections.admit(address("192.0.2.1")).await;
            assert_eq!(closed, 0);
            connection.connection().authenticated(&of(&user("mallory")));
            held.push(connection);
        }
        assert_eq!(held.len() - 1, limits.ordinary.connections.size() / 2, "one user gets half of the slots");
        let (other, _) = connections.admit(address("192.0.2.1")).await;
        other.connection().authenticated(&of(&user("kim")));
        assert_eq!(connections.available(), all - 1);
        // The slot is released when the connection ends, even if a request still refers to the connection.
        let late = other.connection();
        drop(other);
        late.authenticated(&of(&user("kim")));
        held.clear();
        assert_eq!((connections.available(), limits.ordinary.connections.in_use()), (all, 0));
        assert!(connections.open().by_source.is_empty());
    }

    #[tokio::test]
    async fn nothing_is_closed_when_all_connections_have_authenticated() {
        let limits = Limits::default().with_open_files(Some(1024));
        let (held, _) = limits.connections.admit(address("192.0.2.1")).await;
        assert!(limits.connections.available() > 0);
        held.connection().authenticated(&limits.classify(&User::apiserver(), false));
        assert!(!limits.connections.close_one());
        assert!(!held.closing().is_cancelled());
    }
}
