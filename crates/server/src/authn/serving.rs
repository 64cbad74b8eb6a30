//! The certificate that a running server shows: made anew before it expires, so that nobody has to restart a server for that.

use super::certs::{CertError, Identity, certificate, private_key};
use super::tls::provider;
use crate::env::Clock;
use jiff::{SignedDuration, Timestamp};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Handshakes are many, and certificates last for months.
const LOOK_EVERY: SignedDuration = SignedDuration::from_hours(1);

pub struct Serving {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    identity: Identity,
    shown: Arc<CertifiedKey>,
    look_at: Timestamp,
}

impl Serving {
    pub fn new(identity: &Identity, clock: Arc<dyn Clock>) -> Result<Serving, CertError> {
        let state = State { identity: identity.clone(), shown: certified(identity)?, look_at: Timestamp::MIN };
        Ok(Serving { clock, state: Mutex::new(state) })
    }

    fn shown(&self) -> Arc<CertifiedKey> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= state.look_at {
            state.look_at = now.saturating_add(LOOK_EVERY).unwrap_or(Timestamp::MAX);
            if let Err(error) = state.renew(now) {
                tracing::error!(%error, "the serving certificate cannot be made anew; it is tried again in an hour");
            }
        }
        state.shown.clone()
    }
}

impl State {
    fn renew(&mut self, now: Timestamp) -> Result<(), CertError> {
        if self.identity.renew_serving(now)? {
            self.shown = certified(&self.identity)?;
            tracing::info!("the serving certificate was made anew before it expires");
        }
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown())
    }
}

// Keys never reach a log, not even by accident.
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
