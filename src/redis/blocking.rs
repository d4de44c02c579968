//! Runs blocking work on a thread of its own. A runtime that ends would wait for its blocking tasks, and a name server or a file
//! system may hang.

use std::thread;

use tokio::sync::oneshot;

/// Starts the work at once. Returns its result, or why there is none. Dropping the future does not end the work.
pub(super) fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, String>> {
    let (answer, answered) = oneshot::channel();
    let thread = thread::Builder::new().name("quorlock-blocking".into());
    // The caller may have dropped the future.
    let started = thread.spawn(move || drop(answer.send(work())));
    async move {
        started.map_err(|error| error.to_string())?;
        answered.await.map_err(|_| "the thread has ended".to_owned())
    }
}
