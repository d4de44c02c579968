//! Reaps orphans: the first process of a container becomes the parent of processes whose own parent has ended.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use rustix::process::{child_subreaper, getpid};

/// Children that other code reaps.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A child that [`reap`] leaves alone until this is dropped.
#[derive(Debug)]
pub(crate) struct Awaited(i32);

impl Drop for Awaited {
    fn drop(&mut self) {
        awaited().remove(&self.0);
    }
}

/// Starts a child whose exit status is wanted. `pid` returns its pid; `None` if it is reaped already.
pub(crate) fn spawn<C, E>(
    start: impl FnOnce() -> Result<C, E>,
    pid: impl FnOnce(&C) -> Option<u32>,
) -> Result<(C, Awaited), E> {
    // Locked before the start, so that `reap` waits until the child is listed.
    let mut awaited = awaited();
    let child = start()?;
    let pid = pid(&child)
        .and_then(|pid| i32::try_from(pid).ok())
        .unwrap_or_default();
    awaited.insert(pid);
    Ok((child, Awaited(pid)))
}

/// Reaps orphans that have ended. Stops at a child whose exit status is still wanted.
pub(crate) fn reap() {
    let adopts = getpid().is_init() || child_subreaper().is_ok_and(|adopts| adopts.is_some());
    if !adopts {
        return;
    }
    let awaited = awaited();
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let ended = || waitid(Id::All, look).ok()?.pid();
    while let Some(pid) = ended().filter(|pid| !awaited.contains(&pid.as_raw())) {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG)); // does not block: it has ended
    }
}

fn awaited() -> MutexGuard<'static, BTreeSet<i32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}
