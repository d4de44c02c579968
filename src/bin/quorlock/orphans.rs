//! Orphans: the first process of a container becomes the parent of processes whose own parent has ended.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use rustix::process::{Pid, child_subreaper, getpid};

/// Children whose exit status somebody waits for.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A child that is not taken off the system here.
pub(crate) struct Awaited(i32);

impl Drop for Awaited {
    fn drop(&mut self) {
        awaited().remove(&self.0);
    }
}

/// Starts a child whose exit status is wanted.
pub(crate) fn spawn(command: &mut tokio::process::Command) -> io::Result<(tokio::process::Child, Awaited)> {
    // Locked before the child can end.
    let mut awaited = awaited();
    let child = command.spawn()?;
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .unwrap_or_default();
    awaited.insert(pid);
    Ok((child, Awaited(pid)))
}

/// Takes orphans that have ended off the system, where they would pile up. Leaves it at that if it comes to `command`, or to
/// another child whose exit status is still wanted.
pub(crate) fn reap(command: Option<Pid>) {
    let adopts = getpid().is_init() || child_subreaper().is_ok_and(|adopts| adopts.is_some());
    if !adopts {
        return;
    }
    let awaited = awaited();
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let ended = || waitid(Id::All, look).ok()?.pid();
    let is_orphan =
        |pid: &nix::unistd::Pid| Pid::from_raw(pid.as_raw()) != command && !awaited.contains(&pid.as_raw());
    while let Some(pid) = ended().filter(is_orphan) {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG)); // has ended, so is there to be taken
    }
}

fn awaited() -> MutexGuard<'static, BTreeSet<i32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}
