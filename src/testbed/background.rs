//! The testbed's own thread and runtime.
//!
//! Everything that waits happens there, so a caller's blocked thread, paused clock or dropped runtime changes nothing,
//! and an operation whose caller went away still comes to its end.

use std::{future::Future, io, sync::mpsc, thread, time::Duration};

use tokio::{runtime, sync::oneshot};

use super::error::TestbedError;

/// Owns the thread. Dropping it cancels what still runs there and waits for the thread.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Runs work on the background thread.
#[derive(Clone, Debug)]
pub(crate) struct Handle(runtime::Handle);

impl Background {
    pub(crate) fn start() -> Result<Background, TestbedError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, ready) = mpsc::channel();
        let body = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let _ = started.send(Ok(runtime.handle().clone()));
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(Duration::from_secs(3));
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        let thread = thread::Builder::new()
            .name("quorlock-testbed".into())
            .spawn(body)
            .map_err(TestbedError::system("start the testbed's thread"))?;
        let handle = ready
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
            .map_err(TestbedError::system("start the testbed's runtime"))?;
        Ok(Background {
            handle: Handle(handle),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there has been printed already
        }
    }
}

impl Handle {
    /// Runs `work` on the background thread and waits for it. The work goes on when the caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, TestbedError>> + Send + 'static,
    ) -> Result<T, TestbedError> {
        self.0.spawn(work).await.unwrap_or(Err(TestbedError::Ended))
    }

    /// Runs `work` on the background thread.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(work);
    }

    /// For sockets made outside async code.
    pub(crate) fn enter(&self) -> runtime::EnterGuard<'_> {
        self.0.enter()
    }
}

/// Runs blocking `work` off the background thread. To be called on the background thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TestbedError> + Send + 'static,
) -> Result<T, TestbedError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or(Err(TestbedError::Ended))
}
