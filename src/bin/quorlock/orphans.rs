//! Orphans: the first process of a container becomes the parent of processes whose own parent has ended.

use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use rustix::process::Pid;

/// Takes orphans that have ended off the system, where they would pile up. Leaves it at that if it comes to `command`,
/// whose exit status is still wanted.
pub(crate) fn reap(command: Option<Pid>) {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let ended = || waitid(Id::All, look).ok()?.pid();
    while let Some(pid) = ended().filter(|pid| Pid::from_raw(pid.as_raw()) != command) {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG)); // has ended, so is there to be taken
    }
}
