//! Lends the terminal's foreground to the command's process group, and takes it back.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal as mask;
use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::signals;

#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own_group: Pid,
    /// Whether the command gets the foreground whenever this process has it.
    wanted: bool,
    lent: bool,
    /// The modes from before the foreground was lent.
    modes: Option<Termios>,
}

impl Terminal {
    /// Opens the controlling terminal. `None` if there is none.
    pub(crate) fn open() -> Option<Terminal> {
        Some(Terminal {
            tty: File::options().read(true).write(true).open("/dev/tty").ok()?,
            own_group: getpgrp(),
            // In a pipeline (`quorlock run … | less`), other programs need the foreground, too. A command that reads the terminal
            // there is stopped by the kernel, and gets it then. If Ctrl-C is ignored, a script has started this process with '&',
            // and the terminal is not for it.
            wanted: stdin().is_terminal() && stdout().is_terminal() && !signals::is_ignored(Signal::INT),
            lent: false,
            modes: None,
        })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Makes `group` the foreground group, if this process's group has the foreground. Returns whether it did.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        if tcgetpgrp(&self.tty) != Ok(self.own_group) {
            return false;
        }
        self.modes = tcgetattr(&self.tty).ok();
        self.lent = tcsetpgrp(&self.tty, group).is_ok();
        self.wanted |= self.lent;
        self.lent
    }

    /// Takes the foreground back, if it was lent. Returns whether it was. `repair` also restores the modes, for a command that
    /// was killed before it could.
    pub(crate) fn take_back(&mut self, repair: bool) -> bool {
        if !std::mem::take(&mut self.lent) {
            return false;
        }
        // In the background, this raises TTOU unless it is blocked.
        unstoppable(|| {
            let _ = tcsetpgrp(&self.tty, self.own_group); // fails if the terminal is gone
            if let (true, Some(modes)) = (repair, &self.modes) {
                let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
            }
        });
        true
    }
}

/// Runs `work` with TTOU blocked, which would stop a background process that changes the terminal.
fn unstoppable(work: impl FnOnce()) {
    let mut stop = mask::SigSet::empty();
    stop.add(mask::Signal::SIGTTOU);
    let before = stop.thread_swap_mask(mask::SigmaskHow::SIG_BLOCK);
    work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask(); // cannot fail for a mask that was in use
    }
}
