//! Faults between controllers and the server, injected by tests.

use futures::StreamExt;
use http::Response;
use server::Body;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// A fault of a single request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is not executed, and answered with this code.
    Refused(u16),
    /// It is executed, but the response is lost.
    AnswerLost,
    /// It is not executed and never answered.
    Stuck,
    /// It is executed, but never answered.
    AnswerStuck,
    /// It is executed later, when [`Faults::release`] is called.
    Held,
    /// The same, but the client gets an error at once.
    Late,
}

/// The faults between the controllers and the server.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<FaultState>>,
}

#[derive(Default)]
struct FaultState {
    /// Every request is answered with this code.
    refuse: Option<u16>,
    /// The next requests of a method are answered with a code, this many times.
    refuse_times: Option<(&'static str, usize, u16)>,
    /// Writes of this method to paths with this suffix are answered with this code.
    refuse_at: Option<(&'static str, &'static str, u16)>,
    mishap: Option<(Mishap, &'static str, usize)>,
    /// The response to one read of this account, of this path if it is given, after this many other reads
    /// except watches, is held until the release.
    late_read: Option<(&'static str, Option<&'static str>, usize)>,
    release: CancellationToken,
    /// No request is answered at all.
    silent: bool,
    /// A part of queries that the server ignores.
    unknown: Option<&'static str>,
    /// The server enforces OwnerReferencesPermissionEnforcement.
    guards_owners: bool,
    /// Cancelled to end the open watches.
    watches: CancellationToken,
    /// Watches of this account with this path send no events until the release.
    muted: Option<(&'static str, &'static str)>,
}

impl Faults {
    /// From now on every request of a controller is answered with this code, or (`None`) as usual.
    pub fn refuse(&self, code: Option<u16>) {
        self.state.lock().expect("no panic").refuse = code;
    }

    /// The next requests of this method, except watches, are answered with this code.
    pub fn refuse_times(&self, method: &'static str, times: usize, code: u16) {
        self.state.lock().expect("no panic").refuse_times = Some((method, times, code));
    }

    /// From now on requests of this method to paths with this suffix are answered with this code, or (`None`)
    /// as usual.
    pub fn refuse_at(&self, refused: Option<(&'static str, &'static str, u16)>) {
        self.state.lock().expect("no panic").refuse_at = refused;
    }

    /// From now on the server ignores this part of a query, as other servers do.
    pub fn unknown(&self, query: &'static str) {
        self.state.lock().expect("no panic").unknown = Some(query);
    }

    /// From now on the server enforces OwnerReferencesPermissionEnforcement, as other servers do.
    pub fn guard_owners(&self) {
        self.state.lock().expect("no panic").guards_owners = true;
    }

    pub(super) fn guards_owners(&self) -> bool {
        self.state.lock().expect("no panic").guards_owners
    }

    pub(super) fn passed_over(&self, path: &str) -> String {
        self.state.lock().expect("no panic").unknown.map_or_else(|| path.to_owned(), |query| path.replace(query, ""))
    }

    /// Injects a fault into a write of this account (an empty name is any), after this many other writes, not
    /// counting events.
    pub fn mishap(&self, account: &'static str, after: usize, mishap: Mishap) {
        self.state.lock().expect("no panic").mishap = Some((mishap, account, after));
    }

    /// From now on an account's watches of this path send no events, until the release.
    pub fn mute(&self, account: &'static str, path: &'static str) {
        self.state.lock().expect("no panic").muted = Some((account, path));
    }

    /// Releases everything that is held.
    pub fn release(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.muted = None;
        std::mem::take(&mut state.release).cancel();
    }

    pub(super) fn is_muted(&self, account: &str, path: &str) -> bool {
        let muted = self.state.lock().expect("no panic").muted;
        muted.is_some_and(|(whose, part)| account == whose && path.contains(part))
    }

    /// Whether the injected fault has not occurred yet.
    pub fn mishap_waits(&self) -> bool {
        self.state.lock().expect("no panic").mishap.is_some()
    }

    /// The fault for this request, if any.
    pub(super) fn meets(&self, account: &str, method: &str, path: &str) -> Option<Mishap> {
        let mut state = self.state.lock().expect("no panic");
        let (mishap, whose, after) = state.mishap.as_mut()?;
        if !(whose.is_empty() || account == *whose) || !is_write(method, path) {
            return None;
        }
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let mishap = *mishap;
        state.mishap = None;
        Some(mishap)
    }

    /// The response to a read of this account, after this many other reads except watches, has the state of
    /// its time, but is held until [`Faults::release`] is called.
    pub fn answer_late(&self, account: &'static str, after: usize) {
        self.state.lock().expect("no panic").late_read = Some((account, None, after));
    }

    /// The same for the next read of this account at this path.
    pub fn answer_late_at(&self, account: &'static str, path: &'static str) {
        self.state.lock().expect("no panic").late_read = Some((account, Some(path), 0));
    }

    /// Whether the read whose response is to be held was not sent yet.
    pub fn late_read_waits(&self) -> bool {
        self.state.lock().expect("no panic").late_read.is_some()
    }

    pub(super) fn is_late(&self, account: &str, method: &str, path: &str) -> bool {
        let mut state = self.state.lock().expect("no panic");
        let Some((whose, of, after)) = &mut state.late_read else { return false };
        let is_meant = account == *whose && of.is_none_or(|of| of == path);
        if !is_meant || method != "GET" || path.contains("watch=") {
            return false;
        }
        if *after > 0 {
            *after -= 1;
            return false;
        }
        state.late_read = None;
        true
    }

    pub(super) async fn hold(&self) {
        let released = self.state.lock().expect("no panic").release.clone();
        released.cancelled().await;
    }

    /// From now on no request of a controller is answered, and open watches end.
    pub fn silence(&self) {
        self.state.lock().expect("no panic").silent = true;
        self.cut_watches();
    }

    pub(super) fn is_silent(&self) -> bool {
        self.state.lock().expect("no panic").silent
    }

    /// Ends all open watches.
    pub fn cut_watches(&self) {
        std::mem::take(&mut self.state.lock().expect("no panic").watches).cancel();
    }

    pub(super) fn refusal(&self, method: &str, path: &str) -> Option<Response<Body>> {
        let code = self.state.lock().expect("no panic").code(method, path)?;
        Some(out_of_order(code))
    }

    pub(super) fn tap(&self, body: Body, account: &Arc<str>, path: &str) -> Body {
        match body {
            Body::Stream(stream) => {
                let cut = self.state.lock().expect("no panic").watches.clone();
                let (faults, account, path) = (self.clone(), account.clone(), Arc::<str>::from(path));
                let told = stream.then(move |chunk| {
                    let (faults, account, path) = (faults.clone(), account.clone(), path.clone());
                    async move {
                        if faults.is_muted(&account, &path) {
                            faults.hold().await;
                        }
                        chunk
                    }
                });
                Body::Stream(Box::pin(told.take_until(cut.cancelled_owned())))
            }
            once => once,
        }
    }
}

impl FaultState {
    fn code(&mut self, method: &str, path: &str) -> Option<u16> {
        if let Some((refused, times, code)) = &mut self.refuse_times
            && *refused == method
            && *times > 0
            && !path.contains("watch=")
        {
            *times -= 1;
            return Some(*code);
        }
        let refused = self.refuse_at.filter(|(refused, end, _)| *refused == method && path.ends_with(end));
        refused.map(|(_, _, code)| code).or(self.refuse)
    }
}

/// Whether a request is a write, except of events.
pub fn is_write(method: &str, path: &str) -> bool {
    method != "GET" && !path.contains("/events")
}

pub(super) fn out_of_order(code: u16) -> Response<Body> {
    server::app::status_response(&object::Status::new(code, "InternalError", "out of order"))
}
