//! Looks at the nodes, their locks, and what `doctor` finds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quorlock::{CheckUp, Inspection, LockStatus, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use crate::args::{Existing, LockTimes};
use crate::exit::Failure;
use crate::locks::leak_name;
use crate::status::{self, Line};
use crate::{locking, nodes};

/// How long a survey may list locks.
const LISTING: Duration = Duration::from_secs(5);
/// How many locks are kept to be shown.
pub(crate) const MOST_SHOWN: usize = 200;
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// What was seen.
pub(crate) struct Survey {
    /// When the locks were looked at.
    pub(crate) at: Instant,
    pub(crate) nodes: Arc<Vec<Line>>,
    pub(crate) locks: Arc<Locks>,
    /// What `doctor` has found lately. `None` before it was asked for the first time, or if it could not look.
    pub(crate) check_up: Option<Arc<CheckUp>>,
}

#[derive(Default)]
pub(crate) struct Locks {
    pub(crate) held: u64,
    /// The longest time that a lock is held by now.
    pub(crate) oldest: Option<Duration>,
    /// How many locks have a leak of this kind.
    pub(crate) leaks: BTreeMap<&'static str, u64>,
    /// Some nodes, or some locks, were not looked at.
    pub(crate) is_partial: bool,
    /// The first ones that have keys.
    pub(crate) shown: Vec<Inspection>,
}

pub(crate) struct Surveyor {
    redlock: Redlock,
    existing: Existing,
    times: LockTimes,
    fresh: Duration,
    nodes: Cached<Vec<Line>>,
    locks: Cached<Locks>,
    check_up: Mutex<Option<Arc<CheckUp>>>,
}

/// What was seen last, and when.
type Cached<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

impl Surveyor {
    /// Connects. What was seen is shown for the time `fresh`.
    pub(crate) async fn start(
        existing: &Existing,
        times: &LockTimes,
        fresh: Duration,
    ) -> Result<Arc<Surveyor>, Failure> {
        let builder = builder(existing, times)?.observe().connect_without_quorum();
        // Nodes may come later.
        let (redlock, _) = builder.await.map_err(|error| nodes::not_connected(&error))?;
        Ok(Arc::new(Surveyor {
            redlock,
            existing: existing.clone(),
            times: times.clone(),
            fresh,
            nodes: Cached::default(),
            locks: Cached::default(),
            check_up: Mutex::default(),
        }))
    }

    pub(crate) fn redlock(&self) -> &Redlock {
        &self.redlock
    }

    /// Looks at the nodes and their locks, unless that was done lately.
    pub(crate) async fn survey(self: &Arc<Self>) -> Survey {
        let this = self.clone();
        let locks = completed(async move { this.fresh(&this.locks, this.look_at_locks()).await });
        let (nodes, (at, locks)) = tokio::join!(self.nodes(), locks);
        Survey {
            at,
            nodes,
            locks,
            check_up: self.found().clone(),
        }
    }

    /// Looks at the nodes, unless that was done lately.
    pub(crate) async fn nodes(self: &Arc<Self>) -> Arc<Vec<Line>> {
        let this = self.clone();
        completed(async move { this.fresh(&this.nodes, status::lines(&this.redlock)).await })
            .await
            .1
    }

    /// Returns what was seen lately, or looks. However many ask, one looks at a time.
    async fn fresh<T>(&self, seen: &Cached<T>, look: impl Future<Output = T>) -> (Instant, Arc<T>) {
        let mut seen = seen.lock().await;
        if let Some(seen) = seen.as_ref().filter(|(at, _)| at.elapsed() < self.fresh) {
            return seen.clone();
        }
        let new = Arc::new(look.await);
        seen.insert((Instant::now(), new)).clone()
    }

    async fn look_at_locks(&self) -> Locks {
        let (mut found, end) = (Locks::default(), Instant::now() + LISTING);
        let mut list = self.redlock.locks("*");
        loop {
            match timeout_at(end, list.next()).await {
                Ok(Some(lock)) => found.add(lock),
                Ok(None) => break,
                Err(_) => {
                    found.is_partial = true;
                    break;
                }
            }
        }
        found.is_partial |= list.faults().next().is_some();
        found
    }

    /// Never ends.
    pub(crate) async fn check_again_and_again(&self) {
        loop {
            let builder = builder(&self.existing, &self.times);
            let found = match builder {
                Ok(builder) => builder.check_up().await.ok().map(Arc::new),
                Err(_) => None,
            };
            *self.found() = found;
            sleep(CHECK_PERIOD).await;
        }
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Option<Arc<CheckUp>>> {
        self.check_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes on if the caller no longer waits: another one gets the result.
async fn completed<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn builder(existing: &Existing, times: &LockTimes) -> Result<RedlockBuilder, Failure> {
    Ok(locking::with_times(nodes::builder_for(existing)?, times))
}

impl Locks {
    fn add(&mut self, lock: Inspection) {
        if lock.status == LockStatus::Held {
            self.held += 1;
            let since = lock.holder.as_ref().map(|holder| holder.since);
            let age = since.and_then(|since| SystemTime::now().duration_since(since).ok());
            self.oldest = self.oldest.max(age);
        }
        // Counters that never expire may be meant to.
        for leak in lock.leaks(false) {
            *self.leaks.entry(leak_name(&leak)).or_default() += 1;
        }
        if lock.keys() > 0 && self.shown.len() < MOST_SHOWN {
            self.shown.push(lock);
        }
    }
}
