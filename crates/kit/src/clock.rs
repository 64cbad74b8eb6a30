//! The clock of controllers, which tests and simulations replace.

use std::sync::Arc;

/// Returns the current time: the machine's, or a test's.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// A clock that begins with `clock` and then follows the monotonic clock, so that it never jumps. For measuring time in this process; what is
/// stored or shown has the time of `clock`.
pub fn steady(clock: &Clock) -> Clock {
    let (begin, began) = (clock(), tokio::time::Instant::now());
    Arc::new(move || begin.checked_add(began.elapsed()).unwrap_or(jiff::Timestamp::MAX))
}
