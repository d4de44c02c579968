//! Looks at all nodes again and again: registers this client's list of nodes there, and reads the lists of others (M3 to M6, M8).
//! `membership.rs` decides what follows.
//!
//! A list of nodes is registered on each node that is connected, under a lease, unless another list is registered there. So
//! two clients whose lists differ meet on any node that both reach, and the later one takes no locks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::endpoint::Endpoint;
use super::link::Link;
use super::membership::{Beginning, Decision, LookAnswer, Membership, Participation};
use super::pipeline::Pipeline;
use super::registrar::{Act, Registered, Registrar, Registration};
use super::settings::Settings;
use crate::node::{Fault, NodeState};
use crate::protocol::memory::MemoryId;
use crate::sys::clock::Clock;
use crate::sys::mutex::lock;

/// How long the first registration waits for other nodes after the first one has connected.
const GATHER: Duration = Duration::from_millis(100);
const SHORTEST_ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// Most times that lists are judged in one look. Another client may register one meanwhile.
const MOST_TRIES: u32 = 4;

/// The nodes of one set, and the registration of this client on them.
pub(super) struct Members {
    nodes: Vec<Member>,
    registrar: Registrar,
    longest_ttl: Duration,
    guard: Option<Duration>,
    period: Duration,
    participation: Participation,
    clock: Clock,
    /// Cancelled once the manager takes no new locks.
    closed: CancellationToken,
    changed: Notify,
    membership: Mutex<Membership>,
}

#[derive(Clone)]
pub(super) struct Member {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) pipeline: Arc<Pipeline>,
}

impl Member {
    fn address(&self) -> &Arc<str> {
        &self.endpoint.name
    }
}

impl Members {
    pub(super) fn new(
        nodes: Vec<Member>,
        settings: &Settings,
        period: Duration,
        clock: Clock,
        closed: CancellationToken,
    ) -> Members {
        let addresses = nodes.iter().map(|node| node.address().clone());
        let membership = Mutex::new(Membership::new(addresses, period, settings.participation));
        Members {
            nodes,
            registrar: Registrar::new(&settings.prefix, settings.client.clone()),
            longest_ttl: settings.longest_ttl,
            guard: settings.guard,
            period,
            participation: settings.participation,
            clock,
            closed,
            changed: Notify::new(),
            membership,
        }
    }

    /// Starts a look at once: a node was connected, or an attempt to connect failed.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    pub(super) fn only_observes(&self) -> bool {
        self.participation == Participation::Observer
    }

    /// Looks again and again, until dropped.
    pub(super) async fn keep(self: Arc<Self>) {
        self.gather().await;
        let mut jumps = self.clock.jumps();
        loop {
            let started = Instant::now();
            // After a shutdown, leases go on, and other clients must still know of this one.
            let takes_part = !self.closed.is_cancelled() || self.clock.has_leases();
            let unsettled = match takes_part {
                true => self.register().await,
                false => None,
            };
            let measure = |node: &Member| node.pipeline.measure(self.guard);
            self.nodes.iter().for_each(measure);
            // Two to four times in a period, so that one look may fail or take long.
            let pause = self.period.mul_f64(0.25 + fastrand::f64() / 4.0);
            // When the last unsettled node settles, another look is needed before it gives locks.
            let pause = unsettled.map_or(pause, |left| pause.min(left + Duration::from_millis(1)));
            tokio::select! {
                () = self.changed.notified() => {}
                // The machine was suspended, so the last look is older than the timers show.
                _ = jumps.changed() => {}
                () = sleep_until(started + pause) => {}
            }
        }
    }

    /// Waits until each node has connected or failed to, but not longer than `GATHER` after the first has.
    async fn gather(&self) {
        let settled = |Member { pipeline, .. }: &Member| {
            pipeline.link().is_some() || matches!(*pipeline.status().borrow(), NodeState::Down(_))
        };
        let mut end = None;
        while !self.nodes.iter().all(settled) {
            if self.nodes.iter().any(|node| node.pipeline.link().is_some()) {
                end = end.or(Some(Instant::now() + GATHER));
            }
            let over = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = over => return,
            }
        }
    }

    /// Registers the present list on all connected nodes, and decides whether their votes count. Returns how long it takes until
    /// the last unsettled node settles; `None` if all have.
    async fn register(&self) -> Option<Duration> {
        let started = self.clock.now();
        let links: Vec<(usize, Arc<Link>)> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(number, node)| Some((number, node.pipeline.link()?)))
            .collect();
        let connected: Vec<(usize, MemoryId)> =
            Vec::from_iter(links.iter().map(|(number, link)| (*number, link.memory().id)));
        let Beginning {
            view,
            is_new,
            was_stopped,
        } = lock(&self.membership).begin(started, connected.iter().copied());
        let registers = self.participation.registers();
        // A new client reads the other lists first, so that its own does not get in the way of clients that hold locks.
        let mut act = if is_new || !registers { Act::Look } else { Act::Add };
        let mut asked = links;
        let mut answers = Vec::new();
        for _ in 0..MOST_TRIES {
            let registration = Registration {
                act,
                lease: self.longest_ttl + self.period,
                fresh: self.period,
                view: view.to_string(),
                compatible: lock(&self.membership).compatible(),
                locks: self.clock.leases(),
            };
            let asking = asked
                .iter()
                .map(|(number, link)| self.ask(*number, link, &registration, was_stopped));
            answers = Vec::from_iter(join_all(asking).await.into_iter().flatten());
            // A node that has not answered is left for the next look.
            asked.retain(|(number, _)| answers.iter().any(|answer: &LookAnswer| answer.number == *number));
            let in_conflict = lock(&self.membership).judge(self.clock.now(), &view, &answers);
            let added_or_full = |registered: &Registered| registered.added || registered.is_full;
            let all_added = answers.iter().all(|answer| added_or_full(&answer.registered));
            act = match in_conflict {
                // Clients that look at this node later must know that a lease may be held.
                true if self.may_hold() && act != Act::Keep => Act::Keep,
                false if !all_added && registers => Act::Add,
                _ => break,
            };
        }
        let (decisions, unsettled) =
            lock(&self.membership).decide(started, self.clock.now(), &view, &connected, &answers);
        for (number, decision) in decisions {
            let pipeline = &self.nodes[number].pipeline;
            match decision {
                Decision::Admit(id, admission) => pipeline.admit(id, admission),
                Decision::Full => pipeline.not_admitted(&Fault::OutOfMemory),
            }
        }
        unsettled
    }

    /// Returns whether leases may be held that other clients must know of.
    fn may_hold(&self) -> bool {
        self.clock.has_leases() && lock(&self.membership).is_admitted_anywhere()
    }

    /// Returns how long a node may take to answer. After that, it is left for the next look.
    fn answer_timeout(&self) -> Duration {
        SHORTEST_ANSWER_TIMEOUT.max(self.period / 4)
    }

    /// Asks one node. `None` if it gave no answer.
    async fn ask(
        &self,
        number: usize,
        link: &Arc<Link>,
        registration: &Registration,
        was_stopped: bool,
    ) -> Option<LookAnswer> {
        let node = &self.nodes[number];
        let asked = async {
            if was_stopped && !node.endpoint.addresses.still_leads_to(link.peer()).await {
                return Err(Fault::Disconnected {
                    reason: "its name leads elsewhere".into(),
                });
            }
            match self.registrar.register(&node.pipeline, link, registration).await {
                // A node at its memory limit grants no locks to other clients either. Leases go on.
                Err(Fault::OutOfMemory) => {
                    let look = Registration {
                        act: Act::Look,
                        ..registration.clone()
                    };
                    let looked = self.registrar.register(&node.pipeline, link, &look).await;
                    looked.map(|registered| Registered {
                        is_full: true,
                        ..registered
                    })
                }
                outcome => outcome,
            }
        };
        let after = self.answer_timeout();
        let late = |_| Err(Fault::Timeout { after });
        let registered = match timeout(after, asked).await.unwrap_or_else(late) {
            Ok(registered) => registered,
            Err(fault) => {
                tracing::debug!(node = &**node.address(), %fault, "list of nodes not registered");
                node.pipeline.not_admitted(&fault);
                link.reprobe_if_changed(Some(&fault));
                return None;
            }
        };
        if link
            .memory()
            .is_from_after(registered.now_millis.saturating_mul(1_000))
        {
            tracing::info!(
                node = &**node.address(),
                "clock was put back to before the node's record was made: its memory begins anew"
            );
            link.reject_memory();
            return None;
        }
        let memory = link.memory().id;
        if !lock(&self.membership).remembers(number, memory, &registered, registration.lease) {
            tracing::warn!(
                node = &**node.address(),
                "put back to an older state, or replaced by a copy: may have forgotten locks, so its memory begins anew"
            );
            link.reject_memory();
            return None;
        }
        node.endpoint.record_use(memory);
        Some(LookAnswer {
            number,
            connection: link.serial(),
            memory,
            counts: link.counts(),
            registered,
        })
    }
}
