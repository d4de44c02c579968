//! Timers without a runtime: one thread for the whole process, while there are any timers.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::sys::mutex::lock;

/// How long the thread stays without timers.
const KEPT: Duration = Duration::from_secs(5);

static TIMERS: Timers = Timers {
    state: Mutex::new(State {
        due: BTreeMap::new(),
        next: 0,
        has_thread: false,
    }),
    changed: Condvar::new(),
};

struct Timers {
    state: Mutex<State>,
    /// Notified when a new timer is the earliest.
    changed: Condvar,
}

struct State {
    due: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    has_thread: bool,
}

/// A moment to be woken at. Dropping it takes it off the list.
pub(super) struct Alarm {
    at: Instant,
    number: Option<u64>,
}

impl Alarm {
    pub(super) fn at(at: Instant) -> Alarm {
        Alarm { at, number: None }
    }

    /// Returns `Ready` at its time. Before that, has the waker woken then.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        let mut state = lock(&TIMERS.state);
        let number = *self.number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.due.insert((self.at, number), waker.clone());
        let is_first = state.due.keys().next() == Some(&(self.at, number));
        if !state.has_thread {
            let thread = std::thread::Builder::new().name("quorlock-timers".to_owned());
            state.has_thread = thread.spawn(keep_time).is_ok();
            if !state.has_thread {
                // No thread could be started: poll again at once.
                waker.wake_by_ref();
            }
        } else if is_first {
            TIMERS.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = lock(&TIMERS.state).due.remove(&(self.at, number));
            // Not under the lock: this may drop a task.
            drop(waker);
        }
    }
}

fn keep_time() {
    let mut state = lock(&TIMERS.state);
    loop {
        let now = Instant::now();
        if let Some(first) = state.due.first_entry().filter(|first| first.key().0 <= now) {
            let waker = first.remove();
            drop(state);
            waker.wake();
            state = lock(&TIMERS.state);
            continue;
        }
        let first = state.due.keys().next().map(|(at, _)| *at - now);
        let (next, waited) = TIMERS
            .changed
            .wait_timeout(state, first.unwrap_or(KEPT))
            .unwrap_or_else(PoisonError::into_inner);
        state = next;
        if first.is_none() && waited.timed_out() && state.due.is_empty() {
            state.has_thread = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn sleep(time: Duration) -> impl Future<Output = ()> + Unpin {
        let mut alarm = Alarm::at(Instant::now() + time);
        poll_fn(move |cx| alarm.poll(cx.waker()))
    }

    /// On a runtime without timers of its own.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn an_earlier_timer_does_not_wait_for_a_later_one() {
        let started = Instant::now();
        block_on(async {
            let mut late = sleep(Duration::from_secs(300));
            assert!(futures_util::poll!(&mut late).is_pending());
            for millis in [0, 2, 1] {
                sleep(Duration::from_millis(millis)).await;
            }
            drop(late);
        });
        assert!(started.elapsed() < Duration::from_secs(300));
    }
}
