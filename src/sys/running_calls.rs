//! The acquires under way, which a shutdown ends although their futures may not be polled (L3).
//!
//! A future that is kept and not polled may have set keys. Only dropping it deletes them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_util::future::{BoxFuture, FutureExt};

use crate::sys::mutex::lock;

/// Running calls that return a `T`, and that can be ended together.
pub(crate) struct RunningCalls<T>(Mutex<Calls<T>>);

struct Calls<T> {
    running: HashMap<u64, Arc<Call<T>>>,
    next: u64,
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    ShutDown,
    RuntimeEnded,
}

/// A call. It is locked while it is polled, so that `end` waits for the poll.
struct Call<T>(Mutex<State<T>>);

enum State<T> {
    Running(BoxFuture<'static, T>, Waker),
    Ended(End),
}

/// Takes a call off the list when it is dropped.
struct Entry<'a, T> {
    calls: &'a RunningCalls<T>,
    number: u64,
    call: Arc<Call<T>>,
}

impl<T> RunningCalls<T> {
    pub(crate) fn new() -> Self {
        RunningCalls(Mutex::new(Calls {
            running: HashMap::new(),
            next: 0,
            ended: None,
        }))
    }

    /// Runs `call`. Fails if all calls are ended before it completes, or were ended before. Dropping the future drops the call.
    pub(crate) async fn run(&self, call: BoxFuture<'static, T>) -> Result<T, End> {
        let entry = self.enter(call)?;
        poll_fn(|cx| entry.call.poll(cx)).await
    }

    /// Drops all calls, and refuses every later one.
    pub(crate) fn end(&self, end: End) {
        let running = {
            let mut calls = lock(&self.0);
            calls.ended.get_or_insert(end);
            std::mem::take(&mut calls.running)
        };
        running.into_values().for_each(|call| call.end(end));
    }

    fn enter(&self, call: BoxFuture<'static, T>) -> Result<Entry<'_, T>, End> {
        let call = Arc::new(Call(Mutex::new(State::Running(call, Waker::noop().clone()))));
        let mut calls = lock(&self.0);
        if let Some(end) = calls.ended {
            return Err(end);
        }
        let number = calls.next;
        calls.next += 1;
        calls.running.insert(number, call.clone());
        Ok(Entry {
            calls: self,
            number,
            call,
        })
    }
}

impl<T> Call<T> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, End>> {
        match &mut *lock(&self.0) {
            State::Ended(end) => Poll::Ready(Err(*end)),
            State::Running(call, waker) => {
                waker.clone_from(cx.waker());
                call.poll_unpin(cx).map(Ok)
            }
        }
    }

    fn end(&self, end: End) {
        let before = std::mem::replace(&mut *lock(&self.0), State::Ended(end));
        if let State::Running(call, waker) = before {
            drop(call);
            waker.wake();
        }
    }
}

impl<T> Drop for Entry<'_, T> {
    fn drop(&mut self) {
        let call = lock(&self.calls.0).running.remove(&self.number);
        // Not under the lock: this may drop the future.
        drop(call);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn calls_that_are_not_polled_are_dropped_and_fail_when_they_are_polled() {
        let calls = RunningCalls::<()>::new();
        let alive = Arc::new(());
        let held = alive.clone();
        let call = async move {
            std::future::pending::<()>().await;
            drop(held);
        };
        let mut kept = pin!(calls.run(call.boxed()));
        assert!(poll!(kept.as_mut()).is_pending());
        calls.end(End::ShutDown);
        assert_eq!(Arc::strong_count(&alive), 1);
        assert_eq!(poll!(kept), Poll::Ready(Err(End::ShutDown)));
        calls.end(End::RuntimeEnded);
        assert_eq!(
            calls.run(async {}.boxed()).await,
            Err(End::ShutDown),
            "the first end counts"
        );
    }

    #[tokio::test]
    async fn calls_that_are_over_are_forgotten() {
        let calls = RunningCalls::new();
        assert_eq!(calls.run(async { 7 }.boxed()).await, Ok(7));
        drop(calls.run(async { 8 }.boxed()));
        assert!(lock(&calls.0).running.is_empty());
    }
}
