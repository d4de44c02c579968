//! One connection to one server: opened, probed, used until it breaks, never reconnected.
//!
//! The client library can reconnect by itself, but then commands wait for it, are sent again, or reach a server that
//! was not probed (A3, A8, R1). So each connection is a client of its own without a reconnect policy; `keeper.rs` makes
//! the next one.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::types::Value;
use fred::types::config::Config;
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;

use super::address::Addresses;
use super::call::{Manner, SHORTEST_PATIENCE};
use super::connection::{self, Task, command, disconnected, refusal};
use super::memory::{self, Identity};
use super::probe::{self, Facts, Roll};
use super::script::Target;
use super::time::ServerTime;
use super::{fault, script};
use crate::mutex::lock;
use crate::node::{Fault, Reply};
use crate::protocol::memory::{MemoryId, Process, Record};

/// A connection that has passed the probe.
pub(super) struct Link {
    /// Another one for each connection to the node.
    serial: u64,
    client: Client,
    /// The address that its server's name was resolved to. `None` if it has no name.
    peer: Option<SocketAddr>,
    /// The script's digest on this server; `None` if the server would not load it ahead.
    digest: Option<Value>,
    time: Arc<ServerTime>,
    /// What the server's clock showed when it was probed, and between which times of ours.
    first_time: (i64, i64, i64),
    disowned: Arc<Mutex<Option<MemoryId>>>,
    process: Process,
    target: Target,
    warnings: Vec<String>,
    /// A call has been answered.
    served: AtomicBool,
    /// A call was not answered in time (T4).
    suspect: Notify,
    /// The server is not what it was.
    changed: CancellationToken,
}

/// What a command is answered with, sooner or later. Sent when it is first polled.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send>>;

/// Who connects to what.
pub(super) struct Endpoint {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) config: Config,
    pub(super) addresses: Addresses,
    pub(super) roll: Arc<Roll>,
    /// In front of all keys.
    pub(super) prefix: Arc<str>,
    pub(super) timeout: Duration,
    pub(super) time: Arc<ServerTime>,
    /// How often addresses and records are looked at. Everybody has done so within this time.
    pub(super) look_period: Duration,
    /// The restart guard's.
    pub(super) window: Duration,
    /// The memory that the server at this node was found not to be, although its record says so.
    pub(super) disowned: Arc<Mutex<Option<MemoryId>>>,
    /// The memory that this client used last at the address, and when it looked at it last (microseconds of our clock).
    pub(super) last_used: Mutex<Option<(MemoryId, i64)>>,
    /// How many connections have passed the probe.
    pub(super) opened: AtomicU64,
}

impl Endpoint {
    /// Records that the memory has just been looked at.
    pub(super) fn record_use(&self, memory: MemoryId) {
        *lock(&self.last_used) = Some((memory, self.time.now()));
    }

    /// Whether the record of another memory is older than the last look at the memory that was used before it, by more than a
    /// look period. `age` and `now` are in microseconds.
    ///
    /// The guard of a new memory begins when clients leave the old one. That of such an older memory began too early: the
    /// address has led back, and locks were granted elsewhere meanwhile.
    pub(super) fn is_outdated(&self, memory: MemoryId, age: i64, now: i64) -> bool {
        let period = i64::try_from(self.look_period.as_micros()).unwrap_or(i64::MAX);
        let last = *lock(&self.last_used);
        last.is_some_and(|(used, at)| used != memory && age > now.saturating_sub(at).saturating_add(period))
    }

    pub(super) fn database(&self) -> u8 {
        self.config.database.unwrap_or(0)
    }
}

impl Link {
    /// Connects and probes (R1). Dropping the future closes what it had opened.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<(Link, Task), Fault> {
        let opening = async { Link::open_without_limit(endpoint, endpoint.addresses.find().await?).await };
        in_time(endpoint, opening).await
    }

    /// The same at one of these addresses.
    pub(super) async fn open_at(endpoint: &Endpoint, found: Vec<SocketAddr>) -> Result<(Link, Task), Fault> {
        in_time(endpoint, Link::open_without_limit(endpoint, found)).await
    }

    async fn open_without_limit(endpoint: &Endpoint, found: Vec<SocketAddr>) -> Result<(Link, Task), Fault> {
        let peer = endpoint.addresses.choose(found).await?;
        let client = connection::client(&endpoint.config, peer, endpoint.timeout);
        let mut task = connection::start(&client).await?;
        tokio::select! {
            biased; // a refusal says more than the end that comes with it
            link = Link::probe(client, peer, endpoint) => Ok((link?, task)),
            // The library leaves a call alone that is made while the connection ends.
            fault = task.ended() => Err(fault),
        }
    }

    /// Asks a server that has just been connected to what there is to know before it may vote (R1, R2).
    async fn probe(client: Client, peer: Option<SocketAddr>, endpoint: &Endpoint) -> Result<Link, Fault> {
        let info: String = client
            .custom(command("INFO"), Vec::<Value>::new())
            .await
            .map_err(|error| refusal(&error))?;
        let facts = Facts::read(&info).map_err(Fault::Unfit)?;
        if info.lines().any(|line| line.trim_end() == "loading:1") {
            return Err(Fault::Loading);
        }
        let Identity {
            record,
            shortcoming,
            time,
        } = memory::identify(&client, endpoint, &facts).await?;
        let target = Target::new(
            &endpoint.prefix,
            endpoint.database(),
            record,
            endpoint.look_period,
        );
        let mut warnings = facts.warnings();
        warnings.extend(shortcoming);
        warnings.extend(speechless(&client, endpoint).await);

        // Refused where the user may not: then the text is sent with each call.
        let load = vec![
            Value::from_static_str("LOAD"),
            Value::from_static_str(script::LOCK),
        ];
        let digest: Option<Value> = client.custom(command("SCRIPT"), load).await.ok();
        // It goes out with every call, so it had better be one.
        let digest = digest.filter(|digest| digest.as_str().is_some_and(|text| is_digest(&text)));
        let link = Link {
            serial: endpoint.opened.fetch_add(1, Relaxed),
            client,
            peer,
            digest,
            time: endpoint.time.clone(),
            first_time: time,
            disowned: endpoint.disowned.clone(),
            process: facts.process,
            target,
            warnings,
            served: AtomicBool::new(false),
            suspect: Notify::new(),
            changed: CancellationToken::new(),
        };
        // R1: all requests are scripts. This one has none in it.
        if let Err(fault) = link.eval(std::iter::empty(), Manner::Digest).await {
            return Err(fault::of_first_script(fault));
        }
        tracing::debug!(
            node = &*endpoint.name,
            version = &*facts.version,
            "node connected"
        );
        // A young memory is told by `left_out` for as long as it is one.
        let youth = link
            .too_early(Some(endpoint.window))
            .map(|fault| fault.to_string());
        for warning in link.warnings.iter().chain(&youth) {
            tracing::warn!(node = &*endpoint.name, "{warning}");
        }
        Ok(link)
    }

    /// Takes the server for the node from now on, in place of the one that `before` leads to.
    ///
    /// Fails if another node of the set has come to be that server.
    pub(super) fn adopt(&self, endpoint: &Endpoint, before: Option<&Link>) -> Result<(), Fault> {
        let entered = endpoint.roll.enter(
            endpoint.number,
            &endpoint.name,
            &self.process.run_id,
            self.memory().id,
        );
        entered.map_err(Fault::Unfit)?;
        endpoint.record_use(self.memory().id);
        let (sent, received, time) = self.first_time;
        // Nothing that was known of the clock of another server holds.
        match before.is_some_and(|before| before.process.run_id != self.process.run_id) {
            true => self.time.start_over(sent, received, time),
            false => self.time.observe_between(sent, received, time),
        }
        Ok(())
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The memory that it leads to.
    pub(super) fn memory(&self) -> &Record {
        &self.target.record
    }

    /// Why the memory counts for nothing that wants this guard, as far as the node's clock is known.
    pub(super) fn too_early(&self, guard: Option<Duration>) -> Option<Fault> {
        let now = i64::try_from(self.time.estimate()?).unwrap_or(i64::MAX);
        self.target.too_early(self.target.locks_from(guard), now)
    }

    /// Runs the script by its digest; by its text if the server does not know it.
    pub(super) fn eval<'a>(
        &self,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
        manner: Manner,
    ) -> Pending {
        let (name, script) = match &self.digest {
            Some(digest) if manner == Manner::Digest => ("EVALSHA", digest.clone()),
            _ => ("EVAL", Value::from_static_str(script::LOCK)),
        };
        self.send(name, script::arguments(script, &self.target, items))
    }

    /// What the script has answered to the requests that were sent with it at `sent`.
    pub(super) fn replies<'a>(
        &self,
        sent: i64,
        answer: Value,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let answer = script::read(answer, &self.target, items).inspect_err(|_| self.doubt_order())?;
        if let Some(node_time) = answer.node_time {
            self.time.observe(sent, node_time);
        }
        answer
            .replies
            .iter()
            .for_each(|reply| self.consider(reply.as_ref().err()));
        Ok(answer.replies)
    }

    /// An answer of the wrong shape may be that to another request. Replies have no names: once one too many or too few has come,
    /// all that follow would be taken for the wrong ones, for as long as the connection lasts.
    fn doubt_order(&self) {
        self.changed.cancel();
    }

    /// One command. There is no time-out: the lane watches the connection (T4), and ends what is in flight with it. For what
    /// is queued then, the library leaves unanswered.
    fn send(&self, name: &'static str, args: Vec<Value>) -> Pending {
        let client = self.client.clone();
        // Without tokio's budget for a task: if that is used up, a first poll would send nothing, and a deletion could
        // overtake this.
        Box::pin(unconstrained(async move {
            let answer = client.custom::<Value, Value>(command(name), args).await;
            answer.map_err(|error| fault::from_error(&error))
        }))
    }

    /// Whatever comes in answer to a call.
    pub(super) fn look_at(&self, answer: Result<Value, Fault>) -> Result<Value, Fault> {
        match &answer {
            Ok(_) => self.served.store(true, Relaxed),
            Err(fault) => self.consider(Some(fault)),
        }
        answer
    }

    /// T4: a call was not answered in time.
    pub(super) fn suspect(&self) {
        self.suspect.notify_one();
    }

    /// A server that says what it only says when its role, its rights or its memory have changed is probed anew (R1, M1).
    pub(super) fn consider(&self, fault: Option<&Fault>) {
        if matches!(
            fault,
            Some(
                Fault::OtherMemory
                    | Fault::ReadOnly
                    | Fault::MasterDown
                    | Fault::ClusterDown
                    | Fault::Unfit(_)
                    | Fault::Auth { .. }
            )
        ) {
            self.changed.cancel();
        }
    }

    /// Looks whether the process still is what it was (R1): nothing else tells that it was a replica for a moment.
    pub(super) async fn look(&self) -> Result<(), Fault> {
        let section = vec![Value::from_static_str("replication")];
        let info: Result<String, _> = self.client.custom(command("INFO"), section).await;
        let info = info.map_err(|error| refusal(&error))?;
        if !probe::is_still(&info, &self.process) {
            self.changed.cancel();
        }
        Ok(())
    }

    /// Runs one of the small scripts, by its text.
    pub(super) async fn run(
        &self,
        script: &'static str,
        keys: &[String],
        args: Vec<Value>,
    ) -> Result<Value, Fault> {
        self.look_at(connection::run(&self.client, script, keys, args).await)
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Whether the memory counts for renewals, as far as the node's clock is known.
    pub(super) fn counts(&self) -> bool {
        let now = self.time.estimate().and_then(|now| i64::try_from(now).ok());
        now.is_some_and(|now| now >= self.target.renewals_from(true))
    }

    /// The server has an older state than the memory that it was taken for: it gets a memory of its own.
    pub(super) fn disown(&self) {
        *lock(&self.disowned) = Some(self.memory().id);
        self.changed.cancel();
    }

    /// Whether it has been of use.
    pub(super) fn has_served(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Waits until this connection should be given up: the server hangs (T4), or is no longer what was probed (R1).
    pub(super) async fn failed(&self) -> Fault {
        loop {
            tokio::select! {
                () = self.changed.cancelled() => return disconnected("to be probed again".into()),
                () = self.suspect.notified() => {}
            }
            // A call was not answered in time. Replies come in order, so if this is answered, the server was late, or we
            // were late to look.
            let ping = self.client.custom::<Value, Value>(command("PING"), Vec::new());
            if !matches!(tokio::time::timeout(SHORTEST_PATIENCE, ping).await, Ok(Ok(_))) {
                return disconnected("no answer for several budgets in a row".into());
            }
        }
    }
}

async fn in_time<T>(
    endpoint: &Endpoint,
    opening: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(endpoint.timeout, opening)
        .await
        .unwrap_or_else(|_| {
            let limit = humantime::format_duration(endpoint.timeout);
            let reason = format!("no answer to the first commands within {limit}");
            Err(disconnected(reason.into()))
        })
}

/// The warning for a user who may not announce releases (W2).
async fn speechless(client: &Client, endpoint: &Endpoint) -> Option<String> {
    let prefix = &endpoint.prefix;
    let channel = script::channel(prefix, endpoint.database());
    let nobody = vec![Value::from(channel), Value::from_static_str("")];
    let said: Result<Value, Error> = client.custom(command("PUBLISH"), nobody).await;
    said.is_err().then(|| {
        format!(
            "releases cannot be announced, so those who wait elsewhere find out late \
             (the user needs +publish and &{prefix}*)"
        )
    })
}

/// SHA-1 in hexadecimal.
fn is_digest(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
