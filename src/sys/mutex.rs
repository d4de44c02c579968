//! Locks a mutex, also after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also if a task panicked while it held the lock. Each change under a lock is complete by itself.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
