//! Looks at the nodes, their locks, and what `doctor` finds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use quorlock::{CheckUp, Inspection, LockStatus, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use crate::args::{Existing, LockTimes};
use crate::exit::Failure;
use crate::format::counted;
use crate::locks::leak_name;
use crate::status::{self, Line};
use crate::{holder, locking, nodes};

/// How long a survey may list locks.
const LISTING: Duration = Duration::from_secs(5);
/// How many locks are kept to be shown.
pub(crate) const MOST_SHOWN: usize = 200;
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// The nodes and their locks at one time.
pub(crate) struct Survey {
    /// When the locks were looked at.
    pub(crate) at: Instant,
    pub(crate) nodes: Arc<Vec<Line>>,
    pub(crate) locks: Arc<Locks>,
    /// `None` before `doctor` has looked for the first time.
    pub(crate) findings: Option<Arc<Findings>>,
}

/// What `doctor` found, or why it could not look.
pub(crate) struct Findings {
    pub(crate) at: SystemTime,
    pub(crate) found: Result<CheckUp, String>,
}

pub(crate) struct Locks {
    pub(crate) held: u64,
    /// How many have keys, but too few nodes answered to say whether they are held.
    pub(crate) uncertain: u64,
    /// The longest time that a lock is held by now. `None` if no lock is held, or their holders are not known.
    pub(crate) oldest: Option<Duration>,
    /// How many locks have a leak of this kind.
    pub(crate) leaks: BTreeMap<&'static str, u64>,
    pub(crate) nodes: usize,
    /// How many of the nodes did not say which locks they have.
    pub(crate) unread_nodes: usize,
    /// There were too many locks to look at all of them.
    pub(crate) is_cut: bool,
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
    findings: Mutex<Option<Arc<Findings>>>,
}

/// The latest look, and when it ended.
type Cached<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

impl Surveyor {
    /// Connects. A look is used again for the time `fresh`.
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
            findings: Mutex::default(),
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
            findings: self.findings().clone(),
        }
    }

    /// Looks at the nodes, unless that was done lately.
    pub(crate) async fn nodes(self: &Arc<Self>) -> Arc<Vec<Line>> {
        let this = self.clone();
        completed(async move { this.fresh(&this.nodes, status::lines(&this.redlock)).await })
            .await
            .1
    }

    /// Returns the latest look, or looks again if that is too old. However many ask, one looks at a time.
    async fn fresh<T>(&self, latest: &Cached<T>, look: impl Future<Output = T>) -> (Instant, Arc<T>) {
        let mut latest = latest.lock().await;
        if let Some(look) = latest.as_ref().filter(|(at, _)| at.elapsed() < self.fresh) {
            return look.clone();
        }
        let new = Arc::new(look.await);
        latest.insert((Instant::now(), new)).clone()
    }

    async fn look_at_locks(&self) -> Locks {
        let mut found = Locks::new(self.redlock.nodes().len());
        let end = Instant::now() + LISTING;
        let mut list = self.redlock.locks("*");
        loop {
            match timeout_at(end, list.next()).await {
                Ok(Some(lock)) => found.add(lock),
                Ok(None) => break,
                Err(_) => {
                    found.is_cut = true;
                    break;
                }
            }
        }
        found.unread_nodes = list.faults().count();
        found
    }

    /// Never ends.
    pub(crate) async fn check_again_and_again(&self) {
        loop {
            let found = match builder(&self.existing, &self.times) {
                Ok(builder) => builder.check_up().await.map_err(|error| error.to_string()),
                Err(failure) => Err(failure.message),
            };
            let at = SystemTime::now();
            *self.findings() = Some(Arc::new(Findings { at, found }));
            sleep(CHECK_PERIOD).await;
        }
    }

    fn findings(&self) -> MutexGuard<'_, Option<Arc<Findings>>> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn new(nodes: usize) -> Locks {
        Locks {
            held: 0,
            uncertain: 0,
            oldest: None,
            leaks: BTreeMap::new(),
            nodes,
            unread_nodes: 0,
            is_cut: false,
            shown: Vec::new(),
        }
    }

    /// Returns whether each lock that is held was seen. A quorum of nodes has it, so another quorum that was read has a node in common
    /// with that.
    pub(crate) fn are_known(&self) -> bool {
        self.nodes - self.unread_nodes >= nodes::quorum(self.nodes)
    }

    /// Returns how many locks are held, in words.
    pub(crate) fn words(&self) -> String {
        let read = format!("{} of {} nodes read", self.nodes - self.unread_nodes, self.nodes);
        if !self.are_known() {
            return format!("locks unknown: {read}");
        }
        let mut words = format!("{} held", counted(self.held, "lock"));
        if self.is_cut {
            words.push_str(" at least: too many to read all");
        }
        if self.uncertain > 0 {
            let _ = write!(words, ", {} perhaps", self.uncertain);
        }
        if self.unread_nodes > 0 {
            let _ = write!(words, ", {read}");
        }
        words
    }

    /// Returns whether there may be more locks than those shown.
    pub(crate) fn are_cut(&self) -> bool {
        self.shown.len() == MOST_SHOWN
    }

    fn add(&mut self, lock: Inspection) {
        if lock.status == LockStatus::Held {
            self.held += 1;
            self.oldest = self.oldest.max(lock.holder.as_ref().and_then(holder::age));
        }
        if lock.status == LockStatus::Unknown && lock.keys() > 0 {
            self.uncertain += 1;
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
