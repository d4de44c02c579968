//! The runtime that a manager lives on: its connections, watchdogs and clean-ups run there.

use std::net;
use std::ops::Deref;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Handle;

/// Why a manager cannot live on the current runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// There is none.
    Missing,
    /// It was built without this method of its builder.
    BuiltWithout(&'static str),
}

/// A handle to the runtime that also knows whether it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    ended: Arc<AtomicBool>,
}

impl Runtime {
    /// Returns the runtime that this is called on, which must have timers.
    pub(crate) fn current() -> Result<Runtime, Unfit> {
        let handle = Handle::try_current().map_err(|_| Unfit::Missing)?;
        if !has_timers() {
            return Err(Unfit::BuiltWithout("enable_time"));
        }
        Ok(Runtime {
            handle,
            ended: Arc::default(),
        })
    }

    /// Returns the current runtime, which must have timers, and input and output.
    pub(crate) fn current_with_io() -> Result<Runtime, Unfit> {
        let runtime = Runtime::current()?;
        match has_io() {
            true => Ok(runtime),
            false => Err(Unfit::BuiltWithout("enable_io")),
        }
    }

    /// Runs `work`. When it completes, or is dropped because the runtime ends, marks the runtime as ended and calls `then`.
    pub(crate) fn watch(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
        then: impl Fn() + Send + 'static,
    ) {
        let sentinel = Sentinel {
            ended: self.ended.clone(),
            then,
        };
        self.handle.spawn(async move {
            work.await;
            drop(sentinel);
        });
    }

    /// Returns whether this is called on the runtime, and the runtime's timers work.
    pub(crate) fn is_current(&self) -> bool {
        let is_it = |current: Handle| current.id() == self.handle.id();
        // A handle can be entered although its runtime has ended.
        Handle::try_current().is_ok_and(is_it) && !self.ended.load(SeqCst)
    }
}

impl Deref for Runtime {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

/// Notices the end of a runtime in time: a runtime drops its tasks first, and its timers after that.
struct Sentinel<F: Fn()> {
    ended: Arc<AtomicBool>,
    then: F,
}

impl<F: Fn()> Drop for Sentinel<F> {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        (self.then)();
    }
}

/// Returns whether the current runtime has timers. tokio shows that by a panic only, which is caught here.
fn has_timers() -> bool {
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

fn has_io() -> bool {
    let Ok(socket) = net::UdpSocket::bind((net::Ipv4Addr::LOCALHOST, 0)) else {
        // Unknown; connecting to nodes will show it.
        return true;
    };
    if socket.set_nonblocking(true).is_err() {
        return true;
    }
    catch_unwind(|| drop(UdpSocket::from_std(socket))).is_ok()
}
