//! Injected faults: a test orders the driver to fail, to be late, to lose responses or to respond wrongly. Without
//! orders there are no faults.

use crate::v1;
use serde::Deserialize;
use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tonic::{Code, Status};

/// A fault order. The first order that matches a call and is not used up applies.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Order {
    /// The call, for example `CreateVolume`; `*` means every call.
    pub call: String,
    /// Only calls for the volume or snapshot with this name (on creation) or id (later).
    pub subject: Option<String>,
    /// Execute the call first, so that the caller does not learn that it succeeded.
    pub after: bool,
    /// Wait for this time, in milliseconds.
    pub delay_ms: u64,
    /// Execute the call even if the caller has disconnected, as most drivers do. Until it ends, other calls for the
    /// same subject get `Aborted`.
    /// that it is under way.
    pub goes_on: bool,
    /// Then fail with this code.
    #[serde(deserialize_with = "read_code")]
    pub code: Option<Code>,
    /// The error message.
    pub message: String,
    /// Close the connection without a response.
    pub drop_connection: bool,
    /// Respond with this size instead of the real one.
    pub capacity_bytes: Option<i64>,
    /// Leave the content source out of the response.
    pub without_content_source: bool,
    /// The number of calls that the order applies to; forever if not set.
    pub times: Option<u32>,
    /// Wait at this gate (tests in the same process only).
    #[serde(skip)]
    pub gate: Option<Gate>,
}

fn read_code<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Code>, D::Error> {
    let text = String::deserialize(from)?;
    let code =
        crate::code::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("no code is named {text:?}")))?;
    if code == Code::Ok {
        return Err(serde::de::Error::custom("OK is not a failure"));
    }
    Ok(Some(code))
}

impl Order {
    pub fn fail(call: &str, code: Code) -> Order {
        let message = format!("{call} fails on order");
        Order { call: call.to_owned(), code: Some(code), message, ..Order::default() }
    }

    /// The call is executed, then the connection breaks.
    pub fn lose_answer(call: &str) -> Order {
        Order { call: call.to_owned(), after: true, drop_connection: true, ..Order::default() }
    }

    pub fn delay(call: &str, delay: Duration) -> Order {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Order { call: call.to_owned(), delay_ms, ..Order::default() }
    }

    /// The call waits until the gate opens.
    pub fn hold(call: &str, gate: &Gate) -> Order {
        Order { call: call.to_owned(), gate: Some(gate.clone()), ..Order::default() }
    }

    /// The response has a wrong size.
    pub fn answer_capacity(call: &str, capacity_bytes: i64) -> Order {
        Order { call: call.to_owned(), capacity_bytes: Some(capacity_bytes), ..Order::default() }
    }

    pub fn about(mut self, subject: &str) -> Order {
        self.subject = Some(subject.to_owned());
        self
    }

    pub fn times(mut self, times: u32) -> Order {
        self.times = Some(times);
        self
    }

    /// Applies after the call is executed.
    pub fn after(mut self) -> Order {
        self.after = true;
        self
    }

    /// Applies even if the caller has disconnected.
    pub fn goes_on(mut self) -> Order {
        self.goes_on = true;
        self
    }

    fn concerns(&self, call: &str, subject: &str) -> bool {
        let wanted = self.subject.as_deref().is_none_or(|wanted| wanted == subject);
        wanted && (self.call == "*" || self.call == call) && self.times != Some(0)
    }

    /// The failure to return instead of the response.
    pub fn failure(&self) -> Option<Status> {
        self.code.map(|code| Status::new(code, self.message.clone()))
    }

    /// Changes the response as ordered.
    pub fn bend(&self, answer: &mut dyn Any) {
        if let Some(created) = answer.downcast_mut::<v1::CreateVolumeResponse>() {
            if let (Some(volume), Some(bytes)) = (&mut created.volume, self.capacity_bytes) {
                volume.capacity_bytes = bytes;
            }
            if let (Some(volume), true) = (&mut created.volume, self.without_content_source) {
                volume.content_source = None;
            }
        } else if let Some(expanded) = answer.downcast_mut::<v1::ControllerExpandVolumeResponse>() {
            expanded.capacity_bytes = self.capacity_bytes.unwrap_or(expanded.capacity_bytes);
        } else if let Some(expanded) = answer.downcast_mut::<v1::NodeExpandVolumeResponse>() {
            expanded.capacity_bytes = self.capacity_bytes.unwrap_or(expanded.capacity_bytes);
        }
    }
}

/// Calls wait at a gate until a test opens it.
#[derive(Clone)]
pub struct Gate {
    state: Arc<watch::Sender<(usize, bool)>>,
}

impl Gate {
    #[allow(clippy::new_without_default)] // `closed` says in which state a gate begins.
    pub fn closed() -> Gate {
        Gate { state: Arc::new(watch::Sender::new((0, false))) }
    }

    /// Waits until this many calls have reached the gate.
    pub async fn reached(&self, calls: usize) {
        self.wait(|(arrived, _)| *arrived >= calls).await;
    }

    pub fn open(&self) {
        self.state.send_modify(|(_, open)| *open = true);
    }

    pub async fn pass(&self) {
        self.state.send_modify(|(arrived, _)| *arrived += 1);
        self.wait(|(_, open)| *open).await;
    }

    async fn wait(&self, until: impl FnMut(&(usize, bool)) -> bool) {
        let mut changes = self.state.subscribe();
        changes.wait_for(until).await.map(|_| ()).expect("the sender is not dropped");
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Gate) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&*self.state.borrow()).finish()
    }
}

/// Returns the order for a call by its name and subject, or none.
type Ask = Box<dyn Fn(&str, &str) -> Option<Order> + Send + Sync>;

/// The fault orders of one driver.
#[derive(Default)]
pub struct Faults {
    /// Called first, for every call.
    ask: Option<Ask>,
    given: Mutex<Vec<Order>>,
    file: Option<Mutex<FileOrders>>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("given", &self.given).field("file", &self.file).finish_non_exhaustive()
    }
}

impl Faults {
    /// Sets the function that is called first, for every call; it may count them.
    pub fn asking(ask: impl Fn(&str, &str) -> Option<Order> + Send + Sync + 'static) -> Faults {
        Faults { ask: Some(Box::new(ask)), ..Faults::default() }
    }

    pub fn order(&self, order: Order) {
        self.given().push(order);
    }

    /// Removes all orders that were given by calls; those in a file stay.
    pub fn clear(&self) {
        self.given().clear();
    }

    /// The orders that are not used up.
    pub fn pending(&self) -> Vec<Order> {
        self.given().iter().filter(|order| order.times != Some(0)).cloned().collect()
    }

    /// Reads orders from this file too, and again whenever it changes. The error is one sentence.
    pub fn from_file(path: &Path) -> Result<Faults, String> {
        let mut file = FileOrders { path: path.to_owned(), stamp: None, orders: Vec::new() };
        file.refresh()?;
        Ok(Faults { file: Some(Mutex::new(file)), ..Faults::default() })
    }

    /// The order for a call, if there is one; it counts as used once. An unreadable file fails the call: a test whose
    /// faults do not happen would prove nothing.
    pub fn take(&self, call: &str, subject: &str) -> Result<Option<Order>, Status> {
        if let Some(order) = self.ask.as_ref().and_then(|ask| ask(call, subject)) {
            return Ok(Some(order));
        }
        if let Some(order) = take(&mut self.given(), call, subject) {
            return Ok(Some(order));
        }
        let Some(file) = &self.file else { return Ok(None) };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.refresh().map_err(Status::internal)?;
        Ok(take(&mut file.orders, call, subject))
    }

    fn given(&self) -> MutexGuard<'_, Vec<Order>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(orders: &mut [Order], call: &str, subject: &str) -> Option<Order> {
    let order = orders.iter_mut().find(|order| order.concerns(call, subject))?;
    if let Some(times) = &mut order.times {
        *times -= 1;
    }
    Some(order.clone())
}

#[derive(Debug)]
struct FileOrders {
    path: PathBuf,
    /// Metadata of the file when it was read.
    stamp: Option<(SystemTime, u64, u64)>,
    orders: Vec<Order>,
}

impl FileOrders {
    fn refresh(&mut self) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt;
        let path = self.path.display();
        let unreadable = |error: std::io::Error| format!("cannot read the fault orders in {path}: {error}");
        let metadata = std::fs::metadata(&self.path).map_err(unreadable)?;
        let stamp = (metadata.modified().map_err(unreadable)?, metadata.len(), metadata.ino());
        if self.stamp == Some(stamp) {
            return Ok(());
        }
        super::disk::regular_or_absent(&self.path).map_err(unreadable)?;
        let text = std::fs::read_to_string(&self.path).map_err(unreadable)?;
        let orders: Vec<Order> =
            serde_json::from_str(&text).map_err(|error| format!("{path} is not a list of fault orders: {error}"))?;
        if let Some(order) = orders.iter().find(|order| order.call != "*" && !super::CALLS.contains(&&*order.call)) {
            return Err(format!("{path} has a fault order for {:?}, which is not a CSI call", order.call));
        }
        (self.orders, self.stamp) = (orders, Some(stamp));
        Ok(())
    }
}
