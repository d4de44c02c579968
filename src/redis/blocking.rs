//! Work that blocks, on a thread of its own: a runtime that ends waits for its blocking tasks, and name servers and file systems
//! can take long not to answer.

use std::thread;

use tokio::sync::oneshot;

/// Runs the work at once. Returns its result, or why there is none. Dropping the future does not end the work.
pub(super) fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, String>> {
    let (answer, answered) = oneshot::channel();
    let thread = thread::Builder::new().name("quorlock-blocking".into());
    // Nobody may want to know any more.
    let started = thread.spawn(move || drop(answer.send(work())));
    async move {
        started.map_err(|error| error.to_string())?;
        answered.await.map_err(|_| "the thread has ended".to_owned())
    }
}
