//! Redis and Valkey masters behind the port; the one place that names the client library.
//!
//! | file | |
//! |---|---|
//! | `endpoint.rs` | URLs, and what else says how to reach a server |
//! | `keeper.rs` | keeps a node connected |
//! | `link.rs` | one connection: opened, probed, used until it breaks |
//! | `probe.rs` | what a server must be before it may vote |
//! | `memory.rs` | what it may have forgotten |
//! | `lane.rs` | the queue in front of the connection |
//! | `announcements.rs` | what the server tells of its own accord |
//! | `call.rs` | requests that are sent together, and their answer |
//! | `script.rs`, `lock.lua` | what is sent, and what comes back |
//! | `exchange.rs` | encodes and decodes it for tests that run the script (feature `testbed`) |
//! | `time.rs` | its clock, seen from here |
//! | `fault.rs` | errors by their right names |
//! | `tls.rs` | certificates (feature `tls`) |

mod announcements;
mod call;
mod endpoint;
#[cfg(feature = "testbed")]
pub mod exchange;
mod fault;
mod keeper;
mod lane;
mod link;
mod memory;
mod probe;
mod script;
mod time;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use endpoint::NodeConfig;
#[cfg(feature = "tls")]
pub use tls::{TlsError, TlsOptions};

use crate::clock::Clock;
use crate::node::{Fault, Listener, Listening, Node, NodeState, Reply, Request};
use announcements::Announcements;
use lane::Lane;
use link::Endpoint;
use probe::Roll;
use time::ServerTime;

/// A Redis or Valkey master. Connects in the background, again and again, until it is dropped.
pub(crate) struct RedisNode {
    name: Arc<str>,
    lane: Arc<Lane>,
    announcements: Announcements,
    _stop: DropGuard,
}

impl RedisNode {
    /// A node for each configuration: one set, in which no server may appear twice.
    pub(crate) fn set(
        configs: Vec<NodeConfig>,
        prefix: &str,
        timeout: Duration,
        runtime: &Handle,
        clock: &Clock,
    ) -> Vec<Arc<RedisNode>> {
        let prefix: Arc<str> = prefix.into();
        let roll = Arc::new(Roll::default());
        let start = |(number, config): (usize, NodeConfig)| {
            let name = config.name().clone();
            let time = Arc::new(ServerTime::new(name.clone(), clock.clone()));
            let lane = Arc::new(Lane::new(time.clone()));
            let stop = CancellationToken::new();
            let endpoint = Arc::new(Endpoint {
                number,
                name: name.clone(),
                config: config.into_fred(),
                roll: roll.clone(),
                prefix: prefix.clone(),
                time,
                timeout,
            });
            let kept = keeper::keep(endpoint.clone(), lane.clone());
            let (announcements, heard) = Announcements::new(endpoint);
            let ended = Ended(lane.clone());
            runtime.spawn(lane.clone().drive());
            runtime.spawn(stop.clone().run_until_cancelled_owned(async move {
                let _ended = ended;
                tokio::join!(kept, heard);
            }));
            Arc::new(RedisNode {
                name,
                lane,
                announcements,
                _stop: stop.drop_guard(),
            })
        };
        configs.into_iter().enumerate().map(start).collect()
    }

    /// The node's state, and notice of its changes.
    pub(crate) fn watch(&self) -> watch::Receiver<NodeState> {
        self.lane.status().subscribe()
    }
}

/// Nobody keeps the lane connected any more: the node was dropped, or its runtime has ended.
struct Ended(Arc<Lane>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end(&Fault::Disconnected {
            reason: "the runtime that it was connected on has ended".into(),
        });
    }
}

impl Node for RedisNode {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Result<Reply, Fault>> {
        self.lane.call(request, budget)
    }

    fn connection(&self) -> Option<u64> {
        Some(self.lane.connection())
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        Some(self.announcements.listen(key, listener))
    }

    fn clock(&self) -> Option<u64> {
        self.lane.clock()
    }

    fn clock_advanced(&self) -> Duration {
        self.lane.time().advanced()
    }

    fn left_out(&self, guard: Duration) -> Option<Fault> {
        self.lane.left_out(guard)
    }

    fn status(&self) -> NodeState {
        self.lane.status().borrow().clone()
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode")
            .field("name", &self.name)
            .field("state", &self.status())
            .finish()
    }
}
