//! The first task of a queue: when it asks the nodes again (W1, W2).
//!
//! If it asks too early, the nodes refuse. So it waits for a reason: the lock is given up in this process, a quorum of nodes
//! announces its release, or a quorum of keys has expired. If nobody would tell, it asks again and again, less and less often.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::context::Context;
use crate::node::{Action, LONGEST_SLOT, Nodes, OwnerToken, ReleaseKind, Reply, Request};
use crate::options::MAX_TTL;
use crate::protocol::election;
use crate::protocol::quorum::quorum;
use crate::round::ask;
use crate::sys::timer::sleep_until;
use crate::votes::Votes;

use super::releases::{Hearing, ReleaseWatch};
use super::retry::Retry;
use super::ticket::Ticket;

/// Timers and expiries have the resolution of a millisecond.
const TICK: Duration = Duration::from_millis(1);
/// How long it is believed that a lock was handed over within its process, where nobody takes it.
const HAND_OVER: Duration = Duration::from_millis(600);
/// For the nodes to pass on that this process waits. Nobody waits for that.
const BUDGET: Duration = Duration::from_secs(1);

/// The first task of a queue.
pub(crate) struct FrontWaiter<'a, T: Clone + Send + 'static> {
    ticket: &'a Ticket<T>,
    nodes: &'a Nodes,
    context: &'a Context,
    /// How long nodes take to answer.
    round_trip: Duration,
    /// Which nodes it was listening to when it last asked.
    hearing: Hearing,
    /// What each said.
    seen: Vec<Seen>,
    /// It was refused, and has not looked since whether the other processes know that it waits.
    was_refused: bool,
}

/// What the task goes by while it waits.
struct WakePlan {
    /// When to ask without a reason, and after what delay once nobody would tell any more.
    poll: Instant,
    delay: Duration,
    /// When to ask although it would be told of a reason, and whether it has relied on that.
    patient: Instant,
    relied: bool,
    /// Since when, or from when on, there is a reason to ask.
    reason: Option<Instant>,
    /// That is, if the task that the lock was handed over to does not take it.
    is_handed_over: bool,
    /// Its share of the time over which processes spread that may all ask then.
    random: u32,
    releases: Option<Arc<ReleaseWatch>>,
}

impl WakePlan {
    async fn heard(&self) {
        match &self.releases {
            Some(releases) => releases.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// A node as it was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It had nobody's key but ours, which is being deleted.
    Free,
    Held {
        /// `None` if it is no lock of this library's.
        by: Option<OwnerToken>,
        /// `None` if it does not expire.
        until: Option<Instant>,
    },
    /// The others had settled the attempt before it answered.
    Unheard,
    Unknown,
}

impl<'a, T: Clone + Send + 'static> FrontWaiter<'a, T> {
    pub(crate) fn new(ticket: &'a Ticket<T>, nodes: &'a Nodes, context: &'a Context) -> Self {
        FrontWaiter {
            ticket,
            nodes,
            context,
            round_trip: Duration::ZERO,
            hearing: Hearing::none(nodes.len()),
            seen: vec![Seen::Unknown; nodes.len()],
            was_refused: false,
        }
    }

    /// It asks now.
    pub(crate) fn asks(&mut self) {
        self.hearing = match self.ticket.releases() {
            Some(releases) => {
                releases.forget();
                releases.hearing()
            }
            None => Hearing::none(self.nodes.len()),
        };
    }

    /// It was refused, with these votes. Those nodes that answered took so long.
    pub(crate) fn refused(&mut self, votes: &Votes, round_trip: Duration) {
        let now = Instant::now();
        (self.round_trip, self.was_refused) = (round_trip, true);
        for (seen, vote) in self.seen.iter_mut().zip(votes.iter()) {
            *seen = match vote.answer {
                Some(Ok(Reply::Granted { .. })) => Seen::Free,
                Some(Ok(Reply::Held { remaining, holder })) => Seen::Held {
                    by: holder,
                    until: remaining.map(|left| now + left.min(MAX_TTL) + TICK),
                },
                None => Seen::Unheard,
                Some(_) => Seen::Unknown,
            };
        }
        self.ticket.refused(round_trip);
        if self.holder().is_some() && self.ticket.held_here().is_none() {
            self.ticket.listen();
        }
    }

    /// NodeBaseline it asks for the first time: waits while another process goes first; and, if it is known what nodes say, while a
    /// task of this process has the lock.
    pub(crate) async fn wait_to_begin(&mut self, is_known: bool, retry: &mut Retry) {
        let is_held_here = || is_known && self.ticket.held_here().is_some();
        if self.ticket.gate(0).is_some() || is_held_here() {
            let now = Instant::now();
            self.wait_for(Some(now), now, retry).await;
        }
    }

    /// Waits for a reason to ask; without one, until `poll`. Cancel safe.
    pub(crate) async fn wait(&mut self, poll: Instant, retry: &mut Retry) {
        self.wait_for(None, poll, retry).await;
    }

    async fn wait_for(&mut self, reason: Option<Instant>, poll: Instant, retry: &mut Retry) {
        let delay = retry.delay(fastrand::u32(..));
        let mut plan = WakePlan {
            poll,
            delay,
            patient: Instant::now() + retry.if_told(delay),
            relied: false,
            reason,
            is_handed_over: false,
            random: fastrand::u32(..),
            releases: self.ticket.releases(),
        };
        loop {
            let now = Instant::now();
            let next = self.next(&mut plan, retry, now);
            let wake = retry.end().map_or(next, |end| next.min(end));
            if wake <= now {
                return;
            }
            self.say_that_it_waits(&mut plan, now);
            tokio::select! {
                biased;
                () = self.ticket.freed() => {
                    retry.reset_backoff();
                    (plan.reason, plan.is_handed_over) = (Some(Instant::now()), false);
                    plan.releases = self.ticket.releases();
                }
                () = plan.heard() => {}
                () = sleep_until(&self.context.runtime, wake) => {}
            }
        }
    }

    /// When to ask, as it looks `now`.
    fn next(&self, plan: &mut WakePlan, retry: &mut Retry, now: Instant) -> Instant {
        if let Some(until) = self.ticket.held_here() {
            return until;
        }
        match plan
            .releases
            .as_deref()
            .and_then(|releases| self.release(releases))
        {
            None => {}
            // Where attempts come to nothing because there are too many, this would bring about the next ones at once.
            Some(ReleaseKind::Abandoned) => {
                let reason = now + plan.delay;
                plan.reason = Some(plan.reason.map_or(reason, |earlier| earlier.min(reason)));
            }
            Some(kind) => {
                retry.reset_backoff();
                plan.is_handed_over = kind == ReleaseKind::HandedOver;
                plan.reason = Some(if plan.is_handed_over { now + HAND_OVER } else { now });
            }
        }
        let gate = self.ticket.gate(plan.random).unwrap_or(now);
        let asks = match plan.reason {
            Some(reason) => gate.max(reason),
            None => {
                let poll = self.without_reason(plan, now);
                gate.clamp(poll, poll + LONGEST_SLOT)
            }
        };
        // Whatever is announced, and however often, it is not relied upon for longer than anything else.
        let asks = asks.min(plan.patient);
        self.expiry().map_or(asks, |expiry| expiry.min(asks))
    }

    /// Tells the other processes that this one waits, unless they know, or it is about to ask. Only once it would hear that it
    /// is named: otherwise its slot would pass in vain.
    fn say_that_it_waits(&mut self, plan: &mut WakePlan, now: Instant) {
        let goes_later = plan.reason.is_some() && self.ticket.gate(0).is_some_and(|gate| gate > now);
        if goes_later && plan.releases.is_none() {
            self.ticket.listen();
            plan.releases = self.ticket.releases();
        }
        let has_cause = goes_later || plan.is_handed_over || self.was_refused;
        let would_hear = |releases: &Arc<ReleaseWatch>| releases.hearing().of_quorum();
        if !has_cause
            || self.ticket.is_next()
            || self.ticket.held_here().is_some()
            || !plan.releases.as_ref().is_some_and(would_hear)
        {
            return;
        }
        self.was_refused = false;
        let Some(notice) = self.ticket.say() else {
            return;
        };
        let request = Request {
            key: self.ticket.key().clone(),
            // No lock is meant.
            owner: OwnerToken::from(0),
            action: Action::Announce(notice),
        };
        let ask = |node| ask(self.nodes, node, request.clone(), BUDGET, self.context);
        let calls = join_all((0..self.nodes.len()).map(ask));
        self.context.in_background(BUDGET, calls);
    }

    /// When to ask if nothing is announced and nothing expires.
    fn without_reason(&self, plan: &mut WakePlan, now: Instant) -> Instant {
        let would_be_told = |releases: &Arc<ReleaseWatch>| self.would_be_told(releases);
        match plan.releases.as_ref().map_or(Some(false), would_be_told) {
            // Whatever was announced before it listened, it has to ask about.
            None => now,
            Some(true) => {
                plan.relied = true;
                plan.patient
            }
            Some(false) => {
                if std::mem::take(&mut plan.relied) {
                    // Longer than the others take to announce the same.
                    plan.poll = now + plan.delay.max(2 * self.round_trip);
                }
                plan.poll
            }
        }
    }

    fn release(&self, releases: &ReleaseWatch) -> Option<ReleaseKind> {
        let now = Instant::now();
        let is_free = |node: usize| match self.seen[node] {
            Seen::Free => true,
            Seen::Held { until, .. } => until.is_some_and(|until| until <= now),
            Seen::Unheard | Seen::Unknown => false,
        };
        releases.release(is_free, |node, owner| self.holds(node, owner))
    }

    /// Who has a quorum of nodes, and so the lock, if it is one of this library's.
    fn holder(&self) -> Option<OwnerToken> {
        let by = |seen: &Seen| match seen {
            Seen::Held { by, .. } => *by,
            Seen::Free | Seen::Unheard | Seen::Unknown => None,
        };
        election::holder(self.seen.iter().filter_map(by).collect(), self.seen.len())
    }

    fn holds(&self, node: usize, owner: OwnerToken) -> bool {
        matches!(self.seen[node], Seen::Held { by: Some(by), .. } if by == owner)
    }

    /// Whether a quorum of nodes would tell of the release: those that have the holder's key and were listened to when they said
    /// so. `None` if they would only now. Once some have told, the others may have nothing to tell: they may have lost the key, or
    /// be out of the holder's reach.
    fn would_be_told(&self, releases: &ReleaseWatch) -> Option<bool> {
        let holder = self.holder().filter(|holder| !releases.is_released(*holder));
        let Some(holder) = holder else {
            return Some(false);
        };
        let hearing = releases.hearing();
        let held = || (0..self.seen.len()).filter(|node| self.holds(*node, holder));
        let need = quorum(self.seen.len());
        let now = held().filter(|node| hearing.of(*node)).count();
        let since = held().filter(|node| hearing.since(&self.hearing, *node)).count();
        match (since >= need, now >= need) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    /// When a quorum of nodes is free because keys have expired. `None` if nothing is known to expire.
    ///
    /// Where nobody has the lock, a node that was not heard may be free. The holder of a lock has most likely got such a node, too.
    fn expiry(&self) -> Option<Instant> {
        let mut untils: Vec<Instant> = Vec::new();
        let mut free = 0;
        let is_held = self.holder().is_some();
        for seen in &self.seen {
            match seen {
                Seen::Free => free += 1,
                Seen::Held {
                    until: Some(until), ..
                } => untils.push(*until),
                Seen::Unheard if !is_held => free += 1,
                Seen::Held { until: None, .. } | Seen::Unheard | Seen::Unknown => {}
            }
        }
        untils.sort_unstable();
        let last = quorum(self.seen.len()).checked_sub(free + 1)?;
        untils.get(last).copied()
    }
}
