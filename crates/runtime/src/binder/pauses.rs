//! How long to wait with an operation that failed: longer each time.

use kit::cache::Key;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_secs(122);

#[derive(Default)]
pub struct Pauses {
    failed: HashMap<Key, Failed>,
}

struct Failed {
    uid: String,
    times: u32,
    until: Instant,
}

impl Pauses {
    /// How long an operation on this object must still wait.
    pub fn left(&self, key: &Key, uid: &str) -> Option<Duration> {
        let failed = self.failed.get(key).filter(|failed| failed.uid == uid)?;
        Some(failed.until.duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// The operation failed. Returns how long it must wait now.
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
    async fn pauses_double_and_are_of_one_object() {
        let mut pauses = Pauses::default();
        let key: Key = ("".into(), "v".into());
        assert_eq!(pauses.left(&key, "a"), None);
        assert_eq!(pauses.fail(&key, "a"), FIRST);
        assert_eq!(pauses.left(&key, "a"), Some(FIRST));
        assert_eq!(pauses.left(&key, "b"), None, "another object under the name");
        tokio::time::advance(FIRST).await;
        assert_eq!(pauses.left(&key, "a"), None);
        assert_eq!(pauses.fail(&key, "a"), FIRST * 2);
        let last = (0..20).map(|_| pauses.fail(&key, "a")).last();
        assert_eq!(last, Some(MAX));
        pauses.forget(&key);
        assert_eq!(pauses.fail(&key, "a"), FIRST);
    }
}
