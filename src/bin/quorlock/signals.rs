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

/// Those that would end this process, and are passed on to the command instead. Not those that tell of a fault here.
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

/// Blocked signals are inherited, and a parent that blocks some for itself may forget to let its children have them: TERM
/// would not reach this process, nor would it notice the command's end.
pub(crate) fn unblock() {
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
}

/// A set of signals, from the moment it is made.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    suspension: Option<Suspension>,
}

impl Signals {
    /// Listens to these signals, less those that were ignored when we were started (`nohup`, `&` in a script): they stay
    /// so for us, and for the command, which inherits that.
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
        })
    }

    /// Listens to all that a command is to get: what would end this process, and Ctrl-Z.
    pub(crate) fn for_command() -> Result<Signals, Failure> {
        Ok(Signals {
            suspension: Some(Suspension::listen().map_err(refused)?),
            ..Signals::listen(FORWARDED)?
        })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
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

    /// An INT or QUIT that came and was not read.
    pub(crate) fn interrupt(&mut self) -> Option<Signal> {
        while let Some(signal) = self.next().now_or_never() {
            if matches!(signal, Signal::INT | Signal::QUIT) {
                return Some(signal);
            }
        }
        None
    }

    /// Waits for `work`, unless a signal comes first that is to end it: then `work` is dropped.
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

/// Whether the signal is ignored. Where there is no `/proc`, none is known to be.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}
