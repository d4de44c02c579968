//! Redis and Valkey masters behind the port; the one place that names the client library.
//!
//! Requests for locks, and all that belongs to their connection, go over a connection of our own; announcements and
//! `registrations` over the client library's.
//!
//! | file | |
//! |---|---|
//! | `endpoint.rs` | URLs, and what else says how to reach a server |
//! | `credentials.rs`, `blocking.rs` | passwords that change, and files read on threads |
//! | `address.rs` | the addresses of its name |
//! | `keeper.rs` | keeps a node connected |
//! | `connection.rs`, `resp.rs` | the bytes of a connection for locks, and its protocol |
//! | `general.rs` | how the client library connects and is asked |
//! | `link.rs` | opens and probes a connection for locks |
//! | `probe.rs` | what a server must be before it may vote |
//! | `memory.rs`, `record.lua` | which memory it is |
//! | `members.rs` | which nodes this client and others use |
//! | `membership.rs` | what follows from that |
//! | `registrar.rs`, `views.lua` | how one node is told of that |
//! | `registrations.rs`, `lists.lua` | what nodes know of that, for people |
//! | `admission.rs` | whether a node's votes count |
//! | `client.rs` | who this process is |
//! | `lane.rs` | the queue in front of the connection |
//! | `announcements.rs` | what the server tells of its own accord |
//! | `call.rs` | what is in flight on the connection |
//! | `script.rs`, `lock.lua` | what is sent, and what comes back |
//! | `exchange.rs` | encodes and decodes it for tests that run the script (feature `testbed`) |
//! | `time.rs` | its clock, seen from here |
//! | `fault.rs` | errors by their right names |
//! | `tls.rs` | certificates (feature `tls`) |

mod address;
mod admission;
mod announcements;
mod blocking;
mod call;
mod client;
mod connection;
mod credentials;
mod endpoint;
#[cfg(feature = "testbed")]
pub mod exchange;
mod fault;
mod general;
mod keeper;
mod lane;
mod link;
mod members;
mod membership;
mod memory;
mod probe;
mod registrar;
mod registrations;
mod resp;
mod script;
mod time;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use credentials::{Credentials, CredentialsProvider};
pub use endpoint::NodeConfig;
pub(crate) use registrations::registrations;
pub use registrations::{NodeList, Registrations};
#[cfg(feature = "tls")]
pub use tls::{TlsError, TlsOptions};

use crate::node::{Action, Fault, Listener, Listening, Node, NodeState, Reply, Request};
use crate::sys::clock::Clock;
use address::Addresses;
use announcements::Announcements;
use lane::Lane;
use link::Endpoint;
use members::{Member, Members};
use probe::Roll;
use time::ServerTime;

const LONGEST_LOOK: Duration = Duration::from_secs(5);
const SHORTEST_LOOK: Duration = Duration::from_millis(500);

/// A Redis or Valkey master. Connects in the background, again and again, until it is dropped.
pub(crate) struct RedisNode {
    name: Arc<str>,
    lane: Arc<Lane>,
    members: Arc<Members>,
    announcements: Announcements,
    _stop: Arc<DropGuard>,
}

/// What the nodes of a set have in common.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// In front of all keys.
    pub(crate) prefix: Arc<str>,
    /// How long connecting and probing may take.
    pub(crate) timeout: Duration,
    /// The restart guard's.
    pub(crate) window: Duration,
    /// No lease lives longer.
    pub(crate) longest_ttl: Duration,
    pub(crate) part: Part,
}

/// What part a client takes among those that use the same nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It registers its list of nodes, and keeps to the list that others use.
    Full,
    /// It takes no locks, so others need not know of it.
    Observer,
    /// It takes locks that nobody else can want.
    Alone,
}

impl Part {
    /// Whether the list of nodes is registered.
    fn registers(self) -> bool {
        self == Part::Full
    }
}

impl RedisNode {
    /// A node for each configuration: one set, in which no server may appear twice. Names are resolved again two to four times
    /// in each look period.
    pub(crate) fn set(
        configs: Vec<NodeConfig>,
        settings: &Settings,
        runtime: &Handle,
        clock: &Clock,
        closed: &CancellationToken,
    ) -> Vec<Arc<RedisNode>> {
        let Settings {
            prefix,
            timeout,
            window,
            longest_ttl,
            part,
        } = settings.clone();
        let roll = Arc::new(Roll::default());
        let look_period = look_period(window);
        let member = |(number, config): (usize, NodeConfig)| {
            let name = config.name().clone();
            let time = Arc::new(ServerTime::new(name.clone(), clock.clone()));
            let endpoint = Arc::new(Endpoint {
                number,
                name,
                // A new server is to be connected to and probed within the period, too.
                addresses: Addresses::new(config.config(), look_period / 2),
                node: config,
                roll: roll.clone(),
                prefix: prefix.clone(),
                time: time.clone(),
                timeout,
                look_period,
                window,
                disowned: Arc::default(),
                last_used: Default::default(),
                opened: Default::default(),
                warned: Mutex::default(),
            });
            let lane = Arc::new(Lane::new(time));
            Member { endpoint, lane }
        };
        let nodes: Vec<Member> = configs.into_iter().enumerate().map(member).collect();
        let members = Arc::new(Members::new(
            nodes.clone(),
            &prefix,
            longest_ttl,
            look_period,
            part,
            clock.clone(),
            closed.clone(),
        ));
        let stop = CancellationToken::new();
        runtime.spawn(stop.clone().run_until_cancelled_owned(members.clone().keep()));
        let stop_all = Arc::new(stop.clone().drop_guard());
        let start = |Member { endpoint, lane }: Member| {
            let name = endpoint.name.clone();
            let kept = keeper::keep(endpoint.clone(), lane.clone(), members.clone());
            let (announcements, heard) = Announcements::new(endpoint);
            let ended = Ended(lane.clone());
            runtime.spawn(stop.clone().run_until_cancelled_owned(async move {
                let _ended = ended;
                kept.await;
            }));
            runtime.spawn(stop.clone().run_until_cancelled_owned(heard));
            Arc::new(RedisNode {
                name,
                lane,
                members: members.clone(),
                announcements,
                _stop: stop_all.clone(),
            })
        };
        nodes.into_iter().map(start).collect()
    }

    /// The node's state, and notice of its changes.
    pub(crate) fn watch(&self) -> watch::Receiver<NodeState> {
        self.lane.status().subscribe()
    }
}

/// The longest time between two looks of a client at its nodes: well within the guard window.
fn look_period(window: Duration) -> Duration {
    (window / 6).clamp(SHORTEST_LOOK, LONGEST_LOOK)
}

/// Nobody keeps the lane connected any more: the node was dropped, or its runtime has ended.
struct Ended(Arc<Lane>);

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
        self.lane.call(request, budget)
    }

    fn connection(&self) -> Option<u64> {
        Some(self.lane.connection())
    }

    fn epoch(&self) -> u64 {
        self.lane.epoch()
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

    fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        self.lane.left_out(guard)
    }

    fn overdue(&self) -> Option<BoxFuture<'static, ()>> {
        let lane = self.lane.clone();
        let mut changes = lane.status().subscribe();
        lane.is_overdue().then(|| {
            let looked = async move { while lane.is_overdue() && changes.changed().await.is_ok() {} };
            looked.boxed()
        })
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
