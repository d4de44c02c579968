//! Builds a manager: its nodes and defaults.
//!
//! `quorum_wait.rs` waits for a quorum when it connects; `check_up.rs` gathers what the tool's doctor says.

pub(crate) mod check_up;
mod quorum_wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;
use crate::error::{AcquireError, ConnectError, LossReason};
use crate::node::owner::OwnerTokens;
use crate::node::{ClientId, Fault, LocalClient, Node};
use crate::options::{self, Backoff, ConfigError, Drift, LockOptions, MAX_CONNECT_TIMEOUT, MAX_NODES, Wait};
use crate::redis::{
    NodeConfig, Participation, RedisNode, Registrations, Settings, registrations, this_process,
};
use crate::redlock::Redlock;
use crate::sys::clock::{self, Clock, Slept};
use crate::sys::metrics;
use crate::sys::runtime::Runtime;
use quorum_wait::wait_for_quorum;

/// The time to find other nodes misconfigured, once a quorum is up.
const GRACE: Duration = Duration::from_millis(250);

/// Builds a [`Redlock`]. The defaults are safe.
///
/// ```no_run
/// # async fn example() -> Result<(), quorlock::ConnectError> {
/// use quorlock::Redlock;
/// use std::time::Duration;
///
/// let redlock = Redlock::builder()
///     .urls(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .ttl(Duration::from_secs(10))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is connected before connect"]
pub struct RedlockBuilder {
    nodes: Vec<Result<NodeConfig, ConfigError>>,
    prefix: String,
    connect_timeout: Duration,
    participation: Participation,
    defaults: LockOptions,
    slept: Slept,
    name: Option<String>,
    is_anonymous: bool,
    #[cfg(feature = "simulation")]
    owners: Option<crate::context::Owners>,
}

impl Redlock {
    /// Connects to the nodes at `urls`, with the safe defaults of [`builder`](Self::builder).
    ///
    /// Returns when a quorum of nodes is up. The others join later.
    ///
    /// # Errors
    /// See [`RedlockBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect<U>(urls: impl IntoIterator<Item = U>) -> Result<Redlock, ConnectError>
    where
        U: AsRef<str>,
    {
        Redlock::builder().urls(urls).connect().await
    }

    /// Returns a builder, with safe defaults.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::new()
    }
}

impl RedlockBuilder {
    pub(crate) fn new() -> Self {
        RedlockBuilder {
            nodes: Vec::new(),
            prefix: "quorlock:".to_owned(),
            connect_timeout: Duration::from_secs(5),
            participation: Participation::Full,
            defaults: LockOptions::default(),
            slept: clock::machine(),
            name: None,
            is_anonymous: false,
            #[cfg(feature = "simulation")]
            owners: None,
        }
    }

    /// Adds a node by its URL. [`NodeConfig`] describes the forms of URLs.
    pub fn url(self, url: impl AsRef<str>) -> Self {
        self.urls([url])
    }

    /// Adds nodes by their URLs.
    pub fn urls<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let read = |url: U| NodeConfig::from_url(url.as_ref()).and_then(NodeConfig::check);
        self.nodes.extend(urls.into_iter().map(read));
        self
    }

    /// Checks the name of a resource before connecting. [`acquire`](crate::LockRequest::acquire) makes the same check.
    ///
    /// # Errors
    /// [`ConfigError::EmptyResource`], [`ConfigError::LongResource`], [`ConfigError::ReservedName`].
    pub fn check_resource(&self, resource: &str) -> Result<(), ConfigError> {
        options::key(&self.prefix, resource).map(drop)
    }

    /// Adds a node.
    pub fn node(mut self, node: NodeConfig) -> Self {
        self.nodes.push(node.check());
        self
    }

    /// Sets the prefix of all keys on the nodes. Default `quorlock:`; at most [`MAX_PREFIX_BYTES`](crate::MAX_PREFIX_BYTES)
    /// bytes.
    ///
    /// With an empty prefix, locks are shared with other Redlock clients that use the resource's name as the key. Their values
    /// are plain strings, too, and released by compare-and-delete.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the name by which operators and other clients know this one, instead of the executable's: at most
    /// [`MAX_NAME_BYTES`](crate::MAX_NAME_BYTES) bytes.
    ///
    /// The name, the host's name and the process id are kept on the nodes while this client is connected, and for as long as
    /// its locks may live. They are in the errors of clients that find a lock held ([`AcquireError::Held`](crate::AcquireError)).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Does not tell the nodes who this client is: neither name, host nor process id. Owner tokens still contain the time, and a
    /// random number for each client.
    pub fn anonymous(mut self) -> Self {
        self.is_anonymous = true;
        self
    }

    /// Sets how long [`connect`](Self::connect) waits for a quorum, and how long one attempt to connect to a node may take.
    /// Default 5 s. An attempt takes less if the node has been connected to faster before.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the default [`ttl`](crate::LockRequest::ttl), instead of 30 s (or the [`guard_window`](Self::guard_window), if that is
    /// shorter).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = Some(ttl);
        self
    }

    /// Sets the default [`node_budget`](crate::LockRequest::node_budget), instead of a tenth of the TTL.
    pub fn node_budget(mut self, budget: Duration) -> Self {
        self.defaults.node_budget = Some(budget);
        self
    }

    /// Sets how far clocks may drift apart. Default 1 % of the TTL and 2 ms.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.defaults.drift = drift;
        self
    }

    /// Sets the default [`within`](crate::LockRequest::within), instead of 10 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.defaults.wait = Wait::Within(limit);
        self
    }

    /// Sets the delays between attempts. Default 10 ms to 500 ms.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.defaults.backoff = backoff;
        self
    }

    /// Sets the default [`watchdog`](crate::LockRequest::watchdog), instead of on.
    pub fn watchdog(mut self, on: bool) -> Self {
        self.defaults.watchdog = on;
        self
    }

    /// Sets the default [`max_hold`](crate::LockRequest::max_hold), instead of none.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.defaults.max_hold = Some(most);
        self
    }

    /// Sets the default [`fencing`](crate::LockRequest::fencing), instead of on.
    pub fn fencing(mut self, on: bool) -> Self {
        self.defaults.fencing = on;
        self
    }

    /// Sets the default [`counter_retention`](crate::LockRequest::counter_retention), instead of 24 hours or ten TTLs.
    pub fn counter_retention(mut self, retention: Duration) -> Self {
        self.defaults.retention = Some(retention);
        self
    }

    /// Sets whether nodes that may have forgotten locks are left out: new, emptied, replaced or put back ones. On by default.
    ///
    /// Such a node could help a second client to a lock. So it gives no locks ([`Fault::Restarted`]) until all forgotten locks
    /// have expired: for the [`guard_window`](Self::guard_window), and up to 5 s more. A new set of nodes gives its first locks
    /// that long after the first client has connected.
    ///
    /// A node that restarts within that time with all its data (`appendonly yes`, `appendfsync always`) confirms leases at
    /// once, and gives new locks after up to 5 s.
    ///
    /// If this is off, every node votes at once, also while other clients use the server that was at its address before. That
    /// is safe only if no lock is held while nodes restart or move.
    pub fn restart_guard(mut self, on: bool) -> Self {
        self.defaults.restart_guard = on;
        self
    }

    /// Sets how long the [restart guard](Self::restart_guard) leaves a node out; a sixth of it (up to 5 s) is added. Default
    /// 30 s, or the TTL of this builder if that is longer. All clients of a prefix should use the same window.
    ///
    /// It must be at least the longest TTL that *any* client uses on these nodes. Longer TTLs are refused
    /// ([`ConfigError::TtlBeyondGuard`](crate::ConfigError::TtlBeyondGuard)), also if the guard is off.
    pub fn guard_window(mut self, window: Duration) -> Self {
        self.defaults.guard_window = window;
        self
    }

    /// Sets a function that returns how long this machine has been suspended since some fixed point. The value must never fall.
    ///
    /// Leases end by a clock that goes on while the machine is suspended. On Linux, the library reads that clock itself. On
    /// other systems (macOS, for instance) it cannot. Tests simulate a suspension with this function.
    pub fn suspended_time(mut self, slept: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.slept = Arc::new(slept);
        self
    }

    /// Sets the source of owner tokens for [`custom_nodes`](Self::custom_nodes), for simulations that can be repeated. It must
    /// not return a number twice.
    ///
    /// For real nodes, this setting has no effect.
    #[cfg(feature = "simulation")]
    pub fn simulated_owner_tokens(mut self, source: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        self.owners = Some(Arc::new(move || crate::node::OwnerToken::from(source())));
        self
    }

    /// Connects to look at nodes and locks, and to break locks: no locks can be taken. The list of nodes is not
    /// registered, so it cannot conflict with other lists. A node without a record gets one, which starts its guard.
    pub fn observe(mut self) -> Self {
        self.participation = Participation::Observer;
        self
    }

    /// Takes locks whatever list of nodes other clients use: for measurements. Locks that other clients may want are not safe.
    #[doc(hidden)]
    pub fn unregistered(mut self) -> Self {
        self.participation = Participation::Alone;
        self
    }

    /// Asks the nodes which clients use them, and with which lists of nodes. Registers nothing itself.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting or URL is invalid. Nodes that cannot be asked are in [`Registrations::faults`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn registrations(self) -> Result<Registrations, ConfigError> {
        options::check_prefix(&self.prefix)?;
        let configs = checked(self.nodes)?;
        if let Err(unfit) = Runtime::current_with_io() {
            let reason: Arc<str> = ConnectError::from(unfit).to_string().into();
            let mut none = Registrations::default();
            for config in configs {
                let reason = reason.clone();
                none.faults
                    .push((config.name().clone(), Fault::Disconnected { reason }));
            }
            return Ok(none);
        }
        Ok(registrations(configs, &self.prefix, self.connect_timeout).await)
    }

    /// Connects to all nodes. Returns when a quorum is up and every node has answered, or a quarter of a second after the
    /// quorum. Nodes that are down join when they come up.
    ///
    /// If a node is down, `connect` first gives other clients 2.5 s (by default) to object to this client's list of nodes, but
    /// never waits beyond its timeout.
    ///
    /// # Errors
    /// * [`ConnectError::Config`]: a setting or URL is invalid.
    /// * [`ConnectError::Misconfigured`]: a node may not vote; it is a replica, for instance.
    /// * [`ConnectError::NoQuorum`]: too few nodes came up in time.
    /// * [`ConnectError::OtherNodes`]: other clients use another list of nodes.
    /// * [`ConnectError::NoRuntime`], [`ConnectError::IncompleteRuntime`]: there is no tokio runtime, or it lacks timers, or
    ///   input and output. (tokio reports a lack by a panic, which is caught.)
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect(self) -> Result<Redlock, ConnectError> {
        match self.connect_without_quorum().await? {
            (redlock, None) => Ok(redlock),
            (_, Some(error)) => Err(error),
        }
    }

    /// Connects as [`connect`](Self::connect) does, but keeps the nodes that are up if there is no quorum, or if a node may not vote.
    /// Also returns the error that `connect` would give.
    ///
    /// # Errors
    /// [`ConnectError::Config`], [`ConnectError::NoRuntime`], [`ConnectError::IncompleteRuntime`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    #[doc(hidden)]
    pub async fn connect_without_quorum(self) -> Result<(Redlock, Option<ConnectError>), ConnectError> {
        self.open(GRACE).await
    }

    /// Connects as [`connect_without_quorum`](Self::connect_without_quorum) does. Once a quorum is up, the other nodes have
    /// `grace` to answer.
    async fn open(self, grace: Duration) -> Result<(Redlock, Option<ConnectError>), ConnectError> {
        metrics::describe(&LossReason::KINDS, &AcquireError::OF_NODES);
        let runtime = Runtime::current_with_io()?;
        let timeout = self.connect_timeout;
        if timeout.is_zero() || timeout > MAX_CONNECT_TIMEOUT {
            return Err(ConfigError::ConnectTimeout { timeout }.into());
        }
        let defaults = self.defaults.of_manager();
        let settings = defaults.settings()?;
        options::check_prefix(&self.prefix)?;
        options::check_name(self.name.as_deref())?;
        let configs = checked(self.nodes)?;
        for (number, config) in configs.iter().enumerate() {
            if configs[..number]
                .iter()
                .any(|earlier| earlier.name() == config.name())
            {
                return Err(ConfigError::DuplicateNode {
                    name: config.name().clone(),
                }
                .into());
            }
        }
        let client = LocalClient {
            id: ClientId::random(),
            info: (!self.is_anonymous).then(|| this_process(self.name)),
        };
        let context = Context::new(
            runtime,
            Clock::new(self.slept),
            configs.len(),
            client.id,
            owners(client.id),
        );
        let node_settings = Settings {
            prefix: (*self.prefix).into(),
            timeout,
            window: defaults.guard_window,
            longest_ttl: defaults.longest_ttl,
            guard: settings.guard,
            participation: self.participation,
            client,
        };
        let nodes = RedisNode::set(
            configs,
            &node_settings,
            &context.runtime,
            &context.clock,
            &context.closed,
        );
        let waited = wait_for_quorum(
            &nodes,
            timeout,
            grace,
            settings.guard,
            self.participation,
            &context.runtime,
        )
        .await;
        let nodes = nodes.into_iter().map(|node| node as Arc<dyn Node>).collect();
        let redlock = Redlock::from_parts(nodes, self.prefix, defaults, context);
        Ok((redlock, waited.err()))
    }

    /// Uses your own implementations of [`Node`], for instance simulated ones, instead of the nodes added before.
    ///
    /// # Errors
    /// [`ConnectError::Config`], [`ConnectError::NoRuntime`], [`ConnectError::IncompleteRuntime`].
    #[cfg(feature = "simulation")]
    pub fn custom_nodes(self, nodes: Vec<Arc<dyn Node>>) -> Result<Redlock, ConnectError> {
        let runtime = Runtime::current()?;
        let defaults = self.defaults.of_manager();
        defaults.settings()?;
        options::check_prefix(&self.prefix)?;
        check_count(nodes.len())?;
        let client = ClientId::random();
        let owners = self.owners.unwrap_or_else(|| owners(client));
        let context = Context::new(runtime, Clock::new(self.slept), nodes.len(), client, owners);
        Ok(Redlock::from_parts(nodes.into(), self.prefix, defaults, context))
    }
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder")
            .field("nodes", &self.nodes)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("defaults", &self.defaults)
            .finish()
    }
}

/// Returns the source of a client's owner tokens.
fn owners(client: ClientId) -> crate::context::Owners {
    let tokens = OwnerTokens::new(client);
    Arc::new(move || tokens.next())
}

/// Returns the nodes, if all are valid and there are as many as there may be.
fn checked(nodes: Vec<Result<NodeConfig, ConfigError>>) -> Result<Vec<NodeConfig>, ConfigError> {
    let configs = nodes.into_iter().collect::<Result<Vec<_>, _>>()?;
    check_count(configs.len())?;
    Ok(configs)
}

fn check_count(nodes: usize) -> Result<(), ConfigError> {
    match nodes {
        0 => Err(ConfigError::NoNodes),
        1..=MAX_NODES => Ok(()),
        _ => Err(ConfigError::TooManyNodes { nodes }),
    }
}
