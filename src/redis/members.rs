//! Tells the nodes which nodes this client uses, and keeps to it that others use the same (M3 to M6, M8).
//!
//! A list of nodes is registered on each node that is connected, under a lease, unless another list is registered there. So
//! two clients whose lists differ meet on any node that both reach, and the later one takes no locks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::types::Value;
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Part;
use super::admission::Admission;
use super::client;
use super::lane::Lane;
use super::link::{Endpoint, Link};
use crate::clock::Clock;
use crate::mutex::lock;
use crate::node::{Fault, ListConflict, NodeState};
use crate::options::{CLIENT_SUFFIX, VIEWS_SUFFIX};
use crate::protocol::memory::{MemoryId, Record};
use crate::protocol::view::{Difference, View};

const VIEWS: &str = include_str!("views.lua");
const OTHER_MEMORY: i64 = -4;

/// How long the first registration waits for nodes that have neither connected nor failed to.
const GATHER: Duration = Duration::from_millis(100);
/// A node that does not answer a registration within this, or a quarter of a period, is registered with the next one.
const LONGEST_PATIENCE: Duration = Duration::from_secs(2);
/// How often a list is judged again in one go because another client has registered one meanwhile.
const MOST_TRIES: u32 = 4;

/// The nodes of one set, and what other clients take for it.
pub(super) struct Members {
    nodes: Vec<Member>,
    prefix: Arc<str>,
    /// The key under which this client tells what it is, and what that is.
    client_key: String,
    client: String,
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
    conflict: Option<Arc<ListConflict>>,
    /// What each node should know: when this client told it of itself, and until when it remembers that. By the node's clock.
    told: Vec<Option<Told>>,
    /// When the last registration began.
    started: Option<Instant>,
}

/// When a memory was told of this client.
#[derive(Clone, Copy)]
struct Told {
    memory: MemoryId,
    at_millis: i64,
    until_millis: i64,
}

/// What to do with this client's list on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Look,
    /// Unless an unknown list is there.
    Add,
    /// Whatever is there: leases are held.
    Keep,
}

/// A node's answer.
struct Answer {
    number: usize,
    link: Arc<Link>,
    registered: Registered,
}

/// What a node said.
struct Registered {
    added: bool,
    /// For how long a list has been there that is this client's, or no conflict with it.
    standing: Duration,
    /// When this client had told the node of itself before, and the node's time now; in milliseconds of its clock.
    told_millis: i64,
    now_millis: i64,
    others: Vec<Other>,
}

/// Another list in use.
struct Other {
    text: String,
    remaining: Duration,
    /// How long ago a client has confirmed that it uses it.
    confirmed: Duration,
    user: String,
}

impl Members {
    pub(super) fn new(
        nodes: Vec<Member>,
        prefix: Arc<str>,
        window: Duration,
        period: Duration,
        part: Part,
        clock: Clock,
        closed: CancellationToken,
    ) -> Members {
        let count = nodes.len();
        Members {
            nodes,
            client_key: format!("{prefix}{:016x}{CLIENT_SUFFIX}", fastrand::u64(..)),
            prefix,
            client: client::describe(),
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
        loop {
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
                () = sleep(pause) => {}
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
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = over => return,
            }
        }
    }

    /// Registers the list as it is now on all nodes that are connected, and admits them, or not. When nodes settle, if some
    /// have not.
    async fn register(&self) -> Option<Duration> {
        let started = Instant::now();
        let links: Vec<(usize, Arc<Link>)> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(number, node)| Some((number, node.lane.link()?)))
            .collect();
        let (view, is_new) = self.view(&links);
        // After a stop of this process, names may have moved: they come first.
        let stopped = lock(&self.state)
            .started
            .replace(started)
            .is_some_and(|last| started.saturating_duration_since(last) > self.period);
        // A list that takes no part yet must not get in the way of those that do: others are looked for first.
        let mut act = if is_new || !self.registers() {
            Act::Look
        } else {
            Act::Add
        };
        let mut answers = Vec::new();
        for _ in 0..MOST_TRIES {
            let asked = links
                .iter()
                .map(|(number, link)| self.ask(*number, link, &view, act, stopped));
            answers = join_all(asked).await.into_iter().flatten().collect();
            let in_conflict = self.judge(&view, &answers);
            let all_added = answers.iter().all(|answer: &Answer| answer.registered.added);
            act = match in_conflict {
                // Those who look at this node later must know that a lease may be held.
                true if self.may_hold() && act != Act::Keep => Act::Keep,
                false if !all_added && self.registers() => Act::Add,
                _ => break,
            };
        }
        self.admit(started, &view, &answers)
    }

    fn registers(&self) -> bool {
        self.part == Part::Full
    }

    /// Whether leases may be held that other clients have to know of.
    fn may_hold(&self) -> bool {
        self.clock.has_leases() && lock(&self.state).admitted.iter().any(Option::is_some)
    }

    /// What this client uses at the moment, and whether it has not been admitted yet.
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
        match (&conflict, &state.conflict) {
            (Some(conflict), None) => tracing::warn!(%conflict, "no new locks"),
            (None, Some(_)) => {
                tracing::warn!("the other list of nodes is no longer in use: locks are taken again");
            }
            _ => {}
        }
        state.compatible = compatible;
        state.conflict = conflict.map(Arc::new);
        state.conflict.is_some()
    }

    /// Decides about each node that has answered. When nodes settle, if some have not.
    fn admit(&self, started: Instant, view: &View, answers: &[Answer]) -> Option<Duration> {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let conflict = state.conflict.clone();
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
            let node = &self.nodes[*number];
            let id = link.memory().id;
            if conflict.is_none() && (registered.added || !self.registers()) {
                state.admitted[*number] = Some(id);
            }
            let mut admission = Admission {
                registered: state.admitted[*number] == Some(id),
                // Others take it that nothing counts any more so long after a look.
                fresh_until: started + self.period,
                conflict: conflict.clone(),
                ..Admission::pending()
            };
            let left = self
                .settling()
                .checked_sub(registered.standing)
                .filter(|_| !everywhere);
            if let Some(left) = left.filter(|left| !left.is_zero() && self.registers()) {
                unsettled = unsettled.max(Some(left));
                // Until the next look.
                admission.settles_at = Some(now + left + self.period);
            }
            let others = || answers.iter().flat_map(|answer| &answer.registered.others);
            for other in others().filter(|other| self.replaces(view, other, node.address())) {
                admission.replaced_until = admission.replaced_until.max(Some(now + other.remaining));
                let fresh = self.period.saturating_sub(other.confirmed);
                admission.in_use_until = admission.in_use_until.max(Some(now + fresh));
            }
            node.lane.admit(id, admission);
        }
        unsettled
    }

    fn patience(&self) -> Duration {
        LONGEST_PATIENCE.min(self.period / 4)
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
        self.period / 2
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
        let longest = Duration::from_millis(self.longest_ttl_millis.load(Relaxed));
        let lease = self.window.max(longest) + self.period;
        let keys = [
            format!("{}{VIEWS_SUFFIX}", self.prefix),
            link.target().record_key.to_string(),
            self.client_key.clone(),
        ];
        let act = match act {
            Act::Look => "look",
            Act::Add => "add",
            Act::Keep => "keep",
        };
        let mut args = vec![
            Value::from(Record::stamp(link.memory().id)),
            Value::from_static_str(act),
            Value::Integer(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX)),
            Value::from(view.to_string()),
            Value::from(&*self.client),
        ];
        args.extend(
            lock(&self.state)
                .compatible
                .iter()
                .map(|text| Value::from(&**text)),
        );
        let addresses = &self.nodes[number].endpoint.addresses;
        let asked = async {
            if stopped && !addresses.lead_to(link.peer()).await {
                return Err(Fault::Disconnected {
                    reason: "its name leads elsewhere".into(),
                });
            }
            link.look().await?;
            link.run(VIEWS, &keys, args).await
        };
        let answer = match timeout(self.patience(), asked).await.ok()? {
            Ok(answer) => answer,
            Err(fault) => {
                tracing::debug!(node = &**self.nodes[number].address(), %fault, "list of nodes not registered");
                link.consider(Some(&fault));
                return None;
            }
        };
        if answer == Value::Integer(OTHER_MEMORY) {
            link.consider(Some(&Fault::OtherMemory));
            return None;
        }
        let registered = read(answer)?;
        if !self.remembers(number, link, &registered, lease) {
            tracing::warn!(
                node = &**self.nodes[number].address(),
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
}

impl Members {
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

fn read(answer: Value) -> Option<Registered> {
    let Value::Array(parts) = answer else { return None };
    let [added, standing, told, now, others @ ..] = &parts[..] else {
        return None;
    };
    let millis = |value: &Value| Some(Duration::from_millis(u64::try_from(value.as_i64()?).ok()?));
    let other = |parts: &[Value]| {
        Some(Other {
            text: parts[0].as_string()?,
            remaining: millis(&parts[1])?,
            confirmed: millis(&parts[2])?,
            user: parts[3].as_string()?,
        })
    };
    Some(Registered {
        added: added.as_i64()? == 1,
        standing: millis(standing)?,
        told_millis: told.as_i64()?,
        now_millis: now.as_i64()?,
        others: others.chunks_exact(4).map(other).collect::<Option<Vec<_>>>()?,
    })
}
