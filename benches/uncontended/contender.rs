//! Who is compared.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::{Lease, Redlock, ReleaseOutcome};
use rslock::{Lock, LockManager};

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

/// So many resources are locked over and over: all nodes know them, as in steady use.
const KNOWN: u64 = 4_096;

/// Whether resources are locked for the first time. With fencing, a node then starts a counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    Known,
    New,
}

#[derive(Clone)]
pub(crate) struct Quorlock {
    redlock: Redlock,
    names: Names,
    next: Arc<AtomicU64>,
}

impl Quorlock {
    pub(crate) async fn connect(
        urls: &[String],
        fencing: bool,
        watchdog: bool,
        names: Names,
    ) -> Result<Self, Box<dyn Error>> {
        let redlock = Redlock::builder()
            .urls(urls)
            .ttl(TTL)
            .fencing(fencing)
            .watchdog(watchdog)
            .restart_guard(false)
            .connect()
            .await?;
        let next = Arc::default();
        let contender = Quorlock { redlock, names, next };
        if fencing && names == Names::Known {
            // In steady use, nodes have been up for a while: their counters are not started anew any more.
            for _ in 0..KNOWN {
                let lease = contender.acquire(String::new()).await?;
                contender.release(lease).await?;
            }
        }
        Ok(contender)
    }

    /// Nodes that it takes to be up.
    pub(crate) fn up(&self) -> usize {
        let nodes = self.redlock.nodes();
        let is_up = |state: &NodeState| matches!(state, NodeState::Up { .. });
        nodes.iter().filter(|node| is_up(&node.state)).count()
    }
}

impl Contender for Quorlock {
    type Held = Lease;

    async fn acquire(&self, fresh: String) -> Result<Lease, Failure> {
        let name = match self.names {
            Names::New => fresh,
            Names::Known => format!("bench-{:04}", self.next.fetch_add(1, Relaxed) % KNOWN),
        };
        self.redlock
            .lock(name)
            .try_acquire()
            .await
            .map_err(|error| error.to_string())
    }

    async fn release(&self, lease: Lease) -> Result<(), Failure> {
        match lease.release().await {
            ReleaseOutcome::Released => Ok(()),
            other => Err(other.to_string()),
        }
    }
}
