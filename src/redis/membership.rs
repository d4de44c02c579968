//! One client's knowledge of its set, kept from look to look: the memory of each node, and the memories that other clients use in
//! its place (M3 to M6, M8).
//!
//! This file sends nothing: `members.rs` asks the nodes, and carries out the decisions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Admission;
use super::client_info;
use super::registrar::{Other, Registered};
use crate::node::ListConflict;
use crate::protocol::memory::MemoryId;
use crate::protocol::view::{Difference, View};
use crate::sys::clock::Moment;

/// Shortest time for other clients to object. Within it, a client that can reach a node is connected to the node again (R3).
const SHORTEST_SETTLING: Duration = Duration::from_millis(2_500);
/// A look is fresh for this part of a period. The rest allows for clocks that tick at different rates.
const FRESH_PERCENT: u32 = 98;

/// The part that a client takes among the clients of the same nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Participation {
    /// It registers its list of nodes, and takes no locks if another list is in use.
    Full,
    /// It takes no locks, so other clients need not know of it.
    Observer,
    /// It takes locks that no other client can want.
    Alone,
}

impl Participation {
    pub(super) fn registers(self) -> bool {
        self == Participation::Full
    }
}

pub(super) struct Membership {
    period: Duration,
    participation: Participation,
    nodes: Vec<Node>,
    /// Registered lists that are no conflict with this client's, in their written form.
    compatible: HashSet<String>,
    /// A conflicting list, and when its registration ends. It counts until then, also if later looks do not meet it.
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
    /// When the node last answered a look.
    heard: Option<Moment>,
    /// The number of the current connection, and since when this client is registered over it.
    connection: Option<(u64, Moment)>,
    /// The memory that has settled over the current connection: other clients have had time to object (M8).
    settled: Option<MemoryId>,
    /// The doubt that other clients' lists cast on the memory (M4).
    doubt: Option<Doubt>,
    /// This client's last registration, which the node should know.
    last_registration: Option<LastRegistration>,
}

/// Other clients use, or have used, another memory in place of this one. Times are of this client's clock.
#[derive(Clone, Copy)]
struct Doubt {
    memory: MemoryId,
    /// Until when a lease on the other memory may live.
    replaced_until: Moment,
    /// Until when locks may be taken on the other memory.
    in_use_until: Moment,
}

/// When this client registered on a memory, and when the registration expires, by the node's clock.
#[derive(Clone, Copy)]
struct LastRegistration {
    memory: MemoryId,
    at_millis: i64,
    until_millis: i64,
}

pub(super) struct LookAnswer {
    pub(super) number: usize,
    pub(super) connection: u64,
    pub(super) memory: MemoryId,
    /// Whether the memory is old enough to count for renewals.
    pub(super) counts: bool,
    pub(super) registered: Registered,
}

pub(super) struct Beginning {
    pub(super) view: View,
    /// Whether the other lists must be read first: this client was never admitted, or is in conflict.
    pub(super) is_new: bool,
    /// Whether the last look began more than a look period ago: this process was stopped.
    pub(super) was_stopped: bool,
}

#[derive(Debug)]
pub(super) enum Decision {
    Admit(MemoryId, Admission),
    /// The node is at its memory limit, so this client cannot register there.
    Full,
}

impl Membership {
    pub(super) fn new(
        addresses: impl Iterator<Item = Arc<str>>,
        period: Duration,
        participation: Participation,
    ) -> Membership {
        let node = |address| Node {
            address,
            id: None,
            admitted: None,
            heard: None,
            connection: None,
            settled: None,
            doubt: None,
            last_registration: None,
        };
        Membership {
            period,
            participation,
            nodes: addresses.map(node).collect(),
            compatible: HashSet::new(),
            conflict: None,
            started: None,
        }
    }

    /// Begins a look at the connected nodes, each with the memory that its connection leads to.
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

    /// Returns whether the votes of any node count.
    pub(super) fn is_admitted_anywhere(&self) -> bool {
        self.nodes.iter().any(|node| node.admitted.is_some())
    }

    pub(super) fn compatible(&self) -> Vec<String> {
        self.compatible.iter().cloned().collect()
    }

    /// Judges the other lists. Returns whether one of them, or one met earlier, is a conflict.
    pub(super) fn judge(&mut self, now: Moment, view: &View, answers: &[LookAnswer]) -> bool {
        self.compatible.clear();
        let mut met: Option<(Arc<ListConflict>, Moment)> = None;
        for other in others(answers) {
            match &other.view {
                Some(theirs)
                    if self.participation != Participation::Alone
                        && view.compare(theirs) == Difference::OtherNodes =>
                {
                    let until = now + other.remaining;
                    if met.as_ref().is_none_or(|(_, known)| *known < until) {
                        let conflict = ListConflict {
                            ours: view.addresses(),
                            theirs: theirs.addresses(),
                            user: client_info::readable(&other.user).into(),
                            remaining: other.remaining,
                        };
                        met = Some((Arc::new(conflict), until));
                    }
                }
                // Damaged entries belong to no client.
                _ => {
                    self.compatible.insert(other.text.clone());
                }
            }
        }
        // A registration counts until its end, also if this look has not met it.
        let known = self.conflict.take().filter(|(_, until)| now < *until);
        let had_any = known.is_some();
        self.conflict = match (met, known) {
            (Some(met), Some(known)) if met.1 < known.1 => Some(known),
            (met, known) => met.or(known),
        };
        match (&self.conflict, had_any) {
            (Some((conflict, _)), false) if self.participation.registers() => {
                tracing::warn!(%conflict, "no new locks are taken")
            }
            (None, true) if self.participation.registers() => {
                tracing::warn!("the other list of nodes is no longer in use: new locks are taken again");
            }
            _ => {}
        }
        self.conflict.is_some()
    }

    /// Decides about each node that has answered a look. The look began at `started`, and asked the nodes in `connected`. Also
    /// returns how long it takes until the last unsettled node settles; `None` if all have.
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
        // No client can miss a registration on all nodes, if no memory began within the period (M8).
        let everywhere = answers.len() == self.nodes.len() && answers.iter().all(|answer| answer.counts);
        let replacing: Vec<(&Other, Vec<Arc<str>>)> = others(answers)
            .filter_map(|other| match view.compare(other.view.as_ref()?) {
                Difference::SameNodes { replaced } => Some((other, replaced)),
                Difference::OtherNodes => None,
            })
            .collect();
        let (registers, settling) = (
            self.participation.registers(),
            SHORTEST_SETTLING.max(self.period / 2),
        );
        let mut unsettled: Option<Duration> = None;
        let mut decisions = Vec::with_capacity(answers.len());
        for answer in answers {
            let (registered, id) = (&answer.registered, answer.memory);
            let node = &mut self.nodes[answer.number];
            // Other lists changed during the look, so nothing was added: the admission stays until the next look.
            if !registered.added && !registered.is_full && conflict.is_none() && registers {
                continue;
            }
            if registered.is_full && node.admitted != Some(id) {
                decisions.push((answer.number, Decision::Full));
                continue;
            }
            // A new memory counts once this client's list with it is on all connected nodes whose votes count (M6).
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
                    node.record_doubt(id, now + other.remaining, now + other.fresh);
                }
            }
            // A list that this look has not met counts until its end.
            let doubt = node.doubt.filter(|doubt| doubt.memory == id);
            let admission = Admission {
                registered: node.admitted == Some(id),
                // Other clients assume that no vote counts later than this.
                fresh_until: Some(started + self.period * FRESH_PERCENT / 100),
                conflict: conflict.clone(),
                // Beyond the next look, which decides again.
                settles_at: (!is_settled).then(|| now + left + self.period),
                replaced_until: doubt.map(|doubt| doubt.replaced_until),
                in_use_until: doubt.map(|doubt| doubt.in_use_until),
            };
            decisions.push((answer.number, Decision::Admit(id, admission)));
        }
        (decisions, unsettled)
    }

    /// Returns whether all connected nodes with valid votes have answered this look. Votes are valid for a period after an
    /// answer.
    fn is_complete(&self, now: Moment, connected: &[(usize, MemoryId)]) -> bool {
        connected.iter().all(|(number, id)| {
            let node = &self.nodes[*number];
            let is_silent = |heard: Moment| now.since(heard) > self.period;
            node.admitted != Some(*id) || node.heard == Some(now) || node.heard.is_none_or(is_silent)
        })
    }

    /// Returns whether the node still knows this client's last registration, or it has expired. Records the new one, for `lease`.
    pub(super) fn remembers(
        &mut self,
        number: usize,
        memory: MemoryId,
        registered: &Registered,
        lease: Duration,
    ) -> bool {
        let node = &mut self.nodes[number];
        let known = node.last_registration.filter(|last| last.memory == memory);
        let remembers = known.is_none_or(|last| {
            registered.registered_at_millis >= last.at_millis || registered.now_millis >= last.until_millis
        });
        if registered.added {
            let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            node.last_registration = Some(LastRegistration {
                memory,
                at_millis: registered.now_millis,
                until_millis: registered.now_millis.saturating_add(lease),
            });
        }
        remembers
    }
}

impl Node {
    /// Returns how long this client has been registered over this connection. Over a new one, the node must settle again.
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

    /// Records that other clients use another memory in place of this one.
    fn record_doubt(&mut self, memory: MemoryId, replaced_until: Moment, in_use_until: Moment) {
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
