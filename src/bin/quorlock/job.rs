//! The command: a process group of its own, with the terminal if there is one, watched over by a guard.

use std::ffi::OsString;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::Recipient;
use crate::command;
use crate::end::End;
use crate::exit::Failure;
use crate::group;
use crate::guard::Guard;
use crate::orphans::{self, Awaited};
use crate::signals::Signals;
use crate::suspension;
use crate::terminal::Terminal;

/// Why a command cannot be signalled.
pub(crate) const NOT_OURS: &str =
    "it runs as another user (sudo?), and this one may not signal it; run quorlock itself as that user";
/// How soon the shell's "go on" reaches us if we were not suspended after all.
const NOT_SUSPENDED: Duration = Duration::from_millis(100);
/// How often a group is looked at that should be gone soon.
const LOOK: Duration = Duration::from_millis(5);

/// A command that runs, or has ended but was not waited for yet: until [`Job::reap`] its number stays taken.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    group: Pid,
    recipient: Recipient,
    guard: Guard,
    terminal: Option<Terminal>,
    children: unix::Signal,
    control: Signals,
    /// `None` once its exit status was taken off the system.
    awaited: Option<Awaited>,
    /// We have asked to be suspended; if nothing comes of it until then, nobody will resume the command but us.
    suspended: Option<Instant>,
}

/// What can happen to a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The command itself has ended. Others of its group may live on.
    Ended(Ended),
    /// Somebody wants it to go on after a suspension: [`Job::resume`].
    Resumed,
    /// After [`Job::reap`]: nothing of its group is left.
    Gone,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Job {
    /// Starts `command` under `guard`, with these variables. One without a value is not to be there at all: an outer run's
    /// would be mistaken for this one's.
    pub(crate) async fn start(
        command: &[OsString],
        environment: &[(&str, Option<&str>)],
        recipient: Recipient,
        mut guard: Guard,
    ) -> Result<Job, Failure> {
        let system = |doing| move |error: io::Error| Failure::system(doing, &error);
        guard.ready().await?;
        let children = unix::signal(SignalKind::child()).map_err(system("watch over processes"))?;
        let terminal = Terminal::open();
        let control = Signals::listen(&[Signal::CONT, Signal::WINCH])?;
        let (child, awaited) =
            orphans::spawn(|| command::spawn(command, environment), |child| Some(child.id()))?;
        let group = Pid::from_child(&child);
        guard.watch(group);
        let mut job = Job {
            child,
            group,
            recipient,
            guard,
            terminal,
            children,
            control,
            awaited: Some(awaited),
            suspended: None,
        };
        if job.terminal.as_ref().is_some_and(Terminal::is_wanted) {
            // It may have asked for the terminal, and been stopped, before it got it.
            job.resume();
        }
        Ok(job)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Passes on a signal that this process was sent.
    pub(crate) fn pass_on(&self, signal: Signal) {
        let allowed = match self.recipient {
            // Suspended are all, or none.
            Recipient::Command if signal != Signal::TSTP => {
                self.is_reaped() || kill_process(self.group, signal) != Err(Errno::PERM)
            }
            _ => self.signal(signal),
        };
        if !allowed {
            tracing::warn!("a signal cannot be passed on to the command: {NOT_OURS}");
        }
    }

    /// Sends `signal` to the whole group. Returns false if nobody got it, for all who are left belong to another user.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal) != Err(Errno::PERM)
    }

    /// Lets the command go on, with the terminal if it is ours to give.
    pub(crate) fn resume(&mut self) {
        self.suspended = None;
        if let Some(terminal) = &mut self.terminal
            && terminal.is_wanted()
        {
            terminal.lend(self.group);
        }
        self.signal(Signal::CONT);
    }

    /// How the command itself ended, if it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.group), peek).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ended::Code(code)),
            (None, Some(number)) => Some(Ended::Signal(number)),
            (None, None) => None,
        }
    }

    /// Waits for the next change. Suspends us with the command when the terminal's user suspends it.
    ///
    /// Cancel safe.
    pub(crate) async fn change(&mut self) -> Change {
        if self.is_reaped() {
            self.group_gone().await;
            return Change::Gone;
        }
        loop {
            if let Some(ended) = self.ended() {
                return Change::Ended(ended);
            }
            if let Some(signal) = self.stopped() {
                self.suspend(signal);
            }
            let resume_by_force = async {
                match self.suspended {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = self.control.next() => match signal {
                    Signal::CONT => {
                        self.suspended = None;
                        return Change::Resumed;
                    }
                    // The terminal's user resizes it for our group, and means the command.
                    other => {
                        self.signal(other);
                    }
                },
                _ = self.children.recv() => orphans::reap(),
                () = resume_by_force => {
                    self.suspended = None;
                    return Change::Resumed;
                }
            }
        }
    }

    /// The signal that has stopped the command, once.
    fn stopped(&self) -> Option<Signal> {
        let take = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let number = waitid(WaitId::Pid(self.group), take)
            .ok()?
            .as_ref()
            .and_then(WaitIdStatus::stopping_signal)?;
        Signal::from_named_raw(number)
    }

    /// The command has been stopped. If it was by job control, the shell is to see us stopped too, and so to get its
    /// terminal back.
    fn suspend(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        match signal {
            Signal::TTIN | Signal::TTOU if terminal.lend(self.group) => {
                self.signal(Signal::CONT);
            }
            Signal::TTIN | Signal::TTOU | Signal::TSTP => {
                terminal.take_back(false);
                // Takes effect right here, and does not if no shell could resume us: then the command has to go on too, unless
                // it would only be stopped again.
                self.suspended = (signal == Signal::TSTP).then(|| Instant::now() + NOT_SUSPENDED);
                suspension::suspend();
            }
            // Stopped by somebody's decision, not for the terminal: that does not concern us.
            _ => {}
        }
    }

    /// After the command's own end: lets the rest of its group go on. Returns how this process has to end.
    pub(crate) fn finish(&mut self, ended: Ended) -> End {
        self.guard.dismiss();
        let had_terminal = self.reap(matches!(ended, Ended::Signal(_)));
        match ended {
            Ended::Code(code) => End::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            Ended::Signal(number) => End::of_command(number, had_terminal),
        }
    }

    /// Takes the terminal back and the command's exit status off the system. Returns whether the command had the terminal.
    pub(crate) fn reap(&mut self, repair: bool) -> bool {
        let terminal = self.terminal.as_mut();
        let had_terminal = terminal.is_some_and(|terminal| terminal.take_back(repair));
        let _: io::Result<ExitStatus> = self.child.wait(); // has ended, so does not block
        self.awaited = None;
        had_terminal
    }

    fn is_reaped(&self) -> bool {
        self.awaited.is_none()
    }

    async fn group_gone(&self) {
        while group::is_running(self.group) {
            orphans::reap();
            sleep(LOOK).await;
        }
    }
}
