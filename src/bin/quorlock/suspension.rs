//! Ctrl-Z, for this process and its command: noticed, and carried out so that shells see TSTP (148).
//!
//! A handler would notice it, and keep it from suspending this process; and only the default action shows it to shells. So
//! it is blocked instead, in all threads, and read where that can be done.

use std::io;
use std::task::{Context, Poll};

use rustix::process::{Signal, kill_current_process_group};

#[cfg(not(target_os = "linux"))]
pub(crate) use by_handler::Suspension;
#[cfg(target_os = "linux")]
pub(crate) use by_reading::Suspension;

/// To be called before there are other threads.
pub(crate) fn block() {
    let _ = Suspension::signals().thread_block();
}

/// Suspends this process group. Returns when it goes on; or at once, if no shell could resume it.
pub(crate) fn suspend() {
    let _ = kill_current_process_group(Suspension::BY);
    unblocked(|| {}); // here it takes effect
}

/// Does `work` as if nothing had been blocked: processes inherit what is.
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

    /// The size of what is read for one signal.
    const RECORD: usize = 128;

    /// Whether somebody wants this process suspended.
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
            // No pipe, but one reads from it in the same way.
            pipe::Receiver::from_owned_fd_unchecked(requests.as_fd().try_clone_to_owned()?).map(Suspension)
        }

        /// Ready when it is wanted.
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

    /// Whether somebody wants this process suspended. Shells see TTOU (150) of that here.
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

        /// Ready when it is wanted.
        pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
            self.0.poll_recv(context).map(drop)
        }
    }
}
