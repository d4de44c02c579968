//! A connection for locks that has passed the probe. It is used until it breaks; `reconnect.rs` opens the next one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::types::config::Config;
use tokio::time::timeout;
use tokio_util::bytes::BytesMut;
use tokio_util::sync::CancellationToken;

use super::connection::{Reader, Setup, Writer};
use super::endpoint::Endpoint;
use super::memory::{self, Identity};
use super::patience::too_late;
use super::probe::{self, Facts};
use super::resp::{self, Value};
use super::script::Target;
use super::time::ServerTime;
use super::{fault, script};
use crate::doctor::{Finding, Info, settings};
use crate::node::{Fault, Reply};
use crate::protocol::memory::{MemoryId, Process, Record};
use crate::sys::mutex::lock;

pub(super) struct Link {
    /// The connection's number. A connection that takes the place of one to the same process takes over that one's number (M8).
    serial: u64,
    /// The address that its server's name was resolved to. `None` if it has no name.
    peer: Option<SocketAddr>,
    /// The script's digest on this server; `None` if the server would not load it ahead.
    digest: Option<String>,
    time: Arc<ServerTime>,
    /// Our times before and after the server's clock was read, and its reading.
    first_time: (i64, i64, i64),
    rejected_memory: Arc<Mutex<Option<MemoryId>>>,
    process: Process,
    target: Target,
    warnings: Vec<String>,
    served: AtomicBool,
    changed: CancellationToken,
}

/// A connection that has passed the probe, with its two halves.
pub(super) struct Opened {
    pub(super) link: Link,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// How long its credentials are valid. `None` if they do not expire.
    pub(super) valid_for: Option<Duration>,
}

impl Link {
    /// Connects and probes (R1). Dropping the future closes what it had opened.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Opened, Fault> {
        let opening = async {
            let (peer, config, valid_for) = resolve(endpoint, endpoint.addresses.find().await?).await?;
            let opened = Link::connect(endpoint, peer, &config, valid_for);
            endpoint.patience.wait_for(opened).await
        };
        in_time(endpoint, opening).await
    }

    /// Connects to one of these addresses and probes.
    pub(super) async fn open_at(endpoint: &Endpoint, found: Vec<SocketAddr>) -> Result<Opened, Fault> {
        let opening = async {
            let (peer, config, valid_for) = resolve(endpoint, found).await?;
            Link::connect(endpoint, peer, &config, valid_for).await
        };
        in_time(endpoint, opening).await
    }

    async fn connect(
        endpoint: &Endpoint,
        peer: Option<SocketAddr>,
        config: &Config,
        valid_for: Option<Duration>,
    ) -> Result<Opened, Fault> {
        let mut setup = Setup::open(config, peer, &endpoint.client_name).await?;
        let link = Link::probe(&mut setup, peer, endpoint).await?;
        let (reader, writer) = setup.into_parts();
        Ok(Opened {
            link,
            reader,
            writer,
            valid_for,
        })
    }

    /// Probes a server that has just been connected to: whether it may vote, and which memory it is (R1, R2).
    async fn probe(setup: &mut Setup, peer: Option<SocketAddr>, endpoint: &Endpoint) -> Result<Link, Fault> {
        let info = setup.ask(resp::command(&["INFO"])).await?;
        let info = Info::read(info.as_str().unwrap_or_default());
        let facts = Facts::read(&info).map_err(Fault::Unfit)?;
        if info.text("loading") == Some("1") {
            return Err(Fault::Loading);
        }
        let Identity {
            record,
            shortcoming,
            time,
        } = memory::identify(setup, endpoint, &info, &facts).await?;
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
        let mut findings = Vec::from_iter(settings::eviction(&info));
        findings.extend(shortcoming);
        if !matches!(published, Some(Ok(_))) {
            findings.push(settings::cannot_publish(&endpoint.prefix));
        }
        // Without the right to load the script, each call carries its text.
        let digest = match replies.next() {
            // Checked, because the digest becomes part of every call.
            Some(Ok(digest)) => digest.as_str().filter(|text| is_digest(text)).map(str::to_owned),
            _ => None,
        };
        let link = Link {
            serial: endpoint.opened.fetch_add(1, Relaxed),
            peer,
            digest,
            time: endpoint.time.clone(),
            first_time: time,
            rejected_memory: endpoint.rejected_memory.clone(),
            process: facts.process,
            target,
            warnings: findings.iter().map(Finding::to_string).collect(),
            served: AtomicBool::new(false),
            changed: CancellationToken::new(),
        };
        // A call without requests changes nothing. It shows whether the server runs the script for this user (R1).
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

    /// Makes this server the node's, in place of that of `before`. Fails if another node of the set has the same server.
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
        // Another server has another clock.
        match before.is_some_and(|before| before.process.run_id != self.process.run_id) {
            true => self.time.start_over(sent, received, time),
            false => self.time.observe_between(sent, received, time),
        }
        Ok(())
    }

    /// Takes over the number of `before` if both lead to the same process: the registration has stood there all the time (M8).
    pub(super) fn inherit_serial(&mut self, before: &Link) {
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

    /// Returns the record of the memory that the connection leads to.
    pub(super) fn memory(&self) -> &Record {
        &self.target.record
    }

    /// Returns the restart guard's objection to a lock. `None` if there is none, or if the node's clock is not known.
    pub(super) fn too_early(&self, guard: Option<Duration>) -> Option<Fault> {
        let now = i64::try_from(self.time.estimate()?).unwrap_or(i64::MAX);
        self.target.too_early(self.target.locks_from(guard), now)
    }

    /// Appends a call of the script: by its digest, or by its text if `by_text` is set or the digest is unknown.
    pub(super) fn encode<'a>(
        &self,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
        by_text: bool,
        to: &mut BytesMut,
    ) {
        let digest = self.digest.as_deref().filter(|_| !by_text);
        script::encode(digest, &self.target, items, to);
    }

    /// Decodes the script's answer to the call that was sent at `sent`. Learns the node's clock from it.
    pub(super) fn replies<'a>(
        &self,
        sent: i64,
        answer: Value,
        items: impl ExactSizeIterator<Item = script::Item<'a>> + Clone,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let answer =
            script::read(answer, &self.target, items).inspect_err(|_| self.mark_replies_unmatched())?;
        if let Some(node_time) = answer.node_time {
            self.time.observe(sent, node_time);
        }
        answer
            .replies
            .iter()
            .for_each(|reply| self.reprobe_if_changed(reply.as_ref().err()));
        Ok(answer.replies)
    }

    /// Has the connection replaced: an answer of the wrong shape may belong to another request, and so may all later ones.
    fn mark_replies_unmatched(&self) {
        self.changed.cancel();
    }

    /// Returns the reply to a request for locks; an error as the fault that it stands for.
    pub(super) fn examine(&self, reply: Value) -> Result<Value, Fault> {
        let reply = reply.into_result();
        match &reply {
            Ok(_) => self.served.store(true, Relaxed),
            Err(fault) => self.reprobe_if_changed(Some(fault)),
        }
        reply
    }

    /// Has the server probed again if the fault shows that its role, its rights or its memory have changed (R1, M1).
    pub(super) fn reprobe_if_changed(&self, fault: Option<&Fault>) {
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

    /// Has the server probed again if `INFO replication` shows another role or history: it may have been a replica (R1).
    pub(super) fn check_role(&self, info: &str) {
        if !probe::is_still(info, &self.process) {
            self.changed.cancel();
        }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Returns whether the memory is old enough to count for renewals. `false` if the node's clock is not known.
    pub(super) fn counts(&self) -> bool {
        let now = self.time.estimate().and_then(|now| i64::try_from(now).ok());
        now.is_some_and(|now| now >= self.target.renewals_from(true))
    }

    /// Rejects the memory in the server's record: its data or its clock was put back. The next probe gives it a new memory.
    pub(super) fn reject_memory(&self) {
        *lock(&self.rejected_memory) = Some(self.memory().id);
        self.changed.cancel();
    }

    /// Returns whether a request for a lock has been answered.
    pub(super) fn has_served(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Waits until the server must be probed again (R1).
    pub(super) async fn changed(&self) -> Fault {
        self.changed.cancelled().await;
        fault::disconnected("the server may have changed, so it is probed again".into())
    }
}

/// Chooses one of these addresses, and gets the credentials.
async fn resolve(
    endpoint: &Endpoint,
    found: Vec<SocketAddr>,
) -> Result<(Option<SocketAddr>, Config, Option<Duration>), Fault> {
    let peer = endpoint.addresses.choose(found).await?;
    let (config, valid_for) = endpoint.node.current().await?;
    Ok((peer, config, valid_for))
}

/// Limits all of an opening: also name servers and providers of credentials may be slow.
async fn in_time<T>(
    endpoint: &Endpoint,
    opening: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    timeout(endpoint.timeout, opening)
        .await
        .unwrap_or_else(|_| Err(too_late(endpoint.timeout)))
}

fn is_digest(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
