//! The terminal's foreground: lent to the command's process group, and taken back.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal as mask;
use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::signals;

/// Our controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    home: Pid,
    /// Whether the command is to have the foreground whenever we could have it.
    wanted: bool,
    lent: bool,
    /// As they were when it was lent.
    modes: Option<Termios>,
}

impl Terminal {
    /// `None` if there is no terminal.
    pub(crate) fn open() -> Option<Terminal> {
        Some(Terminal {
            tty: File::options().read(true).write(true).open("/dev/tty").ok()?,
            home: getpgrp(),
            // In a pipeline (`quorlock run … | less`) the foreground belongs to the others as well. A command that does
            // read the terminal there is stopped by the kernel, and gets it then.
            // Nor does one that a script started with '&': the shell has it ignore Ctrl-C, so the terminal is not for it.
            wanted: stdin().is_terminal() && stdout().is_terminal() && !signals::is_ignored(Signal::INT),
            lent: false,
            modes: None,
        })
    }

    /// Whether the command should have the foreground from the start, and after each suspension.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Makes `group` the foreground group, if it is ours to give.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        if tcgetpgrp(&self.tty) != Ok(self.home) {
            return false;
        }
        self.modes = tcgetattr(&self.tty).ok();
        self.lent = tcsetpgrp(&self.tty, group).is_ok();
        self.wanted |= self.lent;
        self.lent
    }

    /// Makes ours the foreground group again, if it was lent. `repair` also sets the modes that the terminal had then,
    /// for a command that had no chance to do so. Returns whether it was lent.
    pub(crate) fn take_back(&mut self, repair: bool) -> bool {
        if !std::mem::take(&mut self.lent) {
            return false;
        }
        // We are in the background now, where this raises TTOU unless it is blocked.
        unstoppable(|| {
            let _ = tcsetpgrp(&self.tty, self.home); // fails if the terminal is gone: nothing to take then
            if let (true, Some(modes)) = (repair, &self.modes) {
                let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
            }
        });
        true
    }
}

/// Does something that the terminal allows to background processes only if TTOU does not stop them.
fn unstoppable(work: impl FnOnce()) {
    let mut stop = mask::SigSet::empty();
    stop.add(mask::Signal::SIGTTOU);
    let before = stop.thread_swap_mask(mask::SigmaskHow::SIG_BLOCK);
    work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask(); // cannot fail for a mask that was in force
    }
}
