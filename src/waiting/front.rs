//! The first waiter of a queue: when it asks the nodes (W1, W2).
//!
//! If it asks too early, the nodes refuse. So it waits for a reason: this process releases the lock, a quorum of nodes
//! announces the release, or the keys of a quorum have expired. If it cannot rely on announcements, it polls, less and less
//! often.

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

use super::releases::{ReleaseWatch, Subscriptions};
use super::retry::Retry;
use super::ticket::Ticket;

/// The resolution of timers and expiries.
const TICK: Duration = Duration::from_millis(1);
/// How long a lock that was handed over within another process is left to that process.
const HAND_OVER: Duration = Duration::from_millis(600);
/// Time for the nodes to announce that this process waits, in the background.
const BUDGET: Duration = Duration::from_secs(1);

pub(crate) struct FrontWaiter<'a, T: Clone + Send + 'static> {
    ticket: &'a Ticket<T>,
    nodes: &'a Nodes,
    context: &'a Context,
    /// How long the nodes took to answer last.
    round_trip: Duration,
    /// The nodes that it listened to when it last asked.
    subscriptions: Subscriptions,
    /// Their last answers.
    seen: Vec<Seen>,
    /// Whether it has not checked since a refusal that other processes know that it waits.
    was_refused: bool,
}

/// When the waiter asks next.
struct WakePlan {
    /// When to ask without a reason, and after what delay once announcements cannot be relied on any more.
    poll: Instant,
    delay: Duration,
    /// When to ask even if announcements can be relied on, and whether it has relied on them.
    latest_attempt: Instant,
    relied: bool,
    /// From when on there is a reason to ask.
    reason: Option<Instant>,
    /// The reason is a hand-over within another process: the lock is free only if no task there takes it.
    is_handed_over: bool,
    /// Spreads processes that may ask at the same time.
    random: u32,
    releases: Option<Arc<ReleaseWatch>>,
}

impl WakePlan {
    async fn releases_changed(&self) {
        match &self.releases {
            Some(releases) => releases.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// A node's state after the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// No key but ours, which is being deleted.
    Free,
    Held {
        /// `None` if the key holds no token of this library.
        by: Option<OwnerToken>,
        /// `None` if the key does not expire.
        until: Option<Instant>,
    },
    /// The attempt was decided before the node answered.
    NotAwaited,
    Unknown,
}

impl<'a, T: Clone + Send + 'static> FrontWaiter<'a, T> {
    pub(crate) fn new(ticket: &'a Ticket<T>, nodes: &'a Nodes, context: &'a Context) -> Self {
        FrontWaiter {
            ticket,
            nodes,
            context,
            round_trip: Duration::ZERO,
            subscriptions: Subscriptions::none(nodes.len()),
            seen: vec![Seen::Unknown; nodes.len()],
            was_refused: false,
        }
    }

    /// Called when it asks the nodes.
    pub(crate) fn attempt_starts(&mut self) {
        self.subscriptions = match self.ticket.releases() {
            Some(releases) => {
                releases.forget();
                releases.subscriptions()
            }
            None => Subscriptions::none(self.nodes.len()),
        };
    }

    /// Takes in a failed attempt.
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
                None => Seen::NotAwaited,
                Some(_) => Seen::Unknown,
            };
        }
        self.ticket.refused(round_trip);
        if self.holder().is_some() && self.ticket.held_here().is_none() {
            self.ticket.listen();
        }
    }

    /// Returns the wait before the first attempt, while another process goes first; `None` if there is no need. If a failure of
    /// this queue is known (`is_known`), also while a task of this process holds the lock.
    pub(crate) fn wait_to_begin(
        &mut self,
        is_known: bool,
        retry: &mut Retry,
    ) -> Option<impl Future<Output = ()>> {
        let is_held_here = || is_known && self.ticket.held_here().is_some();
        let now = Instant::now();
        (self.ticket.gate(0).is_some() || is_held_here()).then(|| self.wait_for(Some(now), now, retry))
    }

    /// Waits for a reason to ask; without one, until `poll`, or longer if announcements can be relied on. Cancel safe.
    pub(crate) async fn wait(&mut self, poll: Instant, retry: &mut Retry) {
        self.wait_for(None, poll, retry).await;
    }

    async fn wait_for(&mut self, reason: Option<Instant>, poll: Instant, retry: &mut Retry) {
        let delay = retry.delay(fastrand::u32(..));
        let mut plan = WakePlan {
            poll,
            delay,
            latest_attempt: Instant::now() + retry.poll_delay_when_notified(delay),
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
            self.announce_waiting(&mut plan, now);
            tokio::select! {
                biased;
                () = self.ticket.freed() => {
                    retry.reset_backoff();
                    (plan.reason, plan.is_handed_over) = (Some(Instant::now()), false);
                    plan.releases = self.ticket.releases();
                }
                () = plan.releases_changed() => {}
                () = sleep_until(&self.context.runtime, wake) => {}
            }
        }
    }

    /// Returns when to ask, as known `now`.
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
            // Not at once: if attempts fail because there are too many, each would cause the next ones.
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
        let attempt_at = match plan.reason {
            Some(reason) => gate.max(reason),
            None => {
                let poll = self.without_reason(plan, now);
                gate.clamp(poll, poll + LONGEST_SLOT)
            }
        };
        // Announcements, also forged ones, delay an attempt no longer than this.
        let attempt_at = attempt_at.min(plan.latest_attempt);
        self.expiry().map_or(attempt_at, |expiry| expiry.min(attempt_at))
    }

    /// Announces that this process waits, unless the others know, or it is about to ask. Only while it listens to a quorum of
    /// nodes: otherwise it may not hear that it is named, and its slot would pass unused.
    fn announce_waiting(&mut self, plan: &mut WakePlan, now: Instant) {
        let goes_later = plan.reason.is_some() && self.ticket.gate(0).is_some_and(|gate| gate > now);
        if goes_later && plan.releases.is_none() {
            self.ticket.listen();
            plan.releases = self.ticket.releases();
        }
        let has_cause = goes_later || plan.is_handed_over || self.was_refused;
        let would_hear = |releases: &Arc<ReleaseWatch>| releases.subscriptions().include_quorum();
        if !has_cause
            || self.ticket.is_next()
            || self.ticket.held_here().is_some()
            || !plan.releases.as_ref().is_some_and(would_hear)
        {
            return;
        }
        self.was_refused = false;
        let Some(notice) = self.ticket.next_wait_notice() else {
            return;
        };
        let request = Request {
            key: self.ticket.key().clone(),
            // An announcement concerns no lease.
            owner: OwnerToken::from(0),
            action: Action::Announce(notice),
        };
        let ask = |node| ask(self.nodes, node, request.clone(), BUDGET, self.context);
        let calls = join_all((0..self.nodes.len()).map(ask));
        self.context.in_background(BUDGET, calls);
    }

    /// Returns when to ask if nothing is announced and nothing expires.
    fn without_reason(&self, plan: &mut WakePlan, now: Instant) -> Instant {
        let would_be_notified = |releases: &Arc<ReleaseWatch>| self.would_be_notified(releases);
        match plan.releases.as_ref().map_or(Some(false), would_be_notified) {
            // Releases from before it listened are not announced again, so it asks once.
            None => now,
            Some(true) => {
                plan.relied = true;
                plan.latest_attempt
            }
            Some(false) => {
                if std::mem::take(&mut plan.relied) {
                    // Long enough for the other nodes to announce the same release.
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
            Seen::NotAwaited | Seen::Unknown => false,
        };
        releases.release(is_free, |node, owner| self.holds(node, owner))
    }

    /// Returns the token that a quorum of nodes hold; `None` if there is none.
    fn holder(&self) -> Option<OwnerToken> {
        let by = |seen: &Seen| match seen {
            Seen::Held { by, .. } => *by,
            Seen::Free | Seen::NotAwaited | Seen::Unknown => None,
        };
        election::holder(self.seen.iter().filter_map(by).collect(), self.seen.len())
    }

    fn holds(&self, node: usize, owner: OwnerToken) -> bool {
        matches!(self.seen[node], Seen::Held { by: Some(by), .. } if by == owner)
    }

    /// Returns whether a quorum of nodes would announce the release: they held the holder's key at the last attempt, and were
    /// listened to then and since. `None` if so many are listened to only by now.
    ///
    /// `false` once a node has announced it: the others may have lost the key, or be out of the holder's reach.
    fn would_be_notified(&self, releases: &ReleaseWatch) -> Option<bool> {
        let holder = self.holder().filter(|holder| !releases.is_released(*holder));
        let Some(holder) = holder else {
            return Some(false);
        };
        let subscriptions = releases.subscriptions();
        let held = || (0..self.seen.len()).filter(|node| self.holds(*node, holder));
        let need = quorum(self.seen.len());
        let now = held().filter(|node| subscriptions.include(*node)).count();
        let since = held()
            .filter(|node| subscriptions.unbroken_since(&self.subscriptions, *node))
            .count();
        match (since >= need, now >= need) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    /// Returns when enough keys have expired that a quorum of nodes is free; `None` if no known expiry decides that.
    ///
    /// A node that has not answered may be free. But a holder of the lock most likely has it, too.
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
                Seen::NotAwaited if !is_held => free += 1,
                Seen::Held { until: None, .. } | Seen::NotAwaited | Seen::Unknown => {}
            }
        }
        untils.sort_unstable();
        let last = quorum(self.seen.len()).checked_sub(free + 1)?;
        untils.get(last).copied()
    }
}
