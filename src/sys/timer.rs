//! Timers that work on any runtime, and without one.

mod thread;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::sys::runtime::Runtime;

/// Waits until `at`, by the manager's runtime if it is polled there, and by a thread otherwise.
///
/// Elsewhere, timers may not run: the runtime lacks them, there is none, or the manager's has ended or is not driven.
pub(crate) fn sleep_until(runtime: &Runtime, at: Instant) -> impl Future<Output = ()> + Send + use<> {
    let runtime = runtime.clone();
    async move {
        let mut sleep = pin!(None::<Sleep>);
        let mut alarm = None;
        poll_fn(|cx| {
            if !runtime.is_current() {
                sleep.set(None);
                return alarm
                    .get_or_insert_with(|| thread::Alarm::at(at.into_std()))
                    .poll(cx.waker());
            }
            alarm = None;
            if sleep.is_none() {
                sleep.set(Some(tokio::time::sleep_until(at)));
            }
            match sleep.as_mut().as_pin_mut() {
                Some(sleep) => sleep.poll(cx),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

/// Returns the output of `work`. `None` if it takes longer than `limit`; it is dropped then.
pub(crate) async fn timeout<W: Future>(runtime: &Runtime, limit: Duration, work: W) -> Option<W::Output> {
    let over = sleep_until(runtime, Instant::now() + limit);
    tokio::select! {
        biased;
        done = work => Some(done),
        () = over => None,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_over(sleep: Pin<&mut impl Future<Output = ()>>) -> bool {
        sleep.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Without a runtime, and with the handle of one that has ended.
    #[test]
    fn a_timer_outlives_its_runtime() {
        for is_entered in [false, true] {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            let handle = runtime.block_on(async { Runtime::current().unwrap() });
            handle.watch(std::future::pending(), || {});
            // Polled first on the runtime, and elsewhere after that.
            let mut sleep = pin!(sleep_until(&handle, Instant::now() + Duration::from_millis(100)));
            runtime.block_on(async {
                let _ = is_over(sleep.as_mut());
            });
            drop(runtime);
            let _entered = is_entered.then(|| handle.enter());
            while !is_over(sleep.as_mut()) {
                std::thread::yield_now();
            }
        }
    }
}
