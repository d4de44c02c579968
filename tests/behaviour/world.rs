//! Worlds: sets of nodes to test on.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use quorlock::node::NodeState;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{Lease, LockRequest, NodeStatus, Redlock, RedlockBuilder};
use redis::FromRedisValue;

use crate::common::{PATIENCE, ask, eventually, unique};

/// How to start a world.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    nodes: usize,
    missing: usize,
    /// Missing nodes accept connections and stay silent.
    silent: bool,
    /// Locks are taken by plain `SET`.
    plain: bool,
    /// Tests run on several threads.
    pub(crate) threads: bool,
}

const ALL_UP: Spec = Spec {
    name: "n3",
    nodes: 3,
    missing: 0,
    silent: false,
    plain: false,
    threads: false,
};

#[rustfmt::skip]
pub(crate) const WORLDS: [Spec; 8] = [
    Spec { name: "n1", nodes: 1, ..ALL_UP },
    Spec { name: "n3", ..ALL_UP },
    Spec { name: "n4", nodes: 4, ..ALL_UP },
    Spec { name: "n5", nodes: 5, ..ALL_UP },
    Spec { name: "n5_two_dead", nodes: 5, missing: 2, ..ALL_UP },
    Spec { name: "n5_two_silent", nodes: 5, missing: 2, silent: true, ..ALL_UP },
    Spec { name: "n3_plain_set", plain: true, ..ALL_UP },
    Spec { name: "n3_threads", threads: true, ..ALL_UP },
];

/// A set of nodes. A minority may be missing, always the last ones.
pub(crate) struct World {
    urls: Vec<String>,
    missing: usize,
    plain: bool,
    bed: Option<Testbed>,
    resources: Mutex<Vec<String>>,
}

impl World {
    pub(crate) async fn start(spec: Spec) -> World {
        let bed = Testbed::builder()
            .nodes(spec.nodes)
            // The machine does not lose power, and many servers share its disk.
            .arg("appendfsync", "no")
            .start()
            .await
            .unwrap();
        for node in &bed.nodes()[spec.nodes - spec.missing..] {
            if spec.silent {
                node.stop().unwrap();
            } else {
                node.kill().await.unwrap();
            }
        }
        World {
            urls: bed.urls(),
            missing: spec.missing,
            plain: spec.plain,
            bed: Some(bed),
            resources: Mutex::default(),
        }
    }

    /// Uses external servers, which others may use at the same time.
    pub(crate) fn external(urls: Vec<String>, missing: usize) -> World {
        World {
            urls,
            missing,
            plain: false,
            bed: None,
            resources: Mutex::default(),
        }
    }

    /// Stops own servers; deletes the tests' keys on external ones.
    pub(crate) async fn end(self) {
        let resources = self
            .resources
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match self.bed {
            Some(bed) => bed.shutdown().await,
            None => {
                for resource in resources {
                    let key = format!("quorlock:{resource}");
                    let keys = [key.clone(), format!("{key}#fence"), format!("{key}#done")];
                    let [key, counter, mark] = keys.each_ref().map(String::as_bytes);
                    for url in &self.urls[..self.urls.len() - self.missing] {
                        let _: i64 = ask(url, &[b"DEL", key, counter, mark]).await.unwrap();
                    }
                }
            }
        }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.urls.len()
    }

    pub(crate) fn quorum(&self) -> usize {
        self.nodes() / 2 + 1
    }

    /// Returns the nodes that answer.
    pub(crate) fn live(&self) -> &[String] {
        &self.urls[..self.nodes() - self.missing]
    }

    pub(crate) fn all_live(&self) -> bool {
        self.missing == 0
    }

    /// Panics for external nodes.
    pub(crate) fn servers(&self) -> &[TestNode] {
        self.bed.as_ref().unwrap().nodes()
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        Redlock::builder()
            .urls(&self.urls)
            .fencing(!self.plain)
            // No TTL may be longer than the guard window.
            .guard_window(Duration::from_secs(365 * 24 * 3_600))
            .restart_guard(false)
    }

    /// Connects a new client, and waits until all live nodes are up.
    pub(crate) async fn redlock(&self) -> Redlock {
        let redlock = self.builder().connect().await.unwrap();
        eventually("the nodes are up", || async {
            let nodes = redlock.nodes();
            let up = |node: &NodeStatus| matches!(node.state, NodeState::Up { .. });
            nodes[..self.live().len()].iter().all(up)
        })
        .await;
        redlock
    }

    /// Requests a new resource with a new client.
    pub(crate) async fn lock(&self, what: &str) -> LockRequest {
        self.redlock().await.lock(self.resource(what))
    }

    /// Takes a lock on all nodes that answer, with a client of its own. The lease is not renewed.
    pub(crate) async fn hold(&self, resource: &str, ttl: Duration) -> Lease {
        let lock = self.redlock().await.lock(resource).ttl(ttl);
        let lease = lock.watchdog(false).acquire().await.unwrap();
        self.spread(resource).await;
        lease
    }

    pub(crate) fn resource(&self, what: &str) -> String {
        let name = unique(what);
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name.clone());
        name
    }

    /// Returns a TTL that outlasts the test, unless nodes are missing: their clean-up lasts until then.
    pub(crate) fn ttl(&self) -> Duration {
        if self.all_live() {
            Duration::from_secs(3_600)
        } else {
            Duration::from_secs(5)
        }
    }

    /// Returns a node budget that suffices on a busy machine.
    pub(crate) fn generous_budget(&self) -> Duration {
        PATIENCE.min(self.ttl() * 3 / 4)
    }

    /// Sends a command about the key of `resource` to every live node. `rest` follows the key.
    pub(crate) async fn tell<T: FromRedisValue>(&self, name: &str, resource: &str, rest: &[&str]) -> Vec<T> {
        let key = format!("quorlock:{resource}");
        let mut args = vec![name.as_bytes(), key.as_bytes()];
        args.extend(rest.iter().map(|arg| arg.as_bytes()));
        let asked = self.live().iter().map(|url| ask(url, &args));
        join_all(asked)
            .await
            .into_iter()
            .collect::<redis::RedisResult<_>>()
            .unwrap()
    }

    pub(crate) async fn counters(&self, resource: &str) -> Vec<Option<u64>> {
        self.tell("GET", &format!("{resource}#fence"), &[]).await
    }

    /// Deletes the counter on live nodes whose bit is set in `losers`.
    pub(crate) async fn lose(&self, resource: &str, losers: u32) {
        let key = format!("quorlock:{resource}#fence");
        for (number, url) in self.live().iter().enumerate() {
            if losers >> number & 1 == 1 {
                let _: i64 = ask(url, &[b"DEL", key.as_bytes()]).await.unwrap();
            }
        }
    }

    pub(crate) async fn values(&self, resource: &str) -> Vec<Option<String>> {
        self.tell("GET", resource, &[]).await
    }

    /// Returns the key's remaining milliseconds on each live node; -1 without expiry, -2 without key.
    pub(crate) async fn pttls(&self, resource: &str) -> Vec<i64> {
        self.tell("PTTL", resource, &[]).await
    }

    pub(crate) async fn delete(&self, resource: &str) {
        self.tell::<i64>("DEL", resource, &[]).await;
    }

    pub(crate) async fn copies(&self, resource: &str) -> usize {
        self.values(resource).await.iter().flatten().count()
    }

    /// Waits until every live node has the key. Acquire returns once a quorum has it.
    pub(crate) async fn spread(&self, resource: &str) {
        eventually("the key is on every node that answers", || async {
            self.copies(resource).await == self.live().len()
        })
        .await;
    }

    pub(crate) async fn gone(&self, resource: &str) {
        eventually("the key is on no node", || async {
            self.copies(resource).await == 0
        })
        .await;
    }
}

/// TTL of leases whose end a test waits for.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// For such leases. Attempts may fail on a busy machine, so they are repeated.
pub(crate) fn short(request: LockRequest) -> LockRequest {
    request.ttl(SHORT).node_budget(SHORT * 3 / 4).forever()
}

/// A test for every world.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    /// The test breaks nodes or counts commands: not for external nodes.
    pub(crate) own_nodes_only: bool,
    pub(crate) run: for<'a> fn(&'a World) -> LocalBoxFuture<'a, ()>,
}

/// A test with special servers.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> LocalBoxFuture<'static, ()>,
}

macro_rules! behaviours {
    ($own_nodes_only:expr; $($name:ident),* $(,)?) => {
        vec![$($crate::world::Behaviour {
            name: concat!(module_path!(), "::", stringify!($name)),
            own_nodes_only: $own_nodes_only,
            run: |world| Box::pin($name(world)),
        }),*]
    };
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::world::Case {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: || Box::pin($name()),
        }),*]
    };
}

pub(crate) use {behaviours, cases};

/// Runs `work` on a new runtime, for five minutes at most.
pub(crate) fn on_a_runtime<T>(threads: bool, work: impl Future<Output = T>) -> T {
    let mut builder = if threads {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(300), work)
            .await
            .expect("the test takes longer than five minutes")
    })
}
