//! The command: its own process group, with the terminal if there is one, and with a guard.

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
    "it runs as another user (sudo?), which this user may not signal; run quorlock itself as that user";
/// How long after [`suspension::suspend`] to wait for CONT. Without it, this process was not suspended.
const NOT_SUSPENDED: Duration = Duration::from_millis(100);
/// How often to check whether a group is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A command that runs, or has ended and is not reaped yet. Its pid stays in use until [`Job::reap`].
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    group: Pid,
    recipient: Recipient,
    guard: Guard,
    terminal: Option<Terminal>,
    children: unix::Signal,
    control: Signals,
    /// `None` once the command is reaped.
    awaited: Option<Awaited>,
    /// When to resume the command unless CONT comes first, after this process has asked to be suspended.
    suspended: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The command itself has ended. Other processes of its group may go on.
    Ended(Ended),
    /// The command is to go on after a suspension: call [`Job::resume`].
    Resumed,
    /// All processes of the group have ended, after [`Job::reap`].
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Job {
    /// Starts `command` under `guard`, with these variables. A variable without a value is removed, as it may be an outer run's.
    pub(crate) async fn start(
        command: &[OsString],
        environment: &[(&str, Option<&str>)],
        recipient: Recipient,
        mut guard: Guard,
    ) -> Result<Job, Failure> {
        let system = |doing| move |error: io::Error| Failure::system(doing, &error);
        guard.ready().await?;
        let children = unix::signal(SignalKind::child()).map_err(system("watch child processes"))?;
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
            // The command may have used the terminal before this, and been stopped.
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

    pub(crate) fn forward(&self, signal: Signal) {
        let allowed = match self.recipient {
            // Ctrl-Z suspends all processes.
            Recipient::Command if signal != Signal::TSTP => {
                self.is_reaped() || kill_process(self.group, signal) != Err(Errno::PERM)
            }
            _ => self.signal(signal),
        };
        if !allowed {
            tracing::warn!("a signal cannot be passed on to the command: {NOT_OURS}");
        }
    }

    /// Sends `signal` to the whole group. Returns `false` if all its processes belong to another user.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal) != Err(Errno::PERM)
    }

    /// Resumes the command, and lends it the terminal if this process has it.
    pub(crate) fn resume(&mut self) {
        self.suspended = None;
        if let Some(terminal) = &mut self.terminal
            && terminal.is_wanted()
        {
            terminal.lend(self.group);
        }
        self.signal(Signal::CONT);
    }

    /// Returns how the command itself ended. `None` while it runs.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.group), peek).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ended::Code(code)),
            (None, Some(number)) => Some(Ended::Signal(number)),
            (None, None) => None,
        }
    }

    /// Waits for the next change. If job control suspends the command, suspends this process, too. Cancel safe.
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
                    // A resize (WINCH) reaches this group, and is meant for the command.
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

    /// Returns the signal that has stopped the command, once for each stop.
    fn stopped(&self) -> Option<Signal> {
        let take = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let number = waitid(WaitId::Pid(self.group), take)
            .ok()?
            .as_ref()
            .and_then(WaitIdStatus::stopping_signal)?;
        Signal::from_named_raw(number)
    }

    /// Handles a stop of the command. After one by job control, this process stops, too: the shell then takes the terminal back.
    fn suspend(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else {
            return keeps_lock_while_stopped(signal);
        };
        match signal {
            Signal::TTIN | Signal::TTOU if terminal.lend(self.group) => {
                self.signal(Signal::CONT);
            }
            Signal::TTIN | Signal::TTOU | Signal::TSTP => {
                terminal.take_back(false);
                // Without a shell that could resume it, this process does not stop. The command then has to go on, unless it
                // would be stopped again.
                self.suspended = (signal == Signal::TSTP).then(|| Instant::now() + NOT_SUSPENDED);
                suspension::suspend();
            }
            // Not by job control: this process goes on.
            _ => keeps_lock_while_stopped(signal),
        }
    }

    /// Dismisses the guard after the command's own end. Returns how this process has to end.
    pub(crate) fn finish(&mut self, ended: Ended) -> End {
        self.guard.dismiss();
        let had_terminal = self.reap(matches!(ended, Ended::Signal(_)));
        match ended {
            Ended::Code(code) => End::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            Ended::Signal(number) => End::of_command(number, had_terminal),
        }
    }

    /// Takes the terminal back, and reaps the ended command. Returns whether the command had the terminal.
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
            sleep(POLL_INTERVAL).await;
        }
    }
}

fn keeps_lock_while_stopped(signal: Signal) {
    let name = match signal {
        Signal::TSTP => "TSTP",
        Signal::TTIN => "TTIN",
        Signal::TTOU => "TTOU",
        _ => "STOP",
    };
    tracing::warn!("the command was stopped by {name}, and keeps the lock meanwhile: CONT lets it go on");
}
