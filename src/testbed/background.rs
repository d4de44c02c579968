//! The testbed's own thread and runtime.
//!
//! All waiting happens there. So a caller's blocked thread, paused clock or dropped runtime changes nothing, and an operation
//! ends even if its caller is dropped.

use std::{future::Future, io, sync::mpsc, thread, time::Duration};

use tokio::{runtime, sync::oneshot};

use super::error::TestbedError;

/// Owns the thread. Dropping this cancels all work there, and waits for the thread's end.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

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
    /// Runs `work` on the background thread and waits for it. The work goes on if this future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, TestbedError>> + Send + 'static,
    ) -> Result<T, TestbedError> {
        self.0.spawn(work).await.unwrap_or(Err(TestbedError::Ended))
    }

    /// Runs `work` on the background thread, without waiting for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(work);
    }

    /// Enters the runtime, to create sockets outside async code.
    pub(crate) fn enter(&self) -> runtime::EnterGuard<'_> {
        self.0.enter()
    }
}

/// Runs blocking `work` off the background thread. Call this on the background thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TestbedError> + Send + 'static,
) -> Result<T, TestbedError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or(Err(TestbedError::Ended))
}
