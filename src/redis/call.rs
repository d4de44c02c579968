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
    pub(super) reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl Job {
    /// T3: the caller has given up. What is not sent yet need not be.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, reply: Result<Reply, Fault>) {
        // Whoever has given up does not want to know.
        let _ = self.reply.send(reply);
    }

    /// W1: whoever takes the lock next is in this process, and about to ask for it.
    pub(super) fn is_passing_on(&self) -> bool {
        let news = Some(News::PassedOn);
        matches!(self.request.action, Action::Release { news: told, .. } if told == news)
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.request.action, Action::Acquire { fencing: None, .. })
    }
}

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// As the plain `SET`. Takes a single one.
    Plain,
    /// As a call of the script, by its digest.
    Script,
    /// The same by its text, which the server does not know.
    ScriptText,
    /// The plain `SET` went ahead; what is left is to ask who holds the key.
    Asking,
    /// The same by the text.
    AskingByText,
}

impl Manner {
    /// Whether it may set a key.
    pub(super) fn sets(self) -> bool {
        !matches!(self, Manner::Asking | Manner::AskingByText)
    }

    /// The same for a server that does not know the script, if that is not how it was sent.
    fn by_text(self) -> Option<Manner> {
        match self {
            Manner::Script => Some(Manner::ScriptText),
            Manner::Asking => Some(Manner::AskingByText),
            Manner::Plain | Manner::ScriptText | Manner::AskingByText => None,
        }
    }

    /// What came together goes out together (T2), and only the script can do that.
    pub(super) fn of(jobs: &[Job]) -> Manner {
        match jobs {
            [job] if job.is_plain() => Manner::Plain,
            _ => Manner::Script,
        }
    }
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
        let answer = match (manner, jobs.first()) {
            (Manner::Plain, Some(job)) => link.set(&job.request),
            _ => link.eval(items(&link, manner, &jobs), manner.by_text().is_none()),
        };
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

    /// Answers whoever waits. What is returned is to be sent (again).
    pub(super) fn finish(self, answer: Result<Value, Fault>) -> Vec<(Manner, Vec<Job>)> {
        let Call {
            link,
            manner,
            jobs,
            sent,
            ..
        } = self;
        let answer = link.look_at(answer);
        if manner == Manner::Plain {
            match answer.and_then(|answer| link.was_set(&answer)) {
                // By whom it is held, and whether by a lock at all, only a question tells (A7, R5).
                Ok(false) => return vec![(Manner::Asking, jobs)],
                Ok(true) => answer_all(jobs, &Ok(Reply::Granted { counter: None })),
                Err(fault) => answer_all(jobs, &Err(fault)),
            }
            return Vec::new();
        }
        let replies = answer.and_then(|answer| link.replies(sent, answer, items(&link, manner, &jobs)));
        // Not executed, so it may be sent once more (A8).
        if let (Err(Fault::NoScript), Some(by_text)) = (&replies, manner.by_text()) {
            return vec![(by_text, jobs)];
        }
        match replies {
            // One key outside of what the user may touch has the server refuse all. Each finds what it has done
            // already, and so may be asked for again (A7).
            Err(Fault::NoPermission { .. } | Fault::Server { .. }) if jobs.len() > 1 => {
                return jobs.into_iter().map(|job| (Manner::Script, vec![job])).collect();
            }
            Err(fault) => answer_all(jobs, &Err(fault)),
            Ok(replies) => jobs
                .into_iter()
                .zip(replies)
                .for_each(|(job, reply)| job.answer(reply)),
        }
        Vec::new()
    }
}

fn answer_all(jobs: Vec<Job>, reply: &Result<Reply, Fault>) {
    jobs.into_iter().for_each(|job| job.answer(reply.clone()));
}

fn items<'a>(
    link: &Link,
    manner: Manner,
    jobs: &'a [Job],
) -> impl ExactSizeIterator<Item = Item<'a>> + Clone + use<'a> {
    let oldest_counter = link.oldest_counter();
    // A plain request is never refused as late, in company as little as alone.
    let latest = move |job: &Job| if job.is_plain() { i64::MAX } else { job.latest };
    jobs.iter().map(move |job| Item {
        request: &job.request,
        latest: latest(job),
        oldest_counter,
        only_ask: !manner.sets(),
    })
}
