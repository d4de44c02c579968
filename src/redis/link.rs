//! A connection for locks that has passed the probe, and what the probe has found. It is used until it breaks, and never
//! reconnected: `reconnect.rs` opens the next one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::bytes::BytesMut;
use tokio_util::sync::CancellationToken;

use super::connection::{Reader, Setup, Writer};
use super::endpoint::Endpoint;
use super::memory::{self, Identity};
use super::probe::{self, Facts};
use super::resp::{self, Value};
use super::script::Target;
use super::time::ServerTime;
use super::{fault, script};
use crate::node::{Fault, Reply};
use crate::protocol::memory::{MemoryId, Process, Record};
use crate::sys::mutex::lock;

/// A connection that has passed the probe.
pub(super) struct Link {
    /// Another one for each connection to the node.
    serial: u64,
    /// The address that its server's name was resolved to. `None` if it has no name.
    peer: Option<SocketAddr>,
    /// The script's digest on this server; `None` if the server would not load it ahead.
    digest: Option<String>,
    time: Arc<ServerTime>,
    /// What the server's clock showed when it was probed, and between which times of ours.
    first_time: (i64, i64, i64),
    disowned: Arc<Mutex<Option<MemoryId>>>,
    process: Process,
    target: Target,
    warnings: Vec<String>,
    /// A request for a lock has been answered.
    served: AtomicBool,
    /// The server is not what it was.
    changed: CancellationToken,
}

/// A connection that has passed the probe, and its two ends.
pub(super) struct Opened {
    pub(super) link: Link,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// How long its credentials are valid; `None`: for as long as it lives.
    pub(super) valid_for: Option<Duration>,
}

impl Link {
    /// Connects and probes (R1). Dropping the future closes what it had opened.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Opened, Fault> {
        let opening = async { Link::open_without_limit(endpoint, endpoint.addresses.find().await?).await };
        in_time(endpoint, opening).await
    }

    /// Connects to one of these addresses and probes.
    pub(super) async fn open_at(endpoint: &Endpoint, found: Vec<SocketAddr>) -> Result<Opened, Fault> {
        in_time(endpoint, Link::open_without_limit(endpoint, found)).await
    }

    async fn open_without_limit(endpoint: &Endpoint, found: Vec<SocketAddr>) -> Result<Opened, Fault> {
        let peer = endpoint.addresses.choose(found).await?;
        let (config, valid_for) = endpoint.node.current().await?;
        let mut setup = Setup::open(&config, peer).await?;
        let link = Link::probe(&mut setup, peer, endpoint).await?;
        let (reader, writer) = setup.into_parts();
        Ok(Opened {
            link,
            reader,
            writer,
            valid_for,
        })
    }

    /// Asks a server that has just been connected to what there is to know before it may vote (R1, R2).
    async fn probe(setup: &mut Setup, peer: Option<SocketAddr>, endpoint: &Endpoint) -> Result<Link, Fault> {
        let info = setup.ask(resp::command(&["INFO"])).await?;
        let info = info.as_str().unwrap_or_default();
        let facts = Facts::read(info).map_err(Fault::Unfit)?;
        if info.lines().any(|line| line.trim_end() == "loading:1") {
            return Err(Fault::Loading);
        }
        let Identity {
            record,
            shortcoming,
            time,
        } = memory::identify(setup, endpoint, &facts).await?;
        let target = Target::new(
            &endpoint.prefix,
            endpoint.database(),
            record,
            endpoint.look_period,
        );
        let channel = script::channel(&endpoint.prefix, endpoint.database());
        let replies = setup.ask_all(vec![
            resp::command(&["PUBLISH", &channel, ""]),
            resp::command(&["SCRIPT", "LOAD", script::LOCK]),
        ]);
        let mut replies = replies.await?.into_iter();
        let published = replies.next();
        let mut warnings = facts.warnings();
        warnings.extend(shortcoming);
        if !matches!(published, Some(Ok(_))) {
            warnings.push(speechless(&endpoint.prefix));
        }
        // Without the right to load the script, each call carries its text.
        let digest = match replies.next() {
            // It becomes part of every call.
            Some(Ok(digest)) => digest.as_str().filter(|text| is_digest(text)).map(str::to_owned),
            _ => None,
        };
        let link = Link {
            serial: endpoint.opened.fetch_add(1, Relaxed),
            peer,
            digest,
            time: endpoint.time.clone(),
            first_time: time,
            disowned: endpoint.disowned.clone(),
            process: facts.process,
            target,
            warnings,
            served: AtomicBool::new(false),
            changed: CancellationToken::new(),
        };
        // R1: whether the server runs the script for this user. A call without requests changes nothing.
        let mut call = BytesMut::new();
        link.encode(std::iter::empty(), false, &mut call);
        setup.ask(call).await.map_err(fault::of_first_script)?;
        tracing::debug!(
            node = &*endpoint.name,
            version = &*facts.version,
            "node connected"
        );
        for warning in &link.warnings {
            endpoint.warn_once(warning.clone(), warning);
        }
        // Logged once; `left_out` reports it from then on.
        if let Some(fault) = link.too_early(Some(endpoint.window)) {
            endpoint.warn_once(format!("{:?}", link.memory().id), &fault);
        }
        Ok(link)
    }

    /// Takes the server for the node from now on, in place of the one that `before` leads to.
    ///
    /// Fails if another node of the set has come to be that server.
    pub(super) fn adopt(&self, endpoint: &Endpoint, before: Option<&Link>) -> Result<(), Fault> {
        let entered = endpoint.run_ids.enter(
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

    /// Counts as the same connection as `before`, if it leads to the same process: the other clients have had their time (M8).
    pub(super) fn take_the_place_of(&mut self, before: &Link) {
        if self.process == before.process && self.memory().id == before.memory().id {
            self.serial = before.serial;
        }
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

    /// Appends a call of the script: by its digest, unless the server does not know that.
    pub(super) fn encode<'a>(
        &self,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
        by_text: bool,
        to: &mut BytesMut,
    ) {
        let digest = self.digest.as_deref().filter(|_| !by_text);
        script::encode(digest, &self.target, items, to);
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

    /// Returns the reply to a request for locks; an error as the fault that it stands for.
    pub(super) fn examine(&self, reply: Value) -> Result<Value, Fault> {
        let reply = reply.into_result();
        match &reply {
            Ok(_) => self.served.store(true, Relaxed),
            Err(fault) => self.consider(Some(fault)),
        }
        reply
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

    /// Looks in the section "replication" of `INFO` whether the process still is what it was (R1): nothing else tells that it was
    /// a replica for a moment.
    pub(super) fn check_role(&self, info: &str) {
        if !probe::is_still(info, &self.process) {
            self.changed.cancel();
        }
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

    /// Waits until the server is no longer what was probed (R1).
    pub(super) async fn changed(&self) -> Fault {
        self.changed.cancelled().await;
        fault::disconnected("to be probed again".into())
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
            Err(fault::disconnected(reason.into()))
        })
}

/// The warning for a user who may not announce releases (W2).
fn speechless(prefix: &str) -> String {
    format!(
        "releases cannot be announced, so waiters in other processes notice them up to 16 s late \
         (the user needs +publish and &{prefix}*)"
    )
}

/// SHA-1 in hexadecimal.
fn is_digest(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
