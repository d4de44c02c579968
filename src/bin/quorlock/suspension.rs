//! Ctrl-Z: suspends this process and its command, so that shells see TSTP (148).
//!
//! Shells see TSTP only after its default action, which a handler would replace. So TSTP is blocked in all threads, and read from
//! a descriptor. Only Linux can do this; elsewhere a handler is used.

use std::io;
use std::task::{Context, Poll};

use rustix::process::{Signal, kill_current_process_group};

#[cfg(not(target_os = "linux"))]
pub(crate) use by_handler::Suspension;
#[cfg(target_os = "linux")]
pub(crate) use by_reading::Suspension;

/// Blocks Ctrl-Z. Call this before other threads start.
pub(crate) fn block() {
    let _ = Suspension::signals().thread_block();
}

/// Suspends this process group. Returns when it is resumed, or at once if no shell could resume it.
pub(crate) fn suspend() {
    let _ = kill_current_process_group(Suspension::BY);
    unblocked(|| {}); // the signal takes effect here
}

/// Runs `work` without the block: a child process would inherit it.
pub(crate) fn unblocked<T>(work: impl FnOnce() -> T) -> T {
    let _ = Suspension::signals().thread_unblock();
    let done = work();
    block();
    done
}

#[cfg(target_os = "linux")]
mod by_reading {
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::task::ready;

    use nix::sys::signal::SigSet;
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use tokio::net::unix::pipe;

    use super::*;

    /// The size of one signal's record.
    const RECORD: usize = 128;

    /// Requests to suspend this process.
    #[derive(Debug)]
    pub(crate) struct Suspension(pipe::Receiver);

    impl Suspension {
        pub(super) const BY: Signal = Signal::TSTP;

        pub(super) fn signals() -> SigSet {
            SigSet::from_iter([nix::sys::signal::Signal::SIGTSTP])
        }

        pub(crate) fn listen() -> io::Result<Suspension> {
            let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
            let requests = SignalFd::with_flags(&Self::signals(), flags)?;
            // This is no pipe, but is read in the same way.
            pipe::Receiver::from_owned_fd_unchecked(requests.as_fd().try_clone_to_owned()?).map(Suspension)
        }

        /// Ready when there is a request.
        pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
            loop {
                let readable = ready!(self.0.poll_read_ready(context));
                match readable.and_then(|()| self.0.try_read(&mut [0; RECORD])) {
                    Ok(_) => return Poll::Ready(()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Poll::Pending, // the runtime ends
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod by_handler {
    use nix::sys::signal::SigSet;
    use tokio::signal::unix::{self, SignalKind};

    use super::*;

    /// Requests to suspend this process. Shells see TTOU (150).
    #[derive(Debug)]
    pub(crate) struct Suspension(unix::Signal);

    impl Suspension {
        pub(super) const BY: Signal = Signal::TTOU;

        pub(super) fn signals() -> SigSet {
            SigSet::empty()
        }

        pub(crate) fn listen() -> io::Result<Suspension> {
            unix::signal(SignalKind::from_raw(Signal::TSTP.as_raw())).map(Suspension)
        }

        /// Ready when there is a request.
        pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
            self.0.poll_recv(context).map(drop)
        }
    }
}
