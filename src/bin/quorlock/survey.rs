//! Looks at the nodes, their locks, and what `doctor` finds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use quorlock::{CheckUp, Inspection, LockStatus, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use crate::args::{Existing, LockTimes};
use crate::exit::Failure;
use crate::format::{counted, short};
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

impl Survey {
    /// Returns whether each lock that is held was seen. It is on a quorum of nodes, which shares a node with the quorum that was read.
    pub(crate) fn knows_locks(&self) -> bool {
        self.nodes.len() - self.locks.unread.len() >= nodes::quorum(self.nodes.len())
    }

    /// Returns how many locks are held, in words.
    pub(crate) fn locks_in_words(&self) -> String {
        let (nodes, unread) = (self.nodes.len(), self.locks.unread.len());
        let mut words = match (self.knows_locks(), self.locks.held) {
            (true, held) => format!("{} held", counted(held, "lock")),
            (false, 0) => "locks unknown".to_owned(),
            (false, held) => format!("at least {} held", counted(held, "lock")),
        };
        if self.locks.uncertain > 0 {
            let _ = write!(words, ", {} perhaps", self.locks.uncertain);
        }
        if unread > 0 {
            let _ = write!(words, ", {} of {nodes} nodes read", nodes - unread);
        }
        words
    }

    /// Returns why nodes were not read, in words. Empty if all were.
    pub(crate) fn unread_in_words(&self) -> String {
        let unread = self.locks.unread.iter();
        let words: Vec<String> = unread.map(|(node, why)| format!("{node} {why}")).collect();
        words.join("; ")
    }

    /// Returns the locks shown, with the time that is left to them now.
    pub(crate) fn locks_now(&self) -> Vec<Inspection> {
        let mut locks = self.locks.shown.clone();
        for lock in &mut locks {
            pass(lock, self.at.elapsed());
        }
        locks
    }
}

/// What `doctor` found, or why it could not look.
pub(crate) struct Findings {
    pub(crate) at: SystemTime,
    pub(crate) found: Result<CheckUp, String>,
}

#[derive(Default)]
pub(crate) struct Locks {
    pub(crate) held: u64,
    /// How many have keys, but too few nodes answered to say whether they are held.
    pub(crate) uncertain: u64,
    /// The longest time that a lock is held by now. `None` if no lock is held, or no holder is known.
    pub(crate) oldest: Option<Duration>,
    /// How many locks have a leak of this kind.
    pub(crate) leaks: BTreeMap<&'static str, u64>,
    /// The nodes whose lists do not count, and why.
    pub(crate) unread: BTreeMap<Arc<str>, String>,
    /// The list was not read to the end in time.
    pub(crate) is_cut: bool,
    /// The first ones that have keys.
    pub(crate) shown: Vec<Inspection>,
    /// There are more with keys than those shown.
    pub(crate) has_more: bool,
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
        let mut found = Locks::default();
        let end = Instant::now() + LISTING;
        let mut list = self.redlock.locks("*");
        let mut seen_at = Vec::new();
        loop {
            match timeout_at(end, list.next()).await {
                Ok(Some(lock)) => {
                    found.add(lock);
                    seen_at.resize(found.shown.len(), Instant::now());
                }
                Ok(None) => break,
                Err(_) => {
                    found.is_cut = true;
                    break;
                }
            }
        }
        for (lock, seen_at) in found.shown.iter_mut().zip(&seen_at) {
            pass(lock, seen_at.elapsed());
        }
        let faults = list.faults();
        found.unread = faults
            .map(|(node, fault)| (node.clone(), format!("not read: {}", nodes::not_listed(fault))))
            .collect();
        for (node, fault) in nodes::forgetful(&self.redlock) {
            let why = || format!("may have forgotten locks: {fault}");
            found.unread.entry(node).or_insert_with(why);
        }
        let listed: BTreeSet<&Arc<str>> = list.listed().collect();
        for node in self.redlock.nodes() {
            if !listed.contains(&node.name) {
                let why = || format!("not read: not to the end within {}", short(LISTING));
                found.unread.entry(node.name).or_insert_with(why);
            }
        }
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

/// Does `work` to its end, also if the caller is dropped: the next caller uses the result.
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
            // A clock that is ahead of this one belongs to a young lock.
            let age = lock
                .holder
                .as_ref()
                .map(|holder| holder::age(holder).unwrap_or_default());
            self.oldest = self.oldest.max(age);
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
        } else if lock.keys() > 0 {
            self.has_more = true;
        }
    }
}

/// Takes the time that has passed since the lock was looked at off the time that is left to it.
fn pass(lock: &mut Inspection, time: Duration) {
    let states = lock.nodes.iter_mut().filter_map(|node| node.key.as_mut().ok());
    for remaining in states.filter_map(|state| state.remaining.as_mut()) {
        *remaining = remaining.saturating_sub(time);
    }
}
