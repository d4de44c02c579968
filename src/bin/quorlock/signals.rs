//! Signals that this process gets.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::suspension::{self, Suspension};

/// Signals that would end this process, and go to the command instead; without those of faults (SEGV, ...).
const FORWARDED: &[Signal] = &[
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// Unblocks all signals, which a parent may have left blocked: TERM and CHLD (the command's end) must reach this process.
pub(crate) fn unblock() {
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
}

/// Signals that this process listens to, from the creation of this on.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    suspension: Option<Suspension>,
    told_to_end: bool,
    unread_interrupt: Option<Signal>,
}

/// Signals by which people and service managers end a command.
pub(crate) const END: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

impl Signals {
    /// Listens to these signals. Those ignored at the start (`nohup`, `&` in a script) stay ignored, also by the command.
    pub(crate) fn listen(signals: &[Signal]) -> Result<Signals, Failure> {
        let listen = |&signal: &Signal| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((signal, stream))
        };
        let heard = |signal: &&Signal| !is_ignored(**signal);
        let streams = signals.iter().filter(heard).map(listen);
        Ok(Signals {
            streams: streams.collect::<io::Result<_>>().map_err(refused)?,
            suspension: None,
            told_to_end: false,
            unread_interrupt: None,
        })
    }

    /// Listens to all signals that a command is to get: those that would end this process, and Ctrl-Z.
    pub(crate) fn for_command() -> Result<Signals, Failure> {
        Ok(Signals {
            suspension: Some(Suspension::listen().map_err(refused)?),
            ..Signals::listen(FORWARDED)?
        })
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    self.told_to_end |= END.contains(signal);
                    return Poll::Ready(*signal);
                }
            }
            match &mut self.suspension {
                Some(suspension) => suspension.poll(context).map(|()| Signal::TSTP),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Returns whether a signal came that is meant to end the command.
    pub(crate) fn told_to_end(&mut self) -> bool {
        self.read_all();
        self.told_to_end
    }

    /// Returns an INT or QUIT that came after the last one that was waited for. `None` if there is none.
    pub(crate) fn interrupt(&mut self) -> Option<Signal> {
        self.read_all();
        self.unread_interrupt
    }

    fn read_all(&mut self) {
        while let Some(signal) = self.next().now_or_never() {
            if matches!(signal, Signal::INT | Signal::QUIT) {
                self.unread_interrupt.get_or_insert(signal);
            }
        }
    }

    /// Returns the output of `work`, or the signal that came first and dropped it. Ctrl-Z suspends it instead.
    pub(crate) async fn or<W: Future>(&mut self, work: W) -> Result<W::Output, Signal> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                signal = self.next() => match signal {
                    Signal::TSTP => suspension::suspend(),
                    signal => return Err(signal),
                },
                done = &mut work => return Ok(done),
            }
        }
    }
}

fn refused(error: io::Error) -> Failure {
    Failure::system("listen to signals", &error)
}

/// Returns whether the signal is ignored. Without `/proc`, `false`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}
