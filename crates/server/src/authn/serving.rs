//! The serving certificate of a running server. It is renewed before it expires, and when it is not valid yet by the
//! clock.

use super::certs::{CertError, Identity, certificate, private_key};
use super::tls::provider;
use crate::env::Clock;
use jiff::Timestamp;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two attempts to renew, by the monotonic clock, because the system clock may jump back.
const RETRY_AFTER: Duration = Duration::from_secs(60);

pub struct Serving {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    identity: Identity,
    shown: Arc<CertifiedKey>,
    /// The period in which the certificate need not be renewed, in Unix seconds.
    period: Range<i64>,
    failed_at: Option<Instant>,
}

impl Serving {
    pub fn new(identity: &Identity, clock: Arc<dyn Clock>) -> Result<Serving, CertError> {
        let (shown, period) = (certified(identity)?, identity.serving_period()?);
        let state = State { identity: identity.clone(), shown, period, failed_at: None };
        Ok(Serving { clock, state: Mutex::new(state) })
    }

    fn shown(&self) -> Arc<CertifiedKey> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let may_try = state.failed_at.is_none_or(|at| at.elapsed() >= RETRY_AFTER);
        if !state.period.contains(&now.as_second()) && may_try {
            let renewed = state.renew(now);
            state.failed_at = renewed.is_err().then(Instant::now);
            match renewed {
                Ok(()) => tracing::info!("renewed the serving certificate"),
                Err(error) => tracing::error!(%error, "cannot renew the serving certificate; trying again"),
            }
        }
        state.shown.clone()
    }
}

impl State {
    fn renew(&mut self, now: Timestamp) -> Result<(), CertError> {
        self.identity.renew_serving(now)?;
        self.shown = certified(&self.identity)?;
        self.period = self.identity.serving_period()?;
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown())
    }
}

// Keys must never be logged.
impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, CertError> {
    let chain = vec![certificate(&identity.serving.certificate_pem)?];
    let key = private_key(&identity.serving.key_pem)?;
    let certified = CertifiedKey::from_der(chain, key, &provider());
    certified.map(Arc::new).map_err(|error| CertError::Tls(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::serving_names;
    use std::sync::atomic::{AtomicI64, Ordering};
    use x509_parser::prelude::{FromDer, X509Certificate};

    const DAY_S: i64 = 24 * 60 * 60;

    struct Jumping(AtomicI64);

    impl Clock for Jumping {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
        }
    }

    #[test]
    fn the_certificate_is_valid_wherever_the_clock_jumps() {
        let begun = 1_800_000_000;
        let clock = Arc::new(Jumping(AtomicI64::new(begun)));
        let identity = Identity::make(&serving_names("", &[]), clock.now()).unwrap();
        let serving = Serving::new(&identity, clock.clone()).unwrap();
        let first = serving.shown();
        for jump_s in [0, 4000 * DAY_S, 0, 400 * DAY_S, -DAY_S, 300 * DAY_S, -400 * DAY_S] {
            let now_s = begun + jump_s;
            clock.0.store(now_s, Ordering::Relaxed);
            let shown = serving.shown();
            let (_, parsed) = X509Certificate::from_der(&shown.cert[0]).unwrap();
            let (from_s, to_s) = (parsed.validity.not_before.timestamp(), parsed.validity.not_after.timestamp());
            // A client's clock may be some minutes behind.
            assert!(from_s <= now_s - 600 && to_s > now_s + 60 * DAY_S, "{jump_s}: {from_s} {to_s}");
            if jump_s == 0 && Arc::ptr_eq(&shown, &first) {
                assert!(Arc::ptr_eq(&serving.shown(), &shown), "it is renewed only once");
            }
        }
    }
}
