//! Timers that work wherever a lock is used from.

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

/// A timer of the runtime that this is called on, or of `home` where there is none.
pub(crate) fn sleep_until(home: &Handle, at: Instant) -> Sleep {
    let _home = Handle::try_current().is_err().then(|| home.enter());
    tokio::time::sleep_until(at)
}
