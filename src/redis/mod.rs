//! Redis and Valkey masters behind the port (`src/node/`). The only folder that names the client library, fred.
//!
//! Entry point: [`RedisNode::set`]. Requests for locks, and all that belongs to their connection, go over a connection of our
//! own. Announcements, and the lists of nodes for people, go over connections of fred. This folder knows nothing of attempts,
//! leases or waiting. Rules: T, M, R1 to R3.
//!
//! | file | |
//! |---|---|
//! | `node_url.rs`, `node_config.rs` | a node's URL; its other settings |
//! | `credentials.rs`, `tls.rs` | passwords and certificates that change |
//! | `address.rs`, `blocking.rs` | the addresses of a name; blocking work on threads |
//! | `settings.rs` | what the nodes of a set have in common |
//! | `endpoint.rs` | what the connections to one node have in common |
//! | `reconnect.rs` | keeps a node connected |
//! | `connection.rs`, `resp.rs` | a connection's bytes, and their protocol |
//! | `link.rs` | a connection that has passed the probe |
//! | `probe.rs` | what a server must be before it may vote |
//! | `memory.rs`, `record.lua` | which memory a server is |
//! | `pipeline.rs`, `call.rs` | the queue in front of a connection, and what is in flight on it |
//! | `script.rs`, `lock.lua` | the script: its arguments and its replies |
//! | `time.rs` | the node's clock, seen from here |
//! | `fault.rs` | the servers' errors by their names |
//! | `members.rs`, `membership.rs` | looks at all nodes, and the decisions that follow |
//! | `registrar.rs`, `views.lua` | registers this client's list of nodes on one node |
//! | `admission.rs` | whether a node's votes count |
//! | `client_info.rs` | the descriptions that clients give of themselves |
//! | `fred_client.rs` | a connection of the client library |
//! | `announcements.rs` | subscriptions to announcements |
//! | `write_probe.rs` | a write that disturbs nothing |
//! | `inspection.rs`, `inspect.lua` | locks and their keys, for operators |
//! | `examination.rs` | what makes a server unfit, for `src/doctor/` |
//! | `registrations.rs`, `lists.lua` | the registered lists of nodes, for people |
//! | `exchange.rs` | the script's encoding, for tests that run the script (feature `simulation`) |

mod address;
mod admission;
mod announcements;
mod blocking;
mod call;
mod client_info;
mod connection;
mod credentials;
mod endpoint;
mod examination;
#[cfg(feature = "simulation")]
pub mod exchange;
mod fault;
mod fred_client;
mod inspection;
mod link;
mod members;
mod membership;
mod memory;
mod node_config;
mod node_url;
mod patience;
mod pipeline;
mod probe;
mod reconnect;
mod registrar;
mod registrations;
mod resp;
mod script;
mod settings;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod write_probe;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use client_info::this_process;
pub use credentials::{Credentials, CredentialsProvider};
pub(crate) use examination::examine;
pub use node_config::NodeConfig;
pub(crate) use registrations::registrations;
pub use registrations::{NodeList, Registrations};
#[cfg(feature = "tls")]
pub use tls::{TlsError, TlsOptions};

use crate::node::{
    Action, ClientId, ClientInfo, Fault, KeyPage, KeyState, Listener, Listening, Node, NodeState, Reply,
    Request,
};
use crate::sys::clock::Clock;
use address::Addresses;
use announcements::Announcements;
use endpoint::Endpoint;
use members::{Member, Members};
pub(crate) use membership::Participation;
use patience::Patience;
use pipeline::Pipeline;
use probe::RunIds;
pub(crate) use settings::Settings;
use time::ServerTime;

/// A Redis or Valkey master. It is kept connected in the background until it is dropped.
pub(crate) struct RedisNode {
    name: Arc<str>,
    prefix: Arc<str>,
    pipeline: Arc<Pipeline>,
    members: Arc<Members>,
    announcements: Announcements,
    _stop: Arc<DropGuard>,
}

impl RedisNode {
    /// Makes a node for each configuration. They are one set, in which no server may appear twice.
    pub(crate) fn set(
        configs: Vec<NodeConfig>,
        settings: &Settings,
        runtime: &Handle,
        clock: &Clock,
        closed: &CancellationToken,
    ) -> Vec<Arc<RedisNode>> {
        let run_ids = Arc::new(RunIds::default());
        let look_period = settings.look_period();
        let client_name: Arc<str> = client_info::connection_name(&settings.client).into();
        let member = |(number, config): (usize, NodeConfig)| {
            let name = config.name().clone();
            let time = Arc::new(ServerTime::new(name.clone(), clock.clone()));
            let endpoint = Arc::new(Endpoint {
                number,
                name,
                // Half a period, so that a new server is also connected to and probed within the period.
                addresses: Addresses::new(config.config(), look_period / 2),
                node: config,
                run_ids: run_ids.clone(),
                prefix: settings.prefix.clone(),
                time: time.clone(),
                timeout: settings.timeout,
                patience: Patience::new(settings.timeout),
                announcement_patience: Patience::new(settings.timeout),
                look_period,
                window: settings.longest_ttl,
                rejected_memory: Arc::default(),
                last_used: Default::default(),
                opened: Default::default(),
                client_name: client_name.clone(),
                warned: Mutex::default(),
            });
            let pipeline = Arc::new(Pipeline::new(time));
            Member { endpoint, pipeline }
        };
        let nodes: Vec<Member> = configs.into_iter().enumerate().map(member).collect();
        let members = Arc::new(Members::new(
            nodes.clone(),
            settings,
            look_period,
            clock.clone(),
            closed.clone(),
        ));
        let stop = CancellationToken::new();
        runtime.spawn(stop.clone().run_until_cancelled_owned(members.clone().keep()));
        let stop_all = Arc::new(stop.clone().drop_guard());
        let start = |Member { endpoint, pipeline }: Member| {
            let name = endpoint.name.clone();
            let kept = reconnect::keep_connected(endpoint.clone(), pipeline.clone(), members.clone());
            let (announcements, heard) = Announcements::new(endpoint);
            let ended = Ended(pipeline.clone());
            runtime.spawn(stop.clone().run_until_cancelled_owned(async move {
                let _ended = ended;
                kept.await;
            }));
            runtime.spawn(stop.clone().run_until_cancelled_owned(heard));
            Arc::new(RedisNode {
                name,
                prefix: settings.prefix.clone(),
                pipeline,
                members: members.clone(),
                announcements,
                _stop: stop_all.clone(),
            })
        };
        nodes.into_iter().map(start).collect()
    }

    /// Returns a receiver of the node's state and its changes.
    pub(crate) fn watch(&self) -> watch::Receiver<NodeState> {
        self.pipeline.status().subscribe()
    }
}

/// Takes the pipeline down when the task that keeps it connected ends: the node was dropped, or its runtime has ended.
struct Ended(Arc<Pipeline>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.down(&Fault::Disconnected {
            reason: "the runtime that it was connected on has ended".into(),
        });
    }
}

impl Node for RedisNode {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Result<Reply, Fault>> {
        if matches!(request.action, Action::Acquire { .. }) && self.members.only_observes() {
            let fault = Fault::Disconnected {
                reason: "connected only to observe: takes no locks".into(),
            };
            return std::future::ready(Err(fault)).boxed();
        }
        self.pipeline.call(request, budget)
    }

    fn connection(&self) -> Option<u64> {
        Some(self.pipeline.connection())
    }

    fn epoch(&self) -> u64 {
        self.pipeline.epoch()
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        Some(self.announcements.listen(key, listener))
    }

    fn clock(&self) -> Option<u64> {
        self.pipeline.clock()
    }

    fn late_by(&self) -> Option<Duration> {
        self.pipeline.time().late_by()
    }

    fn clock_advanced(&self) -> Duration {
        self.pipeline.time().advanced()
    }

    fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        self.pipeline.left_out(guard)
    }

    fn overdue(&self) -> Option<BoxFuture<'static, ()>> {
        let pipeline = self.pipeline.clone();
        let mut changes = pipeline.status().subscribe();
        pipeline.is_overdue().then(|| {
            let looked = async move { while pipeline.is_overdue() && changes.changed().await.is_ok() {} };
            looked.boxed()
        })
    }

    fn client_info(&self, client: ClientId) -> BoxFuture<'static, Result<Option<ClientInfo>, Fault>> {
        let (pipeline, key) = (self.pipeline.clone(), registrar::client_key(&self.prefix, client));
        let asked = async move { registrar::client_info(&pipeline, &key).await };
        asked.boxed()
    }

    fn inspect(&self, keys: Arc<[Arc<str>]>) -> BoxFuture<'static, Result<Vec<KeyState>, Fault>> {
        let pipeline = self.pipeline.clone();
        async move { inspection::inspect(&pipeline, &keys).await }.boxed()
    }

    fn scan(&self, pattern: &str, from: u64) -> BoxFuture<'static, Result<KeyPage, Fault>> {
        let (pipeline, pattern) = (self.pipeline.clone(), pattern.to_owned());
        async move { inspection::scan(&pipeline, &pattern, from).await }.boxed()
    }

    fn check_write(&self) -> BoxFuture<'static, Result<Duration, Fault>> {
        let (pipeline, prefix) = (self.pipeline.clone(), self.prefix.clone());
        async move { write_probe::check(&pipeline, &prefix).await }.boxed()
    }

    fn status(&self) -> NodeState {
        self.pipeline.status().borrow().clone()
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
