//! Backoff per object for failed operations.

use crate::cache::Key;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_secs(122);

#[derive(Default)]
pub struct ObjectBackoff {
    failed: HashMap<Key, Failed>,
}

struct Failed {
    uid: String,
    times: u32,
    until: Instant,
}

impl ObjectBackoff {
    /// How long an operation on this object still has to wait.
    pub fn left(&self, key: &Key, uid: &str) -> Option<Duration> {
        let failed = self.failed.get(key).filter(|failed| failed.uid == uid)?;
        Some(failed.until.duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Records a failed operation; returns the backoff.
    pub fn fail(&mut self, key: &Key, uid: &str) -> Duration {
        let before = self.failed.get(key).filter(|failed| failed.uid == uid);
        let times = before.map_or(0, |failed| failed.times);
        let pause = FIRST.saturating_mul(1 << times.min(16)).min(MAX);
        let until = Instant::now() + pause;
        self.failed.insert(key.clone(), Failed { uid: uid.to_owned(), times: times + 1, until });
        pause
    }

    pub fn forget(&mut self, key: &Key) {
        self.failed.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_and_is_per_object() {
        let mut backoff = ObjectBackoff::default();
        let key: Key = ("".into(), "v".into());
        assert_eq!(backoff.left(&key, "a"), None);
        assert_eq!(backoff.fail(&key, "a"), FIRST);
        assert_eq!(backoff.left(&key, "a"), Some(FIRST));
        assert_eq!(backoff.left(&key, "b"), None, "another object of the same name");
        tokio::time::advance(FIRST).await;
        assert_eq!(backoff.left(&key, "a"), None);
        assert_eq!(backoff.fail(&key, "a"), FIRST * 2);
        let last = (0..20).map(|_| backoff.fail(&key, "a")).last();
        assert_eq!(last, Some(MAX));
        backoff.forget(&key);
        assert_eq!(backoff.fail(&key, "a"), FIRST);
    }
}
