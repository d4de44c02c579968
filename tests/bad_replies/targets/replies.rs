//! Replies: one, two or all of three nodes lie. Nothing panics or hangs, and with an honest quorum the lock works as usual.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock::simulation::Fault;
use quorlock::testbed::Testbed;
use quorlock::{ConnectError, Redlock, ReleaseOutcome};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::bytes::Bytes;
use super::forgery::{ForgedReply, forge};
use super::lying_proxy::LyingProxy;
use super::resp::Value;

pub(crate) const NODES: usize = 3;
const LOCK: &str = "job";
/// With an honest quorum, no call waits this long, not even on a busy machine.
const TTL: Duration = Duration::from_secs(30);
const BUDGET: Duration = Duration::from_secs(10);
/// Without an honest quorum, calls do wait for it.
const SHORT_TTL: Duration = Duration::from_secs(1);
const SHORT_BUDGET: Duration = Duration::from_millis(100);
/// One of so many cases waits for the clean-up, which takes a TTL if a node is silent.
const CLEAN: u64 = 128;
/// The servers' `appendfsync`: so many of them would wait for the disk.
const WRITES: &str = "no";
/// Much longer than any case may take.
const PATIENCE: Duration = Duration::from_secs(180);
const TEN_YEARS: u64 = 10 * 366 * 24 * 3_600 * 1_000_000;

/// Three real servers.
pub(crate) struct World {
    pub(crate) testbed: Testbed,
    cases: AtomicU64,
}

impl World {
    pub(crate) async fn start() -> World {
        let testbed = Testbed::builder()
            .nodes(NODES)
            .arg("appendfsync", WRITES)
            .start()
            .await
            .unwrap();
        World {
            testbed,
            cases: AtomicU64::new(0),
        }
    }
}

/// Connects with a prefix that no other case uses: a client that reads lies may replace a server's record, which ends the
/// connections of all other clients of the prefix.
async fn connect(urls: Vec<String>, prefix: &str, timeout: Duration) -> Result<Redlock, ConnectError> {
    // Each lying proxy has its own address, so the clients' lists of nodes differ, and must not be registered.
    let builder = Redlock::builder().urls(urls).restart_guard(false).unregistered();
    let builder = builder.key_prefix(prefix);
    builder.connect_timeout(timeout).connect().await
}

/// Which nodes lie, from when on, and how.
#[derive(Debug)]
struct Plan<'a> {
    /// One bit for each node that lies.
    lying_nodes: u8,
    /// The number of true replies before the first lie.
    from: u8,
    /// Whether the lies start again after the last one. Otherwise, all later replies are true.
    again: bool,
    lies: &'a [u8],
}

impl Plan<'_> {
    fn read(data: &[u8]) -> Plan<'_> {
        let mut bytes = Bytes(data);
        let lying_nodes = match bytes.byte() % 8 {
            0 => 1,
            nodes => nodes,
        };
        Plan {
            lying_nodes,
            from: bytes.byte() % 32,
            again: !bytes.flag(),
            lies: bytes.0,
        }
    }

    fn lies(&self, node: usize) -> bool {
        self.lying_nodes & 1 << node != 0
    }

    fn count(&self) -> u32 {
        self.lying_nodes.count_ones()
    }

    async fn lying_proxy(&self, world: &World, node: usize) -> LyingProxy {
        let (mut truths, again) = (self.from, self.again);
        let (lies, mut at) = (self.lies.to_vec(), 0);
        let forge_reply = move |truth: &Value| {
            let truth = &as_if_all_were_kept(truth);
            if truths > 0 || lies.is_empty() || (at >= lies.len() && !again) {
                truths = truths.saturating_sub(1);
                return ForgedReply::says(truth.write());
            }
            if at >= lies.len() {
                at = 0;
            }
            let mut bytes = Bytes(&lies[at..]);
            let forged = forge(&mut bytes, truth);
            at = lies.len() - bytes.0.len();
            forged
        };
        LyingProxy::start(world.testbed.nodes()[node].direct_addr(), Box::new(forge_reply)).await
    }
}

/// Lets the server claim `appendfsync always`: clients then ask it for more when they connect.
fn as_if_all_were_kept(truth: &Value) -> Value {
    match truth {
        Value::List(b'*', items) if items.last() == Some(&Value::Text(b'$', WRITES.into())) => {
            Value::List(b'*', vec![items[0].clone(), Value::Text(b'$', "always".into())])
        }
        other => other.clone(),
    }
}

pub(crate) async fn case(world: &World, data: &[u8]) {
    let plan = Plan::read(data);
    let number = world.cases.fetch_add(1, Relaxed);
    let prefix = format!("case-{number}:");
    // Makes the records before the lies begin.
    let honest = connect(world.testbed.urls(), &prefix, TTL).await.unwrap();
    let mut lying_proxies = Vec::new();
    let mut urls = world.testbed.urls();
    for (node, url) in urls.iter_mut().enumerate() {
        if plan.lies(node) {
            let lying_proxy = plan.lying_proxy(world, node).await;
            *url = lying_proxy.url();
            lying_proxies.push(lying_proxy);
        }
    }
    let held = timeout(PATIENCE, used(&plan, urls, &prefix, number.is_multiple_of(CLEAN))).await;
    let held = held.unwrap_or_else(|_| panic!("hangs: {plan:?}"));
    drop(lying_proxies);
    if plan.count() == 1 {
        // Whatever one node has sent, the others give the lock, and in order.
        let next = honest.lock(LOCK).within(PATIENCE).acquire().await;
        let next = next.unwrap_or_else(|error| panic!("never again: {error} after {plan:?}"));
        let token = next.fencing_token();
        assert!(token > held, "{token:?} after {held:?}: {plan:?}");
        let _ = next.release().await;
    }
}

/// Acquires, extends and releases a lock. Returns its token, or `None` if it was not acquired.
async fn used(
    plan: &Plan<'_>,
    urls: Vec<String>,
    prefix: &str,
    clean: bool,
) -> Option<quorlock::FencingToken> {
    let honest_quorum = plan.count() == 1;
    let (ttl, budget) = match honest_quorum {
        true => (TTL, BUDGET),
        false => (SHORT_TTL, SHORT_BUDGET),
    };
    let to_connect = if honest_quorum { TTL } else { BUDGET / 10 };
    let redlock = match connect(urls, prefix, to_connect).await {
        Ok(redlock) => redlock,
        // If it looks like a mistake in the list of nodes, the error names the lying node.
        Err(ConnectError::Misconfigured(votes)) => {
            let unfit = |(node, answer)| matches!(answer, &Some(Err(Fault::Unfit(_)))) && plan.lies(node);
            assert!(
                votes.iter().map(|vote| &vote.answer).enumerate().any(unfit),
                "{votes}: {plan:?}"
            );
            return None;
        }
        Err(error) => {
            assert!(!honest_quorum, "{error}: {plan:?}");
            return None;
        }
    };
    let lock = redlock.lock(LOCK).ttl(ttl).node_budget(budget);
    let acquired = lock.within(ttl).acquire().await;
    let mut token = None;
    match acquired {
        Ok(lease) => {
            token = lease.fencing_token();
            let _ = lease.votes().to_string();
            let mut extended = lease.extend().await;
            // On a busy machine, honest nodes may be slow.
            while extended.is_err() && lease.is_held() {
                extended = lease.extend().await;
            }
            let released = lease.release().await;
            if honest_quorum {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
                assert!(token.unwrap().get() < now + TEN_YEARS, "{token:?}: {plan:?}");
                assert!(extended.is_ok(), "{extended:?}: {plan:?}");
                assert_eq!(released, ReleaseOutcome::Released, "{plan:?}");
            }
        }
        Err(error) => assert!(!honest_quorum, "{error}: {plan:?}"),
    }
    let _ = format!("{:?}", redlock.nodes());
    if clean || !honest_quorum {
        redlock.shutdown().await;
    }
    token
}

/// Runs a case for a fuzzer. The servers run as long as the process.
pub(crate) fn run(data: &[u8]) {
    static WORLD: OnceLock<(Runtime, World)> = OnceLock::new();
    let (runtime, world) = WORLD.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let world = runtime.block_on(World::start());
        (runtime, world)
    });
    runtime.block_on(case(world, data));
}
