//! One call: requests that are sent together, and what becomes of their answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fred::types::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::link::{Link, Pending};
use super::script::Item;
use crate::node::{Action, Fault, News, Reply, Request};

/// A connection is not suspected before it has left a call unanswered for this long, however short the budgets (T4).
pub(super) const SHORTEST_PATIENCE: Duration = Duration::from_millis(500);
/// However long the budgets are: one caller with hours of TTL must not hide a hung connection from all others.
const LONGEST_PATIENCE: Duration = Duration::from_secs(5);

/// A request and who waits for it.
pub(super) struct Job {
    pub(super) request: Request,
    /// A9.
    pub(super) latest: i64,
    pub(super) patience: Duration,
    /// Why the confirmation of an extension counts for nothing on this node.
    pub(super) objection: Option<Fault>,
    pub(super) reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl Job {
    /// T3: the caller has given up. What is not sent yet need not be.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, reply: Result<Reply, Fault>) {
        let reply = match (reply, self.objection) {
            (Ok(Reply::Extended), Some(fault)) => Err(fault),
            (reply, _) => reply,
        };
        // Whoever has given up does not want to know.
        let _ = self.reply.send(reply);
    }

    /// W1: whoever takes the lock next is in this process, and about to ask for it.
    pub(super) fn is_passing_on(&self) -> bool {
        let news = Some(News::PassedOn);
        matches!(self.request.action, Action::Release { news: told, .. } if told == news)
    }
}

/// How a call names the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// By its digest.
    Digest,
    /// By its text: the server does not know the digest.
    Text,
}

/// A call under way.
pub(super) struct Call {
    link: Arc<Link>,
    manner: Manner,
    jobs: Vec<Job>,
    /// By our clock, in microseconds.
    sent: i64,
    answer: Pending,
    /// T4: if it is not answered by then, the connection is doubted.
    pub(super) doubted_from: Option<Instant>,
}

impl Call {
    /// Nothing is sent before it is polled.
    pub(super) fn new(link: Arc<Link>, manner: Manner, jobs: Vec<Job>, sent: i64, now: Instant) -> Call {
        let answer = link.eval(items(&jobs), manner);
        // The connection is doubted when the least patient of them would.
        let patience = jobs.iter().map(|job| job.patience).min().unwrap_or_default();
        Call {
            sent,
            doubted_from: Some(now + patience.clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE)),
            link,
            manner,
            jobs,
            answer,
        }
    }

    pub(super) fn is_single(&self) -> bool {
        self.jobs.len() == 1
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, Fault>> {
        self.answer.as_mut().poll(cx)
    }

    /// T4: whoever watches the connection is told of a call that should have been answered.
    pub(super) fn doubt(&mut self, now: Instant) {
        if self.doubted_from.is_some_and(|from| from <= now) {
            self.doubted_from = None;
            self.link.suspect();
        }
    }

    /// Answers whoever waits. What is returned is to be sent again, over the same connection.
    pub(super) fn finish(self, answer: Result<Value, Fault>) -> Resend {
        let Call {
            link,
            manner,
            jobs,
            sent,
            ..
        } = self;
        let answer = link.look_at(answer);
        let replies = answer.and_then(|answer| link.replies(sent, answer, items(&jobs)));
        // Not executed, so it may be sent once more (A8).
        if replies == Err(Fault::NoScript) && manner == Manner::Digest {
            return Resend(link, vec![(Manner::Text, jobs)]);
        }
        match replies {
            // One key outside of what the user may touch has the server refuse all. Each finds what it has done
            // already, and so may be asked for again (A7).
            Err(Fault::NoPermission { .. } | Fault::Server { .. }) if jobs.len() > 1 => {
                return Resend(link, jobs.into_iter().map(|job| (manner, vec![job])).collect());
            }
            Err(fault) => answer_all(jobs, &Err(fault)),
            Ok(replies) => jobs
                .into_iter()
                .zip(replies)
                .for_each(|(job, reply)| job.answer(reply)),
        }
        Resend(link, Vec::new())
    }
}

/// Requests that were not executed, or may be executed twice, and the connection that they were sent over.
pub(super) struct Resend(pub(super) Arc<Link>, pub(super) Vec<(Manner, Vec<Job>)>);

pub(super) fn answer_all(jobs: Vec<Job>, reply: &Result<Reply, Fault>) {
    jobs.into_iter().for_each(|job| job.answer(reply.clone()));
}

fn items(jobs: &[Job]) -> impl ExactSizeIterator<Item = Item<'_>> + Clone {
    jobs.iter().map(|job| Item {
        request: &job.request,
        latest: job.latest,
    })
}
