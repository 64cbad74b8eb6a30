//! An etcd that the tests share, each with its own prefix, and a TCP proxy to it that can be interrupted.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use store::etcd::{Config, Timing};
use store::suite::{Members, finish};
use store::{Committed, Condition, Error, Etcd, Operation, Options, Revision, Store, Txn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

static SHARED: Mutex<Weak<Members>> = Mutex::new(Weak::new());

/// Longer than anything takes if nothing is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One member that runs as long as some test holds it. Returns `None`, with a message on stdout, if etcd is not
/// installed. Tests must not compact it; those that do start their own member.
pub fn shared() -> Option<Arc<Members>> {
    let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(members) = shared.upgrade() {
        return Some(members);
    }
    let members = Arc::new(Members::start(1)?);
    *shared = Arc::downgrade(&members);
    Some(members)
}

/// A prefix that no other test uses.
pub fn place(members: &Members) -> Config {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let prefix = format!("/test/{}", COUNT.fetch_add(1, Ordering::Relaxed));
    Config::parse(&members.url()).unwrap().with_prefix(&prefix).unwrap()
}

/// The same store with shorter timeouts than the defaults.
pub fn impatient(config: &Config) -> Config {
    let timing = Timing {
        attempt: Duration::from_millis(500),
        patience: Duration::from_millis(1500),
        heartbeat: Duration::from_millis(200),
    };
    Config { timing, ..config.clone() }
}

pub async fn open(config: &Config) -> Arc<dyn Store> {
    Etcd::open(config, finish, Options::default()).await.unwrap()
}

pub fn put(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: Bytes::from(value.to_owned()), expires_at_s: None, memo: None }
}

pub async fn write(store: &dyn Store, key: &str, value: &str) -> Result<Committed, Error> {
    store.txn(Txn { conditions: vec![], operations: vec![put(key, value)] }).await
}

pub async fn swap(store: &dyn Store, key: &str, modified: Revision, value: &str) -> Result<Committed, Error> {
    let conditions = vec![Condition { key: key.into(), modified }];
    store.txn(Txn { conditions, operations: vec![put(key, value)] }).await
}

pub fn text(store: &dyn Store, key: &str) -> Option<String> {
    let record = store.get(key)?;
    let text = std::str::from_utf8(&record.value).unwrap();
    Some(text.split('@').next().unwrap().to_owned())
}

/// Polls until `look` returns a value.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("timed out waiting until {what}"))
}

/// What the proxy forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Open,
    /// Requests are forwarded, responses are not.
    OneWay,
    /// All connections are closed, and new ones are refused.
    Cut,
}

/// A TCP proxy in front of one etcd member.
pub struct Road {
    traffic: watch::Sender<Traffic>,
    /// Number of open connections.
    connections: watch::Sender<usize>,
    port: u16,
}

impl Road {
    pub async fn to(config: &Config) -> Road {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let traffic = watch::Sender::new(Traffic::Open);
        let connections = watch::Sender::new(0);
        let counted = connections.clone();
        let (state, member) = (traffic.subscribe(), config.members[0].clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *state.borrow() == Traffic::Cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&member).await else { continue };
                let (state, counted) = (state.clone(), counted.clone());
                counted.send_modify(|count| *count += 1);
                tokio::spawn(async move {
                    carry(near, far, state).await;
                    counted.send_modify(|count| *count -= 1);
                });
            }
        });
        Road { traffic, connections, port }
    }

    /// The same store through this proxy.
    pub fn through(&self, config: &Config) -> Config {
        Config { members: vec![format!("127.0.0.1:{}", self.port)], ..config.clone() }
    }

    pub fn set(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }

    /// Closes all connections and waits until they are closed.
    pub async fn cut(&self) {
        self.set(Traffic::Cut);
        self.connections.subscribe().wait_for(|count| *count == 0).await.expect("the proxy task ended");
    }
}

async fn carry(near: TcpStream, far: TcpStream, mut state: watch::Receiver<Traffic>) {
    let (mut near_out, mut near_in) = near.into_split();
    let (mut far_out, mut far_in) = far.into_split();
    let questions = tokio::spawn(async move { tokio::io::copy(&mut near_out, &mut far_in).await });
    let mut open = state.clone();
    let answers = tokio::spawn(async move {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = far_out.read(&mut buffer).await {
            if open.wait_for(|traffic| *traffic == Traffic::Open).await.is_err()
                || near_in.write_all(&buffer[..length]).await.is_err()
            {
                return;
            }
        }
    });
    let stop = [questions.abort_handle(), answers.abort_handle()];
    tokio::select! {
        _ = state.wait_for(|traffic| *traffic == Traffic::Cut) => {}
        _ = questions => {}
        _ = answers => {}
    }
    stop.iter().for_each(tokio::task::AbortHandle::abort);
}

/// Sends a request to etcd's HTTP gateway, as another program would.
pub async fn gateway(config: &Config, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&config.members[0]).await.unwrap();
    let request = format!(
        "POST /v3/{path} HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path} {body}: {answer}");
    answer
}

/// Puts a key below the store's prefix, as another program would.
pub async fn put_by_hand(config: &Config, name: &str, value: &str) {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let key = encode(&format!("{}{name}", config.prefix));
    gateway(config, "kv/put", &format!(r#"{{"key":"{key}","value":"{}"}}"#, encode(value))).await;
}
