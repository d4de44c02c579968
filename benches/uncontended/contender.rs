use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use quorlock::node::NodeState;
use quorlock::{Lease, Redlock};
use rslock::{Lock, LockManager};

use crate::common::release;

/// The TTL of all contenders: nothing expires, and quorlock's node budget (a tenth) is short enough to be visible.
pub(crate) const TTL: Duration = Duration::from_secs(10);

pub(crate) type Failure = String;

/// A client that acquires and releases locks on five nodes.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    type Held: Send;

    fn acquire(&self, key: String) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Handles late answers to the last operation. Not timed.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Returns a name, and so a key, that no operation had before.
pub(crate) fn fresh_name() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("bench-{:012}", LAST.fetch_add(1, Relaxed))
}

#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    /// With all defaults, as its README says.
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

    /// Its unlock returns no result.
    async fn release(&self, lock: Lock) -> Result<(), Failure> {
        self.0.unlock(&lock).await;
        Ok(())
    }
}

/// The number of resources that are locked again and again.
const KNOWN: u64 = 4_096;

fn known_name(number: u64) -> String {
    format!("bench-{number:04}")
}

/// A contender on resources that all nodes know, as in steady use. For a new one, nodes start a counter.
#[derive(Clone)]
pub(crate) struct KnownResources<C> {
    contender: C,
    next: Arc<AtomicU64>,
}

impl<C: Contender> KnownResources<C> {
    pub(crate) fn new(contender: C) -> Self {
        let next = Arc::default();
        KnownResources { contender, next }
    }

    pub(crate) fn contender(&self) -> &C {
        &self.contender
    }
}

impl<C: Contender> Contender for KnownResources<C> {
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

    /// Locks all resources of [`Known`] once, so that the nodes know them.
    pub(crate) async fn make_known(&self) -> Result<(), Failure> {
        const AT_A_TIME: usize = 64;
        let lock_once = |number| async move { self.release(self.acquire(known_name(number)).await?).await };
        let once = stream::iter(0..KNOWN).map(lock_once).buffer_unordered(AT_A_TIME);
        once.try_collect().await
    }

    /// Returns how many nodes are up, as this client sees them.
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
