//! What is sent over a connection and awaits its reply: requests for locks that go out together, or a question beside them.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::link::Link;
use super::resp::Value;
use super::script::Item;
use crate::node::{Action, Fault, News, Reply, Request};

/// A connection is doubted after half a budget of silence (T4), so that another one can still be asked within the budget. But
/// not before this long, however short the budgets.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(50);
/// However long the budgets are: a second connection costs little, and a lease cannot wait.
const LONGEST_PATIENCE: Duration = Duration::from_millis(500);

/// A request and who waits for it.
pub(super) struct Job {
    pub(super) request: Request,
    /// A9.
    pub(super) latest: i64,
    pub(super) budget: Duration,
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

/// Something in flight.
pub(super) struct Pending {
    pub(super) sent: Instant,
    /// T4: the connection is doubted after so long a silence.
    pub(super) patience: Duration,
    pub(super) what: What,
}

pub(super) enum What {
    Call(Call),
    /// A command, and who waits for its reply.
    Question(oneshot::Sender<Result<Value, Fault>>),
}

impl Pending {
    pub(super) fn call(call: Call, sent: Instant) -> Pending {
        // The least patient caller decides.
        let budget = call.jobs.iter().map(|job| job.budget).min().unwrap_or_default();
        Pending {
            sent,
            patience: (budget / 2).clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE),
            what: What::Call(call),
        }
    }

    pub(super) fn question(reply: oneshot::Sender<Result<Value, Fault>>, sent: Instant) -> Pending {
        Pending {
            sent,
            patience: LONGEST_PATIENCE,
            what: What::Question(reply),
        }
    }

    /// Whether requests have gone out together.
    pub(super) fn is_batch(&self) -> bool {
        matches!(&self.what, What::Call(call) if call.jobs.len() > 1)
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self.what, What::Call(_))
    }

    /// Tells all who wait that there will be no reply.
    pub(super) fn fail(self, fault: &Fault) {
        match self.what {
            What::Call(call) => answer_all(call.jobs, &Err(fault.clone())),
            What::Question(reply) => drop(reply.send(Err(fault.clone()))),
        }
    }
}

/// One call of the script.
pub(super) struct Call {
    pub(super) jobs: Vec<Job>,
    /// By the script's text: the server does not know its digest.
    pub(super) by_text: bool,
    /// By our clock, in microseconds.
    pub(super) sent: i64,
}

impl Call {
    pub(super) fn items(&self) -> impl ExactSizeIterator<Item = Item<'_>> + Clone {
        self.jobs.iter().map(|job| Item {
            request: &job.request,
            latest: job.latest,
        })
    }

    /// Answers all who wait. Returns what is to be sent again, over the same connection: requests that were not executed, or that
    /// may be executed twice, each batch with whether it goes by the script's text.
    ///
    /// Fails if the reply does not fit: it may be that to another request, and then so are all that follow.
    pub(super) fn finish(self, link: &Link, reply: Value) -> Result<Vec<(bool, Vec<Job>)>, Fault> {
        let replies = link
            .examine(reply)
            .and_then(|reply| link.replies(self.sent, reply, self.items()));
        let Call { jobs, by_text, .. } = self;
        match replies {
            // Not executed, so it may be sent once more (A8).
            Err(Fault::NoScript) if !by_text => return Ok(vec![(true, jobs)]),
            // One key outside of what the user may touch has the server refuse all. Each finds what it has done
            // already, and so may be asked for again (A7).
            Err(Fault::NoPermission { .. } | Fault::Server { .. }) if jobs.len() > 1 => {
                return Ok(jobs.into_iter().map(|job| (by_text, vec![job])).collect());
            }
            Err(fault) => {
                answer_all(jobs, &Err(fault.clone()));
                if matches!(fault, Fault::Protocol { .. }) {
                    return Err(fault);
                }
            }
            Ok(replies) => jobs
                .into_iter()
                .zip(replies)
                .for_each(|(job, reply)| job.answer(reply)),
        }
        Ok(Vec::new())
    }
}

pub(super) fn answer_all(jobs: Vec<Job>, reply: &Result<Reply, Fault>) {
    jobs.into_iter().for_each(|job| job.answer(reply.clone()));
}
