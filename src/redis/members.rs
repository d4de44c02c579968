//! Tells the nodes which nodes this client uses, and keeps to it that others use the same (M3 to M6, M8).
//!
//! A list of nodes is registered on each node that is connected, under a lease, unless another list is registered there. So
//! two clients whose lists differ meet on any node that both reach, and the later one takes no locks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Part;
use super::admission::Admission;
use super::client;
use super::lane::Lane;
use super::link::{Endpoint, Link};
use super::registrar::{Act, Other, Question, Registered, Registrar};
use crate::clock::{Clock, Moment};
use crate::mutex::lock;
use crate::node::{Fault, ListConflict, NodeState};
use crate::protocol::memory::MemoryId;
use crate::protocol::view::{Difference, View};

/// How long the first registration waits for nodes that have neither connected nor failed to.
const GATHER: Duration = Duration::from_millis(100);
const SHORTEST_PATIENCE: Duration = Duration::from_millis(250);
/// Within this, a client that can reach a node is connected to it again, however often that failed before.
const SHORTEST_SETTLING: Duration = Duration::from_millis(2_500);
/// For so much of a period after a look, something counts. The rest is for clocks that tick differently.
const FRESH_PERCENT: u32 = 98;
/// How often a list is judged again in one go because another client has registered one meanwhile.
const MOST_TRIES: u32 = 4;

/// The nodes of one set, and what other clients take for it.
pub(super) struct Members {
    nodes: Vec<Member>,
    registrar: Registrar,
    window: Duration,
    period: Duration,
    part: Part,
    clock: Clock,
    /// No new locks are taken any more.
    closed: CancellationToken,
    changed: Notify,
    longest_ttl_millis: AtomicU64,
    state: Mutex<State>,
}

/// One node of the set.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) lane: Arc<Lane>,
}

impl Member {
    fn address(&self) -> &Arc<str> {
        &self.endpoint.name
    }
}

#[derive(Default)]
struct State {
    /// The memory of each node: the one seen last.
    ids: Vec<Option<MemoryId>>,
    /// The memory of each node whose votes count.
    admitted: Vec<Option<MemoryId>>,
    /// Registered lists that are no conflict with this client's, as they are written.
    compatible: HashSet<String>,
    /// Another list in use, and until when it is: no look that has not met it changes that.
    conflict: Option<(Arc<ListConflict>, Moment)>,
    /// When each node has answered last.
    heard: Vec<Option<Moment>>,
    /// Since when each node has been registered on over the connection of now.
    linked: Vec<Option<(Weak<Link>, Moment)>>,
    /// The memory of each node on which other clients have had their time to be met, over the connection of now.
    settled: Vec<Option<MemoryId>>,
    /// What other clients have in place of each node's memory.
    doubts: Vec<Option<Doubt>>,
    /// What each node should know: when this client told it of itself, and until when it remembers that. By the node's clock.
    told: Vec<Option<Told>>,
    /// When the last registration began.
    started: Option<Moment>,
}

/// Other clients use, or have used, another memory in place of this one.
#[derive(Clone, Copy)]
struct Doubt {
    memory: MemoryId,
    /// Until when a lease may live that is held there.
    replaced_until: Moment,
    /// Until when locks may be taken there.
    in_use_until: Moment,
}

/// When a memory was told of this client.
#[derive(Clone, Copy)]
struct Told {
    memory: MemoryId,
    at_millis: i64,
    until_millis: i64,
}

/// A node's answer.
struct Answer {
    number: usize,
    link: Arc<Link>,
    registered: Registered,
}

impl State {
    /// Since when the node has been registered on over this connection. Over a new one, others have to be met anew.
    fn linked_since(&mut self, number: usize, link: &Arc<Link>, now: Moment) -> Moment {
        match &self.linked[number] {
            Some((known, since)) if known.as_ptr() == Arc::as_ptr(link) => *since,
            _ => {
                self.linked[number] = Some((Arc::downgrade(link), now));
                self.settled[number] = None;
                now
            }
        }
    }
}

impl Members {
    pub(super) fn new(
        nodes: Vec<Member>,
        prefix: &str,
        window: Duration,
        period: Duration,
        part: Part,
        clock: Clock,
        closed: CancellationToken,
    ) -> Members {
        let count = nodes.len();
        Members {
            nodes,
            registrar: Registrar::new(prefix),
            window,
            period,
            part,
            clock,
            closed,
            changed: Notify::new(),
            longest_ttl_millis: AtomicU64::new(0),
            state: Mutex::new(State {
                ids: vec![None; count],
                admitted: vec![None; count],
                heard: vec![None; count],
                linked: vec![None; count],
                settled: vec![None; count],
                doubts: vec![None; count],
                told: vec![None; count],
                ..State::default()
            }),
        }
    }

    /// A node was connected, or could not be.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// A lock with this TTL is about to be taken: registrations outlive it. Fails where none may be taken.
    pub(super) fn needs(&self, ttl: Duration) -> Result<(), Fault> {
        if self.part == Part::Observer {
            return Err(Fault::Disconnected {
                reason: "connected only to observe: takes no locks".into(),
            });
        }
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if self.longest_ttl_millis.load(Relaxed) < millis {
            self.longest_ttl_millis.fetch_max(millis, Relaxed);
            if ttl > self.window {
                self.changed();
            }
        }
        Ok(())
    }

    /// Registers, again and again, until it is dropped.
    pub(super) async fn keep(self: Arc<Self>) {
        self.gather().await;
        let mut jumps = self.clock.jumps();
        loop {
            let started = Instant::now();
            // Leases that are held go on after that, and others have to know.
            let takes_part = !self.closed.is_cancelled() || self.clock.has_leases();
            let unsettled = match takes_part {
                true => self.register().await,
                false => None,
            };
            // Often enough that a look may fail or take long before the last one is too old.
            let pause = self.period.mul_f64(0.25 + fastrand::f64() / 4.0);
            // Once the others have had their time, it takes another look before locks are given.
            let pause = unsettled.map_or(pause, |left| pause.min(left + Duration::from_millis(1)));
            tokio::select! {
                () = self.changed.notified() => {}
                // The machine was suspended, so the last look is older than timers know.
                _ = jumps.changed() => {}
                () = sleep_until(started + pause) => {}
            }
        }
    }

    /// Waits until each node has connected or failed to, but not for long.
    async fn gather(&self) {
        let settled = |Member { lane, .. }: &Member| {
            lane.link().is_some() || matches!(*lane.status().borrow(), NodeState::Down(_))
        };
        let mut end = None;
        while !self.nodes.iter().all(settled) {
            if self.nodes.iter().any(|node| node.lane.link().is_some()) {
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

    /// Registers the list as it is now on all nodes that are connected, and admits them, or not. Returns how long until the last
    /// unsettled node settles; `None` if all have.
    async fn register(&self) -> Option<Duration> {
        let started = self.clock.now();
        let links: Vec<(usize, Arc<Link>)> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(number, node)| Some((number, node.lane.link()?)))
            .collect();
        let (view, is_new) = self.view(&links);
        // If this process was stopped for longer than a look period, names are resolved first.
        let stopped = lock(&self.state)
            .started
            .replace(started)
            .is_some_and(|last| started.since(last) > self.period);
        // A list that takes no part yet must not get in the way of those that do: others are looked for first.
        let mut act = if is_new || !self.registers() {
            Act::Look
        } else {
            Act::Add
        };
        let mut asked = links.clone();
        let mut answers = Vec::new();
        for _ in 0..MOST_TRIES {
            let asking = asked
                .iter()
                .map(|(number, link)| self.ask(*number, link, &view, act, stopped));
            answers = join_all(asking).await.into_iter().flatten().collect();
            // A node that has not answered is not waited for again.
            asked.retain(|(number, _)| answers.iter().any(|answer: &Answer| answer.number == *number));
            let in_conflict = self.judge(&view, &answers);
            let told = |registered: &Registered| registered.added || registered.is_full;
            let all_added = answers.iter().all(|answer: &Answer| told(&answer.registered));
            act = match in_conflict {
                // Those who look at this node later must know that a lease may be held.
                true if self.may_hold() && act != Act::Keep => Act::Keep,
                false if !all_added && self.registers() => Act::Add,
                _ => break,
            };
        }
        let complete = self.is_complete(&links, &answers);
        self.admit(started, &view, &answers, complete)
    }

    /// Whether every node has been heard whose votes count at the moment. A node that fails for longer than a period has none.
    fn is_complete(&self, links: &[(usize, Arc<Link>)], answers: &[Answer]) -> bool {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        answers
            .iter()
            .for_each(|answer| state.heard[answer.number] = Some(now));
        links.iter().all(|(number, link)| {
            let counts = state.admitted[*number] == Some(link.memory().id);
            let heard = state.heard[*number];
            !counts || heard == Some(now) || heard.is_none_or(|heard| now.since(heard) > self.period)
        })
    }

    fn registers(&self) -> bool {
        self.part == Part::Full
    }

    /// Whether leases may be held that other clients have to know of.
    fn may_hold(&self) -> bool {
        self.clock.has_leases() && lock(&self.state).admitted.iter().any(Option::is_some)
    }

    /// What this client uses at the moment, and whether others must be looked for first: it was never admitted, or is in
    /// conflict.
    fn view(&self, links: &[(usize, Arc<Link>)]) -> (View, bool) {
        let mut state = lock(&self.state);
        for (number, link) in links {
            state.ids[*number] = Some(link.memory().id);
        }
        let addresses = self.nodes.iter().map(|node| node.address().clone());
        let view = View::new(state.ids.iter().copied().zip(addresses));
        (
            view,
            state.conflict.is_some() || state.admitted.iter().all(Option::is_none),
        )
    }

    /// Judges the lists of others: whether one of them is a conflict.
    fn judge(&self, view: &View, answers: &[Answer]) -> bool {
        let mut compatible = HashSet::new();
        let mut conflict: Option<ListConflict> = None;
        for other in answers.iter().flat_map(|answer| &answer.registered.others) {
            match other.text.parse::<View>() {
                Ok(parsed) if self.part != Part::Alone && view.compare(&parsed) == Difference::OtherNodes => {
                    if conflict
                        .as_ref()
                        .is_none_or(|known| known.remaining < other.remaining)
                    {
                        conflict = Some(ListConflict {
                            ours: view.addresses(),
                            theirs: parsed.addresses(),
                            user: client::readable(&other.user).into(),
                            remaining: other.remaining,
                        });
                    }
                }
                // Damaged entries are nobody's.
                Ok(_) | Err(()) => {
                    compatible.insert(other.text.clone());
                }
            }
        }
        let mut state = lock(&self.state);
        let now = self.clock.now();
        // A list stays on a node until it ends. One that is not met any more has not ended for that.
        let known = state.conflict.take().filter(|(_, until)| now < *until);
        let had_any = known.is_some();
        let met = conflict.map(|conflict| (now + conflict.remaining, Arc::new(conflict)));
        let met = met.map(|(until, conflict)| (conflict, until));
        let conflict = match (met, known) {
            (Some(met), Some(known)) if met.1 < known.1 => Some(known),
            (met, known) => met.or(known),
        };
        match (&conflict, had_any) {
            (Some((conflict, _)), false) if self.registers() => tracing::warn!(%conflict, "no new locks"),
            (None, true) if self.registers() => {
                tracing::warn!("the other list of nodes is no longer in use: locks are taken again");
            }
            _ => {}
        }
        state.compatible = compatible;
        state.conflict = conflict;
        state.conflict.is_some()
    }

    /// Decides about each node that has answered. Returns as [`register`](Self::register).
    fn admit(&self, started: Moment, view: &View, answers: &[Answer], complete: bool) -> Option<Duration> {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let conflict = state.conflict.as_ref().map(|(conflict, _)| conflict.clone());
        // Nobody can have missed a client that is registered everywhere, on memories that others were told of as well.
        let everywhere =
            answers.len() == self.nodes.len() && answers.iter().all(|answer| answer.link.counts());
        let mut unsettled: Option<Duration> = None;
        for Answer {
            number,
            link,
            registered,
        } in answers
        {
            // Lists came and went meanwhile: the next look will tell.
            if !registered.added && !registered.is_full && conflict.is_none() && self.registers() {
                continue;
            }
            let node = &self.nodes[*number];
            let id = link.memory().id;
            if registered.is_full && state.admitted[*number] != Some(id) {
                node.lane.not_admitted(&Fault::OutOfMemory);
                continue;
            }
            // A memory that is new to this client counts once all others know of it whose votes count.
            if conflict.is_none() && complete && (registered.added || !self.registers()) {
                state.admitted[*number] = Some(id);
            }
            let since = state.linked_since(*number, link, now);
            let mut admission = Admission {
                registered: state.admitted[*number] == Some(id),
                // Others take it that nothing counts any more so long after a look.
                fresh_until: Some(started + self.period * FRESH_PERCENT / 100),
                conflict: conflict.clone(),
                ..Admission::pending()
            };
            let standing = registered.standing.min(now.since(since));
            let left = self.settling().saturating_sub(standing);
            if everywhere || left.is_zero() || !self.registers() {
                state.settled[*number] = Some(id);
            }
            if state.settled[*number] != Some(id) {
                unsettled = unsettled.max(Some(left));
                // Until the next look.
                admission.settles_at = Some(now + left + self.period);
            }
            state.doubts[*number] = state.doubts[*number].filter(|doubt| doubt.memory == id);
            let others = || answers.iter().flat_map(|answer| &answer.registered.others);
            for other in others().filter(|other| self.replaces(view, other, node.address())) {
                let doubt = state.doubts[*number].get_or_insert(Doubt {
                    memory: id,
                    replaced_until: now,
                    in_use_until: now,
                });
                doubt.replaced_until = doubt.replaced_until.max(now + other.remaining);
                doubt.in_use_until = doubt.in_use_until.max(now + other.fresh);
            }
            // A list that this look has not met counts until its end.
            if let Some(doubt) = state.doubts[*number] {
                admission.replaced_until = Some(doubt.replaced_until);
                admission.in_use_until = Some(doubt.in_use_until);
            }
            node.lane.admit(id, admission);
        }
        unsettled
    }

    /// How long a node may take to answer before it is left for the next look.
    fn patience(&self) -> Duration {
        SHORTEST_PATIENCE.max(self.period / 4)
    }

    /// Whether another list has another memory for the node at this address.
    fn replaces(&self, view: &View, other: &Other, address: &Arc<str>) -> bool {
        let parsed = other.text.parse::<View>();
        matches!(
            parsed.map(|parsed| view.compare(&parsed)),
            Ok(Difference::SameNodes { replaced }) if replaced.contains(address)
        )
    }

    /// How long other clients get to connect to a node that is up, and to meet this one there.
    fn settling(&self) -> Duration {
        SHORTEST_SETTLING.max(self.period / 2)
    }

    /// Asks one node. `None` if it gave no answer.
    async fn ask(
        &self,
        number: usize,
        link: &Arc<Link>,
        view: &View,
        act: Act,
        stopped: bool,
    ) -> Option<Answer> {
        let node = &self.nodes[number];
        let longest = Duration::from_millis(self.longest_ttl_millis.load(Relaxed));
        let lease = self.window.max(longest) + self.period;
        let question = Question {
            act,
            lease,
            fresh: self.period,
            view: view.to_string(),
            compatible: lock(&self.state).compatible.iter().cloned().collect(),
        };
        let asked = async {
            if stopped && !node.endpoint.addresses.lead_to(link.peer()).await {
                return Err(Fault::Disconnected {
                    reason: "its name leads elsewhere".into(),
                });
            }
            match self.registrar.register(link, &question).await {
                // A node that is full grants no locks to others either. Leases go on.
                Err(Fault::OutOfMemory) => {
                    let look = Question {
                        act: Act::Look,
                        ..question
                    };
                    let looked = self.registrar.register(link, &look).await;
                    looked.map(|registered| Registered {
                        is_full: true,
                        ..registered
                    })
                }
                outcome => outcome,
            }
        };
        let after = self.patience();
        let late = |_| Err(Fault::Timeout { after });
        let registered = match timeout(after, asked).await.unwrap_or_else(late) {
            Ok(registered) => registered,
            Err(fault) => {
                tracing::debug!(node = &**node.address(), %fault, "list of nodes not registered");
                node.lane.not_admitted(&fault);
                match fault {
                    // Nothing else may be sent over a connection that is idle.
                    Fault::Timeout { .. } => link.suspect(),
                    fault => link.consider(Some(&fault)),
                }
                return None;
            }
        };
        if link
            .memory()
            .is_from_after(registered.now_millis.saturating_mul(1_000))
        {
            tracing::info!(
                node = &**node.address(),
                "its clock was put back to before its record: begins anew"
            );
            link.disown();
            return None;
        }
        if !self.remembers(number, link, &registered, lease) {
            tracing::warn!(
                node = &**node.address(),
                "put back to an older state, or replaced by a copy: what it was told since is forgotten"
            );
            link.disown();
            return None;
        }
        self.nodes[number].endpoint.record_use(link.memory().id);
        Some(Answer {
            number,
            link: link.clone(),
            registered,
        })
    }

    /// Whether the node still knows what this client told it last. Keeps what it was told now.
    fn remembers(&self, number: usize, link: &Link, registered: &Registered, lease: Duration) -> bool {
        let mut state = lock(&self.state);
        let memory = link.memory().id;
        let known = state.told[number].filter(|told| told.memory == memory);
        let remembers = known.is_none_or(|told| {
            registered.told_millis >= told.at_millis || registered.now_millis >= told.until_millis
        });
        if registered.added {
            let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            state.told[number] = Some(Told {
                memory,
                at_millis: registered.now_millis,
                until_millis: registered.now_millis.saturating_add(lease),
            });
        }
        remembers
    }
}
