//! The log of calls that a driver answered, for tests.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::Code;

/// One answered call.
#[derive(Clone)]
pub struct Call {
    /// For example `CreateVolume`.
    pub name: &'static str,
    /// The name or id in the request; empty if the call has none.
    pub subject: String,
    /// The code of the response, also if the response was lost; `Cancelled` if the caller did not wait for it.
    pub code: Code,
    request: Arc<dyn Any + Send + Sync>,
}

impl Call {
    /// The request, if it has this type. It contains the secrets.
    pub fn request<T: 'static>(&self) -> Option<&T> {
        self.request.downcast_ref()
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({}) {:?}", self.name, self.subject, self.code)
    }
}

/// The last calls of one driver, oldest first.
#[derive(Debug)]
pub struct Calls {
    kept_max: usize,
    kept: watch::Sender<VecDeque<Call>>,
}

impl Calls {
    pub(super) fn new(kept_max: usize) -> Calls {
        Calls { kept_max, kept: watch::Sender::default() }
    }

    pub fn all(&self) -> Vec<Call> {
        self.kept.borrow().iter().cloned().collect()
    }

    /// The calls with this name.
    pub fn named(&self, name: &str) -> Vec<Call> {
        self.kept.borrow().iter().filter(|call| call.name == name).cloned().collect()
    }

    /// Waits until `wanted` accepts the calls, and returns them.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&VecDeque<Call>) -> bool) -> Vec<Call> {
        let mut changes = self.kept.subscribe();
        let kept = changes.wait_for(|kept| wanted(kept)).await.expect("the sender is not dropped");
        kept.iter().cloned().collect()
    }

    pub(super) fn add<T: Any + Send + Sync>(&self, name: &'static str, subject: String, request: T, code: Code) {
        if self.kept_max == 0 {
            return;
        }
        self.kept.send_modify(|kept| {
            if kept.len() == self.kept_max {
                kept.pop_front();
            }
            kept.push_back(Call { name, subject, code, request: Arc::new(request) });
        });
    }
}
