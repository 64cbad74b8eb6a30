//! Places for connections. Each connection holds a file descriptor, and the store and the controllers need descriptors as well.
//!
//! A new connection is unauthenticated, and only a small number of these is open at once. A new connection beyond that number is not
//! refused: an older unauthenticated one is closed. So a client that opens idle connections cannot keep other clients out. When the client
//! of a connection has authenticated, the connection takes a place in the priority level of its user ([`crate::limits`]).

use crate::limits::{Permit, RequestClass};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Where connections come from. One machine commonly has all IPv6 addresses of a /64 network.
type Source = IpAddr;

/// The unauthenticated connections of one listener.
pub struct Connections {
    places: Arc<Semaphore>,
    open: Mutex<Open>,
}

/// By source, the number of each connection and the token that closes it. Sources without connections have no entry.
#[derive(Default)]
struct Open {
    next: u64,
    by_source: HashMap<Source, BTreeMap<u64, CancellationToken>>,
}

/// A connection, as long as it is open.
pub struct Connection {
    connections: Arc<Connections>,
    source: Source,
    number: u64,
    closing: CancellationToken,
    place: Mutex<Place>,
}

enum Place {
    Unauthenticated { _permit: OwnedSemaphorePermit },
    Authenticated { _permit: Permit },
    Closed,
}

/// Gives the place of a connection back when it is dropped, whoever else still holds the [`Connection`].
pub struct Held(Arc<Connection>);

impl Connections {
    /// `max`: how many unauthenticated connections are open at once.
    pub fn new(max: usize) -> Arc<Connections> {
        Arc::new(Connections { places: Arc::new(Semaphore::new(max)), open: Mutex::default() })
    }

    /// How many more may be open without closing one.
    pub fn available(&self) -> usize {
        self.places.available_permits()
    }

    /// Takes a place for a new connection, and how many connections it closed for that. It waits until their descriptors are free.
    pub async fn admit(self: &Arc<Connections>, address: IpAddr) -> (Held, u64) {
        let mut closed = 0;
        let permit = loop {
            if let Ok(permit) = self.places.clone().try_acquire_owned() {
                break permit;
            }
            closed += u64::from(self.close_one());
            // A connection that was told to close does so at once.
            let Ok(permit) = self.places.clone().acquire_owned().await else { continue };
            break permit;
        };
        let (source, closing) = (source(address), CancellationToken::new());
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.by_source.entry(source).or_default().insert(number, closing.clone());
        drop(open);
        let place = Mutex::new(Place::Unauthenticated { _permit: permit });
        (Held(Arc::new(Connection { connections: self.clone(), source, number, closing, place })), closed)
    }

    /// Closes the oldest unauthenticated connection of the source that has the most of them. `false`: there is none.
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

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no panic happens under this lock")
    }
}

impl Open {
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
    /// The client has authenticated: from now on the connection counts for its user. Where the user has its share of connections already,
    /// nothing changes, and the connection may be closed for a new one.
    pub(crate) fn authenticated(&self, class: &RequestClass) {
        let mut place = self.place();
        if let Place::Unauthenticated { .. } = *place
            && let Some(permit) = class.connection()
        {
            self.connections.open().remove(self.source, self.number);
            *place = Place::Authenticated { _permit: permit };
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().expect("no panic happens under this lock")
    }
}

impl Held {
    pub fn connection(&self) -> Arc<Connection> {
        self.0.clone()
    }

    /// Cancelled when the connection must be closed at once.
    pub fn closing(&self) -> CancellationToken {
        self.0.closing.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.connections.open().remove(self.0.source, self.0.number);
        *self.0.place() = Place::Closed;
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

    /// Opens a connection in a task that closes it when it is told to.
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
    async fn a_new_connection_replaces_the_oldest_of_the_source_that_has_the_most() {
        let connections = Connections::new(5);
        let (_, other) = open(&connections, "192.0.2.1").await;
        // One machine, whatever addresses it takes.
        let mut greedy = Vec::new();
        for last in 1..=4 {
            greedy.push(open(&connections, &format!("2001:db8::{last}")).await.1);
        }
        assert_eq!(connections.available(), 0);
        for at in 0..3 {
            let (_, next) = open(&connections, &format!("198.51.100.{at}")).await;
            let left: Vec<bool> = greedy.iter().map(CancellationToken::is_cancelled).collect();
            assert_eq!(left, (0..4).map(|place| place <= at).collect::<Vec<_>>());
            assert!(!other.is_cancelled() && !next.is_cancelled());
        }
        assert_eq!(source(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[tokio::test]
    async fn authenticated_connections_leave_the_group_within_the_share_of_their_user() {
        // 768 of 1,024 descriptors are for connections: 426 for ordinary users.
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
        assert_eq!(held.len() - 1, limits.ordinary.connections.size() / 2, "half of them for one user");
        let (other, _) = connections.admit(address("192.0.2.1")).await;
        other.connection().authenticated(&of(&user("kim")));
        assert_eq!(connections.available(), all - 1);
        // A place is given back when the connection ends, although a request of it may still hold it.
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
