//! The worlds that the behaviours are run in.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use quorlock::node::NodeState;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{LockRequest, NodeStatus, Redlock, RedlockBuilder};
use redis::FromRedisValue;

use crate::common::{PATIENCE, ask, eventually, unique};

/// A world to be made of nodes of its own.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    nodes: usize,
    missing: usize,
    /// Missing nodes take connections and stay silent, in place of being down.
    silent: bool,
    /// Locks are taken with the plain SET.
    plain: bool,
    /// On a runtime with several threads.
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

/// A set of nodes, some of which may be missing: always the last ones, always a minority.
pub(crate) struct World {
    urls: Vec<String>,
    missing: usize,
    plain: bool,
    bed: Option<Testbed>,
    resources: Mutex<Vec<String>>,
}

impl World {
    /// Starts servers of its own.
    pub(crate) async fn start(spec: Spec) -> World {
        let bed = Testbed::builder()
            .nodes(spec.nodes)
            // No machine loses power here, and many servers share a disk.
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

    /// Uses servers that somebody else runs, and that others may use at the same time.
    pub(crate) fn external(urls: Vec<String>, missing: usize) -> World {
        World {
            urls,
            missing,
            plain: false,
            bed: None,
            resources: Mutex::default(),
        }
    }

    /// Leaves nothing behind: no servers, and no keys on those of somebody else.
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
                    let counter = format!("{key}#fence");
                    for url in &self.urls[..self.urls.len() - self.missing] {
                        let _: i64 = ask(url, &[b"DEL", key.as_bytes(), counter.as_bytes()])
                            .await
                            .unwrap();
                    }
                }
            }
        }
    }

    /// How many nodes are configured.
    pub(crate) fn nodes(&self) -> usize {
        self.urls.len()
    }

    pub(crate) fn quorum(&self) -> usize {
        self.nodes() / 2 + 1
    }

    /// The nodes that answer.
    pub(crate) fn live(&self) -> &[String] {
        &self.urls[..self.nodes() - self.missing]
    }

    pub(crate) fn all_live(&self) -> bool {
        self.missing == 0
    }

    /// The nodes to break, in a world of our own.
    pub(crate) fn servers(&self) -> &[TestNode] {
        self.bed.as_ref().unwrap().nodes()
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        Redlock::builder()
            .urls(&self.urls)
            .fencing(!self.plain)
            // The longest TTL there is.
            .guard_window(Duration::from_secs(365 * 24 * 3_600))
            .restart_guard(false)
    }

    /// A client of its own, as in another process. All nodes that answer take part from the start.
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

    /// Begins to lock something nobody else knows of, with a client of its own.
    pub(crate) async fn lock(&self, what: &str) -> LockRequest {
        self.redlock().await.lock(self.resource(what))
    }

    /// A resource of this test only.
    pub(crate) fn resource(&self, what: &str) -> String {
        let name = unique(what);
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name.clone());
        name
    }

    /// Long enough to play no part. But where nodes are missing, a clean-up waits for it.
    pub(crate) fn ttl(&self) -> Duration {
        if self.all_live() {
            Duration::from_secs(3_600)
        } else {
            Duration::from_secs(5)
        }
    }

    /// A node budget that plays none, however busy the machine is.
    pub(crate) fn generous_budget(&self) -> Duration {
        PATIENCE.min(self.ttl() * 3 / 4)
    }

    /// One command about the key of `resource`, to every node that answers: its name, the key, and what follows.
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

    /// What the counter stands at, on every node that answers.
    pub(crate) async fn counters(&self, resource: &str) -> Vec<Option<u64>> {
        self.tell("GET", &format!("{resource}#fence"), &[]).await
    }

    /// Those of the nodes that answer whose bit is set lose the counter.
    pub(crate) async fn lose(&self, resource: &str, losers: u32) {
        let key = format!("quorlock:{resource}#fence");
        for (number, url) in self.live().iter().enumerate() {
            if losers >> number & 1 == 1 {
                let _: i64 = ask(url, &[b"DEL", key.as_bytes()]).await.unwrap();
            }
        }
    }

    /// What the key holds, on every node that answers.
    pub(crate) async fn values(&self, resource: &str) -> Vec<Option<String>> {
        self.tell("GET", resource, &[]).await
    }

    /// Remaining milliseconds, on every node that answers; -1 without expiry, -2 without key.
    pub(crate) async fn pttls(&self, resource: &str) -> Vec<i64> {
        self.tell("PTTL", resource, &[]).await
    }

    pub(crate) async fn delete(&self, resource: &str) {
        self.tell::<i64>("DEL", resource, &[]).await;
    }

    /// On how many nodes the key is.
    pub(crate) async fn copies(&self, resource: &str) -> usize {
        self.values(resource).await.iter().flatten().count()
    }

    /// Acquire returns when a quorum has it; the others have it a moment later.
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

/// How long a lease lives whose end a test waits for.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// For a lease whose end is waited for. An attempt that comes to nothing because the machine is busy is followed by others.
pub(crate) fn short(request: LockRequest) -> LockRequest {
    request.ttl(SHORT).node_budget(SHORT * 3 / 4).forever()
}

/// Something that is true in every world of a kind.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    /// Breaks nodes, or counts what they are sent: not for nodes that others use at the same time.
    pub(crate) own_nodes_only: bool,
    pub(crate) run: for<'a> fn(&'a World) -> LocalBoxFuture<'a, ()>,
}

/// Something that takes servers set up in a special way.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> LocalBoxFuture<'static, ()>,
}

/// Lists functions from `&World`, by their names.
macro_rules! behaviours {
    ($own_nodes_only:expr; $($name:ident),* $(,)?) => {
        vec![$($crate::world::Behaviour {
            name: concat!(module_path!(), "::", stringify!($name)),
            own_nodes_only: $own_nodes_only,
            run: |world| Box::pin($name(world)),
        }),*]
    };
}

/// Lists functions without arguments, by their names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::world::Case {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: || Box::pin($name()),
        }),*]
    };
}

pub(crate) use {behaviours, cases};

/// Runs `work` on a runtime of its own; a test that hangs fails.
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
            .expect("it hangs")
    })
}
