//! One connection to one server: opened, probed, used until it breaks, never reconnected.
//!
//! The client library can reconnect by itself, but then commands wait for it, are sent again, or reach a server that
//! was not probed (A3, A8, R1). So each connection is a client of its own without a reconnect policy; `keeper.rs` makes
//! the next one.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::socket2::TcpKeepalive;
use fred::types::config::{Config, ConnectionConfig, TcpConfig};
use fred::types::{ConnectHandle, CustomCommand, Value};
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::SHORTEST_PATIENCE;
use super::memory::{Memory, Predecessor};
use super::probe::{Facts, Roll};
use super::time::ServerTime;
use super::{fault, script};
use crate::node::{Action, Fault, Reply, Request};

/// F5: how far ahead of the node's clock a counter may be started, and by how much the start that its uptime says may be too
/// early; in microseconds.
const FORWARD: i64 = 2_000_000;

/// Finds out about peers that are gone while nothing is sent.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A connection that has passed the probe.
pub(super) struct Link {
    client: Client,
    /// The script's digest on this server; `None` if the server would not load it ahead.
    digest: Option<Value>,
    time: Arc<ServerTime>,
    oldest_counter: i64,
    run_id: Arc<str>,
    memory: Memory,
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

/// The client's own task, which owns the socket. Dropping the client alone would leak both.
pub(super) struct Task(ConnectHandle);

impl Task {
    /// Waits for the end of the connection, and says why it ended.
    pub(super) async fn ended(&mut self) -> Fault {
        disconnected(match (&mut self.0).await {
            Ok(Ok(())) => "connection closed".into(),
            Ok(Err(error)) => fault::reason(&error),
            Err(_) => "connection task ended".into(),
        })
    }
}

impl Drop for Task {
    /// Closes the socket with a reset (linger is zero), so that the kernel sends nothing of it later.
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Who connects to what.
pub(super) struct Endpoint {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) config: Config,
    pub(super) roll: Arc<Roll>,
    /// In front of all keys.
    pub(super) prefix: Arc<str>,
    pub(super) timeout: Duration,
    pub(super) time: Arc<ServerTime>,
}

impl Link {
    /// Connects and probes (R1). Dropping the future closes what it had opened.
    pub(super) async fn open(endpoint: &Endpoint, before: &Predecessor) -> Result<(Link, Task), Fault> {
        match tokio::time::timeout(endpoint.timeout, Link::open_without_limit(endpoint, before)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let limit = humantime::format_duration(endpoint.timeout);
                Err(disconnected(
                    format!("no answer to the first commands within {limit}").into(),
                ))
            }
        }
    }

    async fn open_without_limit(endpoint: &Endpoint, before: &Predecessor) -> Result<(Link, Task), Fault> {
        let client = Client::new(
            Config {
                fail_fast: true,
                ..endpoint.config.clone()
            },
            None,
            Some(connection_config(endpoint.timeout)),
            None,
        );
        let mut task = start(&client).await?;
        tokio::select! {
            biased; // a refusal says more than the end that comes with it
            link = Link::probe(client, endpoint, before) => Ok((link?, task)),
            // The library leaves a call alone that is made while the connection ends.
            fault = task.ended() => Err(fault),
        }
    }

    /// Asks a server that has just been connected to what there is to know before it may vote (R1, R2).
    async fn probe(client: Client, endpoint: &Endpoint, before: &Predecessor) -> Result<Link, Fault> {
        let info: String = client
            .custom(command("INFO"), Vec::<Value>::new())
            .await
            .map_err(|error| refusal(&error))?;
        let facts = Facts::read(&info).map_err(Fault::Unfit)?;
        if info.lines().any(|line| line.trim_end() == "loading:1") {
            return Err(Fault::Loading);
        }
        endpoint
            .roll
            .enter(endpoint.number, &endpoint.name, &facts.run_id)
            .map_err(Fault::Unfit)?;

        let sent = endpoint.time.now();
        let time: Value = client
            .custom(command("TIME"), Vec::<Value>::new())
            .await
            .map_err(|error| refusal(&error))?;
        let node_time = match &time {
            Value::Array(parts) if parts.len() == 2 => script::time_of(&parts[0], &parts[1])?,
            _ => {
                return Err(Fault::Protocol {
                    detail: "TIME is not two numbers".into(),
                });
            }
        };
        endpoint.time.observe(sent, node_time);
        let now = Instant::now();
        let memory = Memory::of(&client, &facts, &endpoint.prefix, node_time, now, before).await;
        let mut warnings = facts.warnings();
        warnings.extend(memory.shortcoming.clone());
        warnings.extend(speechless(&client, &endpoint.prefix).await);
        let youth = memory.youth(now);

        // Refused where the user may not: then the text is sent with each call.
        let load = vec![
            Value::from_static_str("LOAD"),
            Value::from_static_str(script::LOCK),
        ];
        let digest: Option<Value> = client.custom(command("SCRIPT"), load).await.ok();
        // It goes out with every call, so it had better be one.
        let digest = digest.filter(|digest| digest.as_str().is_some_and(|text| is_digest(&text)));
        let link = Link {
            client,
            digest,
            time: endpoint.time.clone(),
            oldest_counter: node_time
                .saturating_sub(facts.uptime_micros())
                .saturating_add(FORWARD),
            run_id: facts.run_id.clone(),
            memory,
            warnings,
            served: AtomicBool::new(false),
            suspect: Notify::new(),
            changed: CancellationToken::new(),
        };
        // R1: all requests are scripts. This one has none in it.
        if let Err(fault) = link.eval(std::iter::empty(), false).await {
            return Err(fault::of_first_script(fault));
        }
        tracing::debug!(
            node = &*endpoint.name,
            version = &*facts.version,
            "node connected"
        );
        // That it is young passes, and is told by `left_out` for as long as it is so.
        for warning in link.warnings.iter().chain(&youth) {
            tracing::warn!(node = &*endpoint.name, "{warning}");
        }
        Ok(link)
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The run of the server that it leads to.
    pub(super) fn run_id(&self) -> &Arc<str> {
        &self.run_id
    }

    /// Since when the node is this server, if it is known to have been another.
    pub(super) fn seen_since(&self) -> Option<Instant> {
        self.memory.seen_since
    }

    /// R2: the fault that it is to the server that it may have forgotten something it was told within the last `guard`.
    pub(super) fn forgot_within(&self, guard: Duration) -> Option<Fault> {
        self.memory
            .gap(guard, Instant::now())
            .map(|(ago, remaining)| Fault::Restarted { ago, remaining })
    }

    /// F5: what a counter that was started since the server was is at least.
    ///
    /// After a crash, a server may have lost the last of what it had acknowledged, and its counters with it.
    pub(super) fn oldest_counter(&self) -> i64 {
        self.oldest_counter
    }

    /// Runs the script by its digest; by its text if the server does not know it.
    pub(super) fn eval<'a>(
        &self,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
        by_text: bool,
    ) -> Pending {
        let (name, script) = match &self.digest {
            Some(digest) if !by_text => ("EVALSHA", digest.clone()),
            _ => ("EVAL", Value::from_static_str(script::LOCK)),
        };
        self.send(name, script::arguments(script, items))
    }

    /// What the script has answered to the requests that were sent with it at `sent`.
    pub(super) fn replies<'a>(
        &self,
        sent: i64,
        answer: Value,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let answer = script::read(answer, items).inspect_err(|_| self.doubt_order())?;
        if let Some(node_time) = answer.node_time {
            self.time.observe(sent, node_time);
        }
        answer
            .replies
            .iter()
            .for_each(|reply| self.consider(reply.as_ref().err()));
        Ok(answer.replies)
    }

    /// The plain `SET key token NX PX ttl` of an acquire.
    pub(super) fn set(&self, request: &Request) -> Pending {
        let ttl = match request.action {
            Action::Acquire { ttl, .. } => ttl,
            // Not plain.
            _ => Duration::ZERO,
        };
        let args = vec![
            Value::from(&*request.key),
            Value::from(request.owner.value()),
            Value::from_static_str("NX"),
            Value::from_static_str("PX"),
            Value::Integer(script::millis(ttl)),
        ];
        self.send("SET", args)
    }

    /// What that has answered.
    pub(super) fn was_set(&self, answer: &Value) -> Result<bool, Fault> {
        match answer {
            Value::Null => Ok(false),
            Value::String(ok) if &**ok == "OK" => Ok(true),
            other => {
                self.doubt_order();
                Err(Fault::Protocol {
                    detail: format!("{:?} for SET", other.kind()).into(),
                })
            }
        }
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

    /// R1: what only a server says that has changed its role or its rights calls for a new probe.
    fn consider(&self, fault: Option<&Fault>) {
        if matches!(
            fault,
            Some(
                Fault::ReadOnly
                    | Fault::MasterDown
                    | Fault::ClusterDown
                    | Fault::Unfit(_)
                    | Fault::Auth { .. }
            )
        ) {
            self.changed.cancel();
        }
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

/// Not the library's `init`: that leaves its task running when its future is dropped.
pub(super) async fn start(client: &Client) -> Result<Task, Fault> {
    let mut connected = pin!(client.wait_for_connect());
    // The first poll subscribes, before the task can report.
    let _ = futures_util::poll!(connected.as_mut());
    let task = Task(client.connect());
    connected.await.map_err(|error| refusal(&error))?;
    Ok(task)
}

pub(super) fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, None::<u16>, false)
}

pub(super) fn connection_config(timeout: Duration) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: timeout,
        internal_command_timeout: timeout,
        // A8: one attempt.
        max_command_attempts: 1,
        max_redirections: 0,
        // Its own names, its own bookkeeping: not ours to set on a server that others may share.
        auto_client_setname: false,
        // A bounded buffer leaks its counter on every overflow, until the client answers nothing any more.
        max_command_buffer_len: 0,
        tcp: TcpConfig {
            nodelay: Some(true),
            // A closed connection is reset: the kernel must not deliver leftovers when a partition heals.
            linger: Some(Duration::ZERO),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

/// W2: what it is called if the user may not announce releases.
async fn speechless(client: &Client, prefix: &str) -> Option<String> {
    let nobody = vec![Value::from(script::channel(prefix)), Value::from_static_str("")];
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

pub(super) fn refusal(error: &Error) -> Fault {
    match fault::from_error(error) {
        Fault::ConnectionLost { reason } => Fault::Disconnected { reason },
        named => named,
    }
}

pub(super) fn disconnected(reason: Arc<str>) -> Fault {
    Fault::Disconnected { reason }
}
