//! Signals that this process gets.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures_util::FutureExt;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Those that would end this process, and are passed on to the command instead. Not those that tell of a fault here.
pub(crate) const FORWARDED: &[Signal] = &[
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
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens to these signals, less those that were ignored when we were started (`nohup`, `&` in a script): they stay
    /// so for us, and for the command, which inherits that.
    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Signals> {
        let listen = |&signal: &Signal| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((signal, stream))
        };
        let heard = |signal: &&Signal| !is_ignored(**signal);
        signals
            .iter()
            .filter(heard)
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Signals)
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
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

    /// Waits for `work`, unless a signal comes first: then `work` is dropped.
    pub(crate) async fn or<W: Future>(&mut self, work: W) -> Result<W::Output, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            done = work => Ok(done),
        }
    }
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
