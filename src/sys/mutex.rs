//! Locking what several tasks share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The panic of one must not become that of all: nothing here stays locked for longer than a change that is whole by itself.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
