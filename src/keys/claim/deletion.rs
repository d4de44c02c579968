//! Deletes the keys of a claim: by a release that is waited for, or when the claim is dropped (A6, L1, L2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Claim, PossibleKey, ReleaseObserver, late_by};
use crate::error::ReleaseOutcome;
use crate::keys::cleanup::deletion_answer;
use crate::keys::pending_delete::{DeleteHorizon, OnNotified, PendingDelete};
use crate::node::{Action, ReleaseKind, ReleaseNotice, Reply, Request, time_left};
use crate::protocol::quorum::{Standing, quorum};
use crate::round::Round;

impl Claim {
    /// Deletes the key on all nodes where it holds this owner token (L1). Returns when the outcome is known. Deletions that are not
    /// confirmed by then go on in the background, also if this future is dropped.
    pub(crate) async fn release(mut self) -> ReleaseOutcome {
        self.acquire.abandon();
        self.stop_acquiring();
        let mut round = Round::new(&self.nodes, self.release_budget, self.cleanup.context());
        self.give_up();
        round.send(|node| self.release_request(node));
        self.notify_local_waiters();
        let round = self.release.insert(round);
        round.settle(|tally| tally.standing() != Standing::Pending).await;
        match round.tally().standing() {
            Standing::Confirmed => ReleaseOutcome::Released,
            Standing::Refused => ReleaseOutcome::AlreadyGone,
            Standing::Unclear | Standing::Pending => ReleaseOutcome::Uncertain(round.votes()),
        }
    }

    /// Returns where the acquire may have set the key, or may yet set it.
    pub(super) fn possible_keys(&self) -> Vec<PossibleKey> {
        let sent = self.acquire.started;
        let numbered = self.acquire.answers().enumerate();
        let possible = numbered.filter_map(|(node, answer)| {
            let late = sent + self.acquire.budget + late_by(self.acquire.before[node].late_by);
            let from = match answer {
                Some(_) if self.acquire.was_sent_twice(node) => late,
                Some(Ok(Reply::Granted { .. })) => sent,
                None => late,
                Some(Err(fault)) if fault.may_have_executed() => late,
                Some(_) => return None,
            };
            let horizon = DeleteHorizon {
                from,
                connection: self.acquire.before[node].connection,
                is_sent_twice: self.acquire.was_sent_twice(node),
            };
            Some(PossibleKey { node, horizon })
        });
        possible.collect()
    }

    /// Returns the deletion for one node. It carries the largest known counter, unless the node is known to have it (F4). So all
    /// counters agree afterwards, and the next acquire takes one round trip.
    fn release_request(&self, node: usize) -> Request {
        // A lease that was taken over knows its token only.
        let highest = self.counters.iter().copied().flatten().chain(self.token).max();
        let known = self.counters.get(node).copied().flatten();
        self.request(Action::Release {
            counter: highest.filter(|_| known != highest),
            notice: self.given_up.flatten(),
            keep_until: self.keep_until,
        })
    }

    /// Cancels acquires that are still queued, and records the counters of late grants.
    pub(super) fn stop_acquiring(&mut self) {
        if self.collecting.take().is_none() {
            return;
        }
        for (node, counter) in self.late_grants.so_far() {
            self.record_counter(node, counter);
        }
    }

    /// Decides what the deletion announces. A lost attempt that cannot have had a quorum announces nothing: waiters elsewhere would
    /// ask in vain.
    fn give_up(&mut self) {
        if self.given_up.is_some() {
            return;
        }
        let abandoned = ReleaseNotice {
            kind: ReleaseKind::Abandoned,
            turn: None,
        };
        self.given_up = Some(match &self.observer {
            // Waiters ask once, and learn when the keys expire now.
            Some(_) if self.keeps_on() => Some(abandoned),
            Some(observer) => Some(observer.notice()),
            None => (self.possible_keys().len() >= quorum(self.nodes.len())).then_some(abandoned),
        });
    }

    /// Returns whether the keys stay for a while after the release.
    fn keeps_on(&self) -> bool {
        self.keep_until.and_then(time_left).is_some()
    }

    fn notify_local_waiters(&mut self) {
        if let Some(observer) = &self.observer {
            observer.freed();
        }
    }
}

impl Drop for Claim {
    /// Deletes the keys (A6), ordered after every request under this owner token.
    fn drop(&mut self) {
        self.give_up();
        let left = self.won_on.take().unwrap_or_else(|| self.possible_keys());
        // First, so that no acquire is sent once more behind the deletion.
        self.acquire.abandon();
        self.stop_acquiring();
        let mut release = self.release.take();
        // A release has woken the next waiter already.
        let observer = self.observer.clone().filter(|_| release.is_none());
        // A quorum of deletions, and the one that this function holds until it ends.
        let awaited = AtomicUsize::new(left.len().min(quorum(self.nodes.len())) + 1);
        let freed = observer.map(|observer| Unsent(Arc::new(Freed { observer, awaited })));
        let sent = release.as_ref().map(|release| release.started);
        let mut in_flight = release.as_mut().map(Round::take_outstanding).unwrap_or_default();
        for PossibleKey { node, horizon } in left {
            let answer = release.as_ref().and_then(|release| release.answer(node));
            let reply = answer.and_then(|answer| deletion_answer(answer.clone()).ok());
            let is_final = |(reply, sent)| horizon.is_final(&reply, &*self.nodes[node], sent);
            if let (Some(observer), Some(Reply::Released { notified: true })) = (&self.observer, reply) {
                observer.notified();
            }
            if reply.zip(sent).is_some_and(is_final) {
                continue;
            }
            let pending = PendingDelete {
                request: Arc::new(self.release_request(node)),
                in_flight: in_flight
                    .iter()
                    .position(|call| call.number == node)
                    .zip(sent)
                    .map(|(at, sent)| (sent, in_flight.swap_remove(at).call)),
                unsent: freed
                    .as_ref()
                    .map(|freed| -> Box<dyn Send> { Box::new(Unsent(freed.0.clone())) }),
                on_notified: self
                    .observer
                    .clone()
                    .map(|observer| -> OnNotified { Box::new(move || observer.notified()) }),
                expired_at: self.expired_at,
                horizon,
            };
            self.cleanup.delete(node, pending);
        }
    }
}

/// A deletion that the next acquire of this process must be ordered after. Dropped once it has its place in the pipeline. When enough
/// of them are dropped, the next waiter is woken.
struct Unsent(Arc<Freed>);

struct Freed {
    observer: Arc<dyn ReleaseObserver>,
    awaited: AtomicUsize,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.0.awaited.fetch_sub(1, Relaxed) == 1 {
            self.0.observer.freed();
        }
    }
}
