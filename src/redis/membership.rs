//! One client's knowledge of its set, kept from look to look: the memory of each node, and the memories that other clients
//! use in its place (M3 to M6, M8).
//!
//! This file asks no node: `members.rs` does, and carries out the decisions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Admission;
use super::registrar::{Other, Registered};
use super::this_process;
use crate::node::ListConflict;
use crate::protocol::memory::MemoryId;
use crate::protocol::view::{Difference, View};
use crate::sys::clock::Moment;

/// Within this, a client that can reach a node is connected to it again, however often that failed before.
const SHORTEST_SETTLING: Duration = Duration::from_millis(2_500);
/// For so much of a period after a look, something counts. The rest is for clocks that tick differently.
const FRESH_PERCENT: u32 = 98;

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
    pub(super) fn registers(self) -> bool {
        self == Part::Full
    }
}

pub(super) struct Membership {
    period: Duration,
    part: Part,
    nodes: Vec<Node>,
    /// Registered lists that are no conflict with this client's, as they are written.
    compatible: HashSet<String>,
    /// Another list in use, and until when it is: no look that has not met it changes that.
    conflict: Option<(Arc<ListConflict>, Moment)>,
    /// When the last look began.
    started: Option<Moment>,
}

struct Node {
    address: Arc<str>,
    /// The memory seen last.
    id: Option<MemoryId>,
    /// The memory whose votes count.
    admitted: Option<MemoryId>,
    /// When the node has answered last.
    heard: Option<Moment>,
    /// The connection of now, and since when the node has been registered on over it.
    connection: Option<(u64, Moment)>,
    /// The memory on which other clients have had their time to be met, over the connection of now.
    settled: Option<MemoryId>,
    /// The doubt that other clients' lists cast on the memory.
    doubt: Option<Doubt>,
    /// The registration that the node should remember.
    told: Option<Told>,
}

/// Other clients use, or have used, another memory in place of this one. Times are of this client's clock.
#[derive(Clone, Copy)]
struct Doubt {
    memory: MemoryId,
    /// Until when a lease may live that is held there.
    replaced_until: Moment,
    /// Until when locks may be taken there.
    in_use_until: Moment,
}

/// When a memory was told of this client, and until when it remembers that, by the node's clock.
#[derive(Clone, Copy)]
struct Told {
    memory: MemoryId,
    at_millis: i64,
    until_millis: i64,
}

/// A node's answer to a look.
pub(super) struct LookAnswer {
    pub(super) number: usize,
    /// Another number for each connection to the node.
    pub(super) connection: u64,
    pub(super) memory: MemoryId,
    /// The memory is old enough to count for renewals.
    pub(super) counts: bool,
    pub(super) registered: Registered,
}

/// The client's state at the start of a look.
pub(super) struct Beginning {
    pub(super) view: View,
    /// Others must be looked for first: this client was never admitted, or is in conflict.
    pub(super) is_new: bool,
    /// This process was stopped for longer than a look period.
    pub(super) was_stopped: bool,
}

/// The consequence of a look for one node.
#[derive(Debug)]
pub(super) enum Decision {
    Admit(MemoryId, Admission),
    /// It is at its memory limit, so the others could not be told.
    Full,
}

impl Membership {
    pub(super) fn new(addresses: impl Iterator<Item = Arc<str>>, period: Duration, part: Part) -> Membership {
        let node = |address| Node {
            address,
            id: None,
            admitted: None,
            heard: None,
            connection: None,
            settled: None,
            doubt: None,
            told: None,
        };
        Membership {
            period,
            part,
            nodes: addresses.map(node).collect(),
            compatible: HashSet::new(),
            conflict: None,
            started: None,
        }
    }

    /// Begins a look at the nodes that are connected, each with the memory that its connection leads to.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        connected: impl Iterator<Item = (usize, MemoryId)>,
    ) -> Beginning {
        for (number, id) in connected {
            self.nodes[number].id = Some(id);
        }
        let last = self.started.replace(now);
        Beginning {
            view: View::new(self.nodes.iter().map(|node| (node.id, node.address.clone()))),
            is_new: self.conflict.is_some() || !self.is_admitted_anywhere(),
            was_stopped: last.is_some_and(|last| now.since(last) > self.period),
        }
    }

    /// Whether the votes of any node count.
    pub(super) fn is_admitted_anywhere(&self) -> bool {
        self.nodes.iter().any(|node| node.admitted.is_some())
    }

    /// Other lists that are no conflict with this client's.
    pub(super) fn compatible(&self) -> Vec<String> {
        self.compatible.iter().cloned().collect()
    }

    /// Judges the lists of others: whether one of them is a conflict.
    pub(super) fn judge(&mut self, now: Moment, view: &View, answers: &[LookAnswer]) -> bool {
        self.compatible.clear();
        let mut met: Option<(Arc<ListConflict>, Moment)> = None;
        for other in others(answers) {
            match &other.view {
                Some(theirs)
                    if self.part != Part::Alone && view.compare(theirs) == Difference::OtherNodes =>
                {
                    let until = now + other.remaining;
                    if met.as_ref().is_none_or(|(_, known)| *known < until) {
                        let conflict = ListConflict {
                            ours: view.addresses(),
                            theirs: theirs.addresses(),
                            user: this_process::readable(&other.user).into(),
                            remaining: other.remaining,
                        };
                        met = Some((Arc::new(conflict), until));
                    }
                }
                // Damaged entries are nobody's.
                _ => {
                    self.compatible.insert(other.text.clone());
                }
            }
        }
        // A list stays on a node until it ends. One that is not met any more has not ended for that.
        let known = self.conflict.take().filter(|(_, until)| now < *until);
        let had_any = known.is_some();
        self.conflict = match (met, known) {
            (Some(met), Some(known)) if met.1 < known.1 => Some(known),
            (met, known) => met.or(known),
        };
        match (&self.conflict, had_any) {
            (Some((conflict, _)), false) if self.part.registers() => {
                tracing::warn!(%conflict, "no new locks")
            }
            (None, true) if self.part.registers() => {
                tracing::warn!("the other list of nodes is no longer in use: locks are taken again");
            }
            _ => {}
        }
        self.conflict.is_some()
    }

    /// Decides about each node that has answered a look that began at `started`; `connected` were asked. Also returns how long it
    /// takes until the last unsettled node settles; `None` if all have.
    pub(super) fn decide(
        &mut self,
        started: Moment,
        now: Moment,
        view: &View,
        connected: &[(usize, MemoryId)],
        answers: &[LookAnswer],
    ) -> (Vec<(usize, Decision)>, Option<Duration>) {
        for answer in answers {
            self.nodes[answer.number].heard = Some(now);
        }
        let complete = self.is_complete(now, connected);
        let conflict = self.conflict.as_ref().map(|(conflict, _)| conflict.clone());
        // Nobody can have missed a client that is registered everywhere, on memories that others were told of as well.
        let everywhere = answers.len() == self.nodes.len() && answers.iter().all(|answer| answer.counts);
        let replacing: Vec<(&Other, Vec<Arc<str>>)> = others(answers)
            .filter_map(|other| match view.compare(other.view.as_ref()?) {
                Difference::SameNodes { replaced } => Some((other, replaced)),
                Difference::OtherNodes => None,
            })
            .collect();
        let (registers, settling) = (self.part.registers(), SHORTEST_SETTLING.max(self.period / 2));
        let mut unsettled: Option<Duration> = None;
        let mut decisions = Vec::with_capacity(answers.len());
        for answer in answers {
            let (registered, id) = (&answer.registered, answer.memory);
            let node = &mut self.nodes[answer.number];
            // Lists came and went meanwhile: the node stays what it is until the next look.
            if !registered.added && !registered.is_full && conflict.is_none() && registers {
                continue;
            }
            if registered.is_full && node.admitted != Some(id) {
                decisions.push((answer.number, Decision::Full));
                continue;
            }
            // A memory that is new to this client counts once all others know of it whose votes count.
            if conflict.is_none() && complete && (registered.added || !registers) {
                node.admitted = Some(id);
            }
            let standing = registered
                .standing
                .min(node.registered_for(answer.connection, now));
            let left = settling.saturating_sub(standing);
            if everywhere || left.is_zero() || !registers {
                node.settled = Some(id);
            }
            let is_settled = node.settled == Some(id);
            if !is_settled {
                unsettled = unsettled.max(Some(left));
            }
            for (other, replaced) in &replacing {
                if replaced.contains(&node.address) {
                    node.take_up(id, now + other.remaining, now + other.fresh);
                }
            }
            // A list that this look has not met counts until its end.
            let doubt = node.doubt.filter(|doubt| doubt.memory == id);
            let admission = Admission {
                registered: node.admitted == Some(id),
                // Others take it that nothing counts any more so long after a look.
                fresh_until: Some(started + self.period * FRESH_PERCENT / 100),
                conflict: conflict.clone(),
                // Until the next look.
                settles_at: (!is_settled).then(|| now + left + self.period),
                replaced_until: doubt.map(|doubt| doubt.replaced_until),
                in_use_until: doubt.map(|doubt| doubt.in_use_until),
            };
            decisions.push((answer.number, Decision::Admit(id, admission)));
        }
        (decisions, unsettled)
    }

    /// Whether every node has been heard at this look whose votes count at the moment. A node that fails for longer than a
    /// period has none.
    fn is_complete(&self, now: Moment, connected: &[(usize, MemoryId)]) -> bool {
        connected.iter().all(|(number, id)| {
            let node = &self.nodes[*number];
            let is_silent = |heard: Moment| now.since(heard) > self.period;
            node.admitted != Some(*id) || node.heard == Some(now) || node.heard.is_none_or(is_silent)
        })
    }

    /// Whether the node still knows what this client told it last. Keeps what it was told now, for `lease`.
    pub(super) fn remembers(
        &mut self,
        number: usize,
        memory: MemoryId,
        registered: &Registered,
        lease: Duration,
    ) -> bool {
        let node = &mut self.nodes[number];
        let known = node.told.filter(|told| told.memory == memory);
        let remembers = known.is_none_or(|told| {
            registered.told_millis >= told.at_millis || registered.now_millis >= told.until_millis
        });
        if registered.added {
            let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            node.told = Some(Told {
                memory,
                at_millis: registered.now_millis,
                until_millis: registered.now_millis.saturating_add(lease),
            });
        }
        remembers
    }
}

impl Node {
    /// For how long the node has been registered on over this connection. Over a new one, others have to be met anew.
    fn registered_for(&mut self, connection: u64, now: Moment) -> Duration {
        match self.connection {
            Some((known, since)) if known == connection => now.since(since),
            _ => {
                self.connection = Some((connection, now));
                self.settled = None;
                Duration::ZERO
            }
        }
    }

    /// Takes up that others use another memory in place of this one.
    fn take_up(&mut self, memory: MemoryId, replaced_until: Moment, in_use_until: Moment) {
        let known = self.doubt.filter(|doubt| doubt.memory == memory);
        self.doubt = Some(Doubt {
            memory,
            replaced_until: known.map_or(replaced_until, |doubt| doubt.replaced_until.max(replaced_until)),
            in_use_until: known.map_or(in_use_until, |doubt| doubt.in_use_until.max(in_use_until)),
        });
    }
}

fn others(answers: &[LookAnswer]) -> impl Iterator<Item = &Other> {
    answers.iter().flat_map(|answer| &answer.registered.others)
}

#[cfg(test)]
mod tests;
