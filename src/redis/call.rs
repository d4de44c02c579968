//! What was sent over a connection and awaits its reply: a call of the script with one or several requests, or a command.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::link::Link;
use super::resp::Value;
use super::script::Item;
use crate::node::{Action, Fault, ReleaseKind, Reply, Request};

/// A connection is doubted after half a budget of silence: another one can still answer in time (T4). This is the shortest such
/// time, however short the budget.
const SHORTEST_DOUBT_DELAY: Duration = Duration::from_millis(50);
/// The longest such time, however long the budget: a second connection costs little, and a lease cannot wait.
const LONGEST_DOUBT_DELAY: Duration = Duration::from_millis(500);

/// A request, and where its reply goes.
pub(super) struct PendingRequest {
    pub(super) request: Request,
    /// The last moment, on the node's clock, at which the node may execute it (A9).
    pub(super) latest: i64,
    pub(super) budget: Duration,
    /// Why this node's confirmation of an extension does not count. `None` if it does.
    pub(super) objection: Option<Fault>,
    pub(super) reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl PendingRequest {
    /// Returns whether the caller has given up. If so, a request that is still queued is not sent (T3).
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, reply: Result<Reply, Fault>) {
        let reply = match (reply, self.objection) {
            // It had no time, because votes do not count now. The objection tells whether it is worth asking again.
            (Ok(Reply::Extended) | Err(Fault::TooLate), Some(fault)) => Err(fault),
            (reply, _) => reply,
        };
        // The caller may have given up.
        let _ = self.reply.send(reply);
    }

    /// Returns whether this release hands the lock over within the process: its acquire follows at once (W1).
    pub(super) fn hands_lock_over(&self) -> bool {
        let is_handed_over = |kind| kind == ReleaseKind::HandedOver;
        matches!(self.request.action, Action::Release { notice: Some(notice), .. } if is_handed_over(notice.kind))
    }
}

pub(super) struct InFlight {
    pub(super) sent: Instant,
    /// The connection is doubted after this long a silence (T4).
    pub(super) doubt_delay: Duration,
    pub(super) sent_as: Sent,
}

pub(super) enum Sent {
    Call(Call),
    Command(oneshot::Sender<Result<Value, Fault>>),
}

impl InFlight {
    pub(super) fn call(call: Call, sent: Instant) -> InFlight {
        let budget = call
            .requests
            .iter()
            .map(|request| request.budget)
            .min()
            .unwrap_or_default();
        InFlight {
            sent,
            doubt_delay: (budget / 2).clamp(SHORTEST_DOUBT_DELAY, LONGEST_DOUBT_DELAY),
            sent_as: Sent::Call(call),
        }
    }

    pub(super) fn command(reply: oneshot::Sender<Result<Value, Fault>>, sent: Instant) -> InFlight {
        InFlight {
            sent,
            doubt_delay: LONGEST_DOUBT_DELAY,
            sent_as: Sent::Command(reply),
        }
    }

    pub(super) fn is_batch(&self) -> bool {
        matches!(&self.sent_as, Sent::Call(call) if call.requests.len() > 1)
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self.sent_as, Sent::Call(_))
    }

    pub(super) fn fail(self, fault: &Fault) {
        match self.sent_as {
            Sent::Call(call) => answer_all(call.requests, &Err(fault.clone())),
            Sent::Command(reply) => drop(reply.send(Err(fault.clone()))),
        }
    }
}

pub(super) struct Call {
    pub(super) requests: Vec<PendingRequest>,
    /// Whether it was sent with the script's text, because the server does not know the digest.
    pub(super) by_text: bool,
    /// When it was sent, in microseconds of our clock.
    pub(super) sent: i64,
}

impl Call {
    pub(super) fn items(&self) -> impl ExactSizeIterator<Item = Item<'_>> + Clone {
        self.requests.iter().map(|request| Item {
            request: &request.request,
            latest: request.latest,
        })
    }

    /// Answers the requests. Returns those to be sent again over the same connection: they were not executed, or may be executed
    /// twice. Each batch comes with whether it carries the script's text.
    ///
    /// Fails if the reply does not fit the call. It may answer another one, and then every later reply does, too.
    pub(super) fn finish(self, link: &Link, reply: Value) -> Result<Vec<(bool, Vec<PendingRequest>)>, Fault> {
        let replies = link
            .examine(reply)
            .and_then(|reply| link.replies(self.sent, reply, self.items()));
        let Call {
            requests, by_text, ..
        } = self;
        match replies {
            // The server does not know the script, so it executed nothing: send again with the text (A8).
            Err(Fault::NoScript) if !by_text => return Ok(vec![(true, requests)]),
            // The server refuses the whole call if the user may not touch one key. Each request may be executed twice (A7).
            Err(Fault::NoPermission { .. } | Fault::Server { .. }) if requests.len() > 1 => {
                return Ok(requests
                    .into_iter()
                    .map(|request| (by_text, vec![request]))
                    .collect());
            }
            Err(fault) => {
                answer_all(requests, &Err(fault.clone()));
                if matches!(fault, Fault::Protocol { .. }) {
                    return Err(fault);
                }
            }
            Ok(replies) => requests
                .into_iter()
                .zip(replies)
                .for_each(|(request, reply)| request.answer(reply)),
        }
        Ok(Vec::new())
    }
}

pub(super) fn answer_all(requests: Vec<PendingRequest>, reply: &Result<Reply, Fault>) {
    requests
        .into_iter()
        .for_each(|request| request.answer(reply.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::OwnerToken;

    #[test]
    fn an_objection_stands_for_what_it_causes() {
        let answer = |reply, objection: Option<Fault>| {
            let (sender, mut answer) = oneshot::channel();
            let request = Request {
                key: "job".into(),
                owner: OwnerToken::random(),
                action: Action::Extend {
                    ttl: Duration::from_secs(1),
                    guarded: true,
                },
            };
            let request = PendingRequest {
                request,
                latest: 0,
                budget: Duration::from_secs(1),
                objection,
                reply: sender,
            };
            request.answer(reply);
            answer.try_recv().unwrap()
        };
        let stale = || Some(Fault::Unregistered);
        for caused in [Ok(Reply::Extended), Err(Fault::TooLate)] {
            assert_eq!(answer(caused.clone(), None), caused);
            assert_eq!(answer(caused, stale()), Err(Fault::Unregistered));
        }
        for other in [Ok(Reply::Missing), Err(Fault::ReadOnly)] {
            assert_eq!(answer(other.clone(), stale()), other);
        }
    }
}
