//! Who is compared.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use quorlock::node::NodeState;
use quorlock::{Lease, Redlock};
use rslock::{Lock, LockManager};

use crate::common::release;

/// For all of them. Long enough that nothing expires, short enough that quorlock's node budget (a tenth) is visible.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// What went wrong, in words.
pub(crate) type Failure = String;

/// Something that takes and gives back a lock on five nodes.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    type Held: Send;

    fn acquire(&self, key: String) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Takes in what is still to come of the last operation. Not timed.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }
}

/// A name that no operation had before, and so no key either.
pub(crate) fn fresh_name() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("bench-{:012}", LAST.fetch_add(1, Relaxed))
}

#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    /// As its README does it: URLs, all settings as they come.
    pub(crate) fn new(urls: &[String]) -> Self {
        Rslock(LockManager::new(urls.to_vec()))
    }
}

impl Contender for Rslock {
    type Held = Lock;

    async fn acquire(&self, key: String) -> Result<Lock, Failure> {
        self.0
            .lock(key.as_str(), TTL)
            .await
            .map_err(|error| error.to_string())
    }

    /// Its unlock does not tell how it went.
    async fn release(&self, lock: Lock) -> Result<(), Failure> {
        self.0.unlock(&lock).await;
        Ok(())
    }
}

/// So many resources are locked over and over.
const KNOWN: u64 = 4_096;

fn known_name(number: u64) -> String {
    format!("bench-{number:04}")
}

/// A contender on resources that all nodes know, as in steady use. With fencing, a node starts a counter for a new one.
#[derive(Clone)]
pub(crate) struct Known<C> {
    contender: C,
    next: Arc<AtomicU64>,
}

impl<C: Contender> Known<C> {
    pub(crate) fn new(contender: C) -> Self {
        let next = Arc::default();
        Known { contender, next }
    }

    pub(crate) fn contender(&self) -> &C {
        &self.contender
    }
}

impl<C: Contender> Contender for Known<C> {
    type Held = C::Held;

    async fn acquire(&self, _: String) -> Result<C::Held, Failure> {
        let number = self.next.fetch_add(1, Relaxed) % KNOWN;
        self.contender.acquire(known_name(number)).await
    }

    async fn release(&self, held: C::Held) -> Result<(), Failure> {
        self.contender.release(held).await
    }

    async fn settle(&self) -> Result<(), Failure> {
        self.contender.settle().await
    }
}

#[derive(Clone)]
pub(crate) struct Quorlock(Redlock);

impl Quorlock {
    pub(crate) async fn connect(
        urls: &[String],
        fencing: bool,
        watchdog: bool,
        ttl: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        let redlock = Redlock::builder()
            .urls(urls)
            .ttl(ttl)
            .fencing(fencing)
            .watchdog(watchdog)
            .restart_guard(false)
            .connect()
            .await?;
        Ok(Quorlock(redlock))
    }

    /// Has the nodes know all resources of [`Known`], for whoever locks them afterwards.
    pub(crate) async fn make_known(&self) -> Result<(), Failure> {
        const AT_A_TIME: usize = 64;
        let lock_once = |number| async move { self.release(self.acquire(known_name(number)).await?).await };
        let once = stream::iter(0..KNOWN).map(lock_once).buffer_unordered(AT_A_TIME);
        once.try_collect().await
    }

    /// Nodes that it takes to be up.
    pub(crate) fn up(&self) -> usize {
        let nodes = self.0.nodes();
        let is_up = |state: &NodeState| matches!(state, NodeState::Up { .. });
        nodes.iter().filter(|node| is_up(&node.state)).count()
    }
}

impl Contender for Quorlock {
    type Held = Lease;

    async fn acquire(&self, key: String) -> Result<Lease, Failure> {
        self.0
            .lock(key)
            .try_acquire()
            .await
            .map_err(|error| error.to_string())
    }

    async fn release(&self, lease: Lease) -> Result<(), Failure> {
        release(lease).await
    }
}
