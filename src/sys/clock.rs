//! A clock for leases, which goes on while the machine is suspended (R4).
//!
//! On Linux, [`Instant`] and all timers stand still meanwhile, but keys expire on the nodes.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Interval of checks for a suspension. After a resume, timers are corrected this late; [`Clock::now`] is right at once.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A moment on a clock that goes on while the machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Instant);

impl Moment {
    /// Returns the time since `earlier`; zero if that is later.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the moment that much later. `None` if it cannot be represented.
    pub(crate) fn checked_add(self, duration: Duration) -> Option<Moment> {
        self.0.checked_add(duration).map(Moment)
    }

    /// Returns the moment that much earlier. `None` if it cannot be represented.
    pub(crate) fn checked_sub(self, duration: Duration) -> Option<Moment> {
        self.0.checked_sub(duration).map(Moment)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0 + duration)
    }
}

/// Returns how long the machine has been suspended since a fixed point. Never falls.
pub(crate) type Slept = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The clock of one manager, its nodes and its leases.
#[derive(Clone)]
pub(crate) struct Clock {
    slept: Slept,
    /// The last result of `slept`, in milliseconds.
    last_slept: Arc<AtomicU64>,
    /// The number of clock jumps noticed. After each, deadlines must be computed anew.
    jumps: Arc<watch::Sender<u64>>,
    leases: Arc<watch::Sender<usize>>,
}

impl Clock {
    pub(crate) fn new(slept: Slept) -> Self {
        Clock {
            slept,
            last_slept: Arc::default(),
            jumps: Arc::new(watch::Sender::new(0)),
            leases: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        // In this order, a suspension between the two readings does no harm.
        let now = Instant::now();
        Moment(now + self.slept())
    }

    /// Returns the moment of an instant, for callers that ask with each request: one clock reading instead of the four of
    /// [`now`](Self::now). Too early by a suspension that `now` has not noticed yet.
    pub(crate) fn roughly(&self, now: Instant) -> Moment {
        Moment(now + Duration::from_millis(self.last_slept.load(Relaxed)))
    }

    /// Returns how long the machine has been suspended so far.
    pub(crate) fn slept(&self) -> Duration {
        let slept = (self.slept)();
        self.last_slept
            .store(u64::try_from(slept.as_millis()).unwrap_or(u64::MAX), Relaxed);
        slept
    }

    /// Returns the timers' instant of `moment`. A later suspension makes it wrong.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        moment.0.checked_sub(self.slept()).unwrap_or(moment.0)
    }

    /// Reports that a clock has jumped: a node's, or this one.
    pub(crate) fn jumped(&self) {
        self.jumps.send_modify(|jumps| *jumps += 1);
    }

    /// Returns a receiver that changes when a clock has jumped.
    pub(crate) fn jumps(&self) -> watch::Receiver<u64> {
        self.jumps.subscribe()
    }

    /// Counts a lease until the returned value is dropped.
    pub(crate) fn count_lease(&self) -> LeaseCount {
        self.leases.send_if_modified(|leases| {
            *leases += 1;
            *leases == 1
        });
        LeaseCount(self.leases.clone())
    }

    /// Returns the number of leases that are held.
    pub(crate) fn leases(&self) -> usize {
        *self.leases.borrow()
    }

    pub(crate) fn has_leases(&self) -> bool {
        self.leases() > 0
    }

    /// Looks for suspensions while there are leases. Ends when the manager and all its leases are gone.
    pub(crate) fn watch_for_suspension(&self) -> impl Future<Output = ()> + Send + use<> {
        let slept = self.slept.clone();
        let jumps = Arc::downgrade(&self.jumps);
        let mut leases = self.leases.subscribe();
        let mut before = slept();
        async move {
            while leases.wait_for(|leases| *leases > 0).await.is_ok() {
                sleep(CHECK_INTERVAL).await;
                let now = slept();
                if now > before {
                    before = now;
                    let Some(jumps) = jumps.upgrade() else { return };
                    jumps.send_modify(|jumps| *jumps += 1);
                }
            }
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("slept", &self.slept())
            .finish_non_exhaustive()
    }
}

pub(crate) struct LeaseCount(Arc<watch::Sender<usize>>);

impl Drop for LeaseCount {
    fn drop(&mut self) {
        self.0.send_if_modified(|leases| {
            *leases -= 1;
            *leases == 0
        });
    }
}

/// Returns what measures this machine's suspensions. It measures none where the system does not show them.
pub(crate) fn machine() -> Slept {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return linux::slept();
    // On Windows, `Instant` includes suspensions. On macOS, nothing shows them.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    Arc::new(|| Duration::ZERO)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::Slept;

    /// Longest time in nanoseconds for three readings, unless the thread is interrupted.
    const CLOSE: i64 = 50_000;
    const TRIES: usize = 5;
    const NANOS_PER_MILLI: i64 = 1_000_000;

    /// Measures how far the boot-time clock gains on the monotonic one, in whole milliseconds: the readings take time.
    pub(super) fn slept() -> Slept {
        let base = ahead();
        let most = AtomicU64::new(0);
        Arc::new(move || {
            let slept = (ahead() - base + NANOS_PER_MILLI / 2) / NANOS_PER_MILLI;
            let slept = u64::try_from(slept).unwrap_or(0);
            Duration::from_millis(most.fetch_max(slept, Relaxed).max(slept))
        })
    }

    fn ahead() -> i64 {
        let (mut ahead, mut closest) = (0, i64::MAX);
        for _ in 0..TRIES {
            let before = nanos(clock_gettime(ClockId::Boottime));
            let monotonic = nanos(clock_gettime(ClockId::Monotonic));
            let took = nanos(clock_gettime(ClockId::Boottime)) - before;
            if took < closest {
                (ahead, closest) = (before - monotonic, took);
            }
            if took < CLOSE {
                break;
            }
        }
        ahead
    }

    fn nanos(time: Timespec) -> i64 {
        time.tv_sec
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    fn sleeper() -> (Clock, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let slept = seconds.clone();
        let clock = Clock::new(Arc::new(move || Duration::from_secs(slept.load(SeqCst))));
        (clock, seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_counts_as_time() {
        let (clock, seconds) = sleeper();
        let end = clock.now() + Duration::from_secs(10);
        assert_eq!(clock.instant(end), Instant::now() + Duration::from_secs(10));
        seconds.store(7, SeqCst);
        assert_eq!(end.since(clock.now()), Duration::from_secs(3));
        assert_eq!(clock.instant(end), Instant::now() + Duration::from_secs(3));
        seconds.store(70, SeqCst);
        assert_eq!(end.since(clock.now()), Duration::ZERO);
        assert!(clock.now() > end);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_is_noticed_while_there_is_a_lease() {
        let (clock, seconds) = sleeper();
        let watching = tokio::spawn(clock.watch_for_suspension());
        let mut jumps = clock.jumps();
        let lease = clock.count_lease();
        seconds.store(7, SeqCst);
        jumps.changed().await.unwrap();
        drop(lease);
        sleep(Duration::from_secs(1)).await;
        seconds.store(8, SeqCst);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(*clock.jumps().borrow(), 1, "nobody is interested");
        drop(clock);
        watching.await.unwrap();
    }

    #[test]
    fn this_machine_reports_suspensions() {
        let slept = machine();
        let first = slept();
        assert!(
            first < Duration::from_secs(1),
            "counted from when it is first asked"
        );
        assert!(slept() >= first);
    }
}
