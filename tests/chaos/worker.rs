//! A process that competes for the locks, and writes under them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use quorlock::node::{Fault, Reply};
use quorlock::{AcquireError, Lease, Redlock, RedlockBuilder};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use crate::common::{MOMENT, PATIENCE};
use crate::history::{Journal, Won, now, resources};
use crate::task::Task;
use crate::workers::INTRUDERS;

pub(crate) const TTL: Duration = Duration::from_secs(1);
/// The guard window. It must not be shorter than the TTL. With a shorter window, clients look at their nodes more often.
const WINDOW: Duration = Duration::from_secs(3);
/// The longest time between two looks of a client.
pub(crate) const LOOK_PERIOD: Duration = WINDOW.checked_div(6).unwrap();
/// How long a new memory gives no new locks.
pub(crate) const GUARD: Duration = WINDOW.saturating_add(LOOK_PERIOD);
const TASKS: usize = 3;

/// Competes for locks until the input ends.
pub(crate) async fn work(task: Task) -> ExitCode {
    // A stopped process would not notice the end of its input.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    fastrand::seed(task.number);
    #[cfg(feature = "metrics")]
    let counters = crate::counters::record();
    let over = CancellationToken::new();
    let redlock = connect(&task).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (client, connection) = tokio_postgres::connect(&task.database, NoTls).await.unwrap();
        tokio::spawn(connection);
        let journal = Journal::open(client).await;
        tasks.spawn(compete(task.clone(), redlock.clone(), journal, over.clone()));
    }
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    over.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    redlock.shutdown().await;
    #[cfg(feature = "metrics")]
    crate::counters::write_down(&counters, &task).await;
    ExitCode::SUCCESS
}

/// Competes for locks with another list of nodes, until the input ends.
pub(crate) async fn intrude(task: Task) -> ExitCode {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    fastrand::seed(task.number);
    let over = CancellationToken::new();
    let (client, connection) = tokio_postgres::connect(&task.database, NoTls).await.unwrap();
    tokio::spawn(connection);
    let journal = Journal::open(client).await;
    let competing = async {
        let redlock = loop {
            let builder = builder(&task).connect_timeout(TTL);
            match builder.connect().await {
                Ok(redlock) => break redlock,
                Err(error) => {
                    let reason = format!("with another list, connecting: {}", name_of(&error));
                    journal.failed(task.number as i64, &reason, &[]).await;
                }
            }
        };
        compete(task.clone(), redlock, journal, over.clone()).await;
    };
    let (mut input, mut nothing) = (tokio::io::stdin(), Vec::new());
    tokio::select! {
        _ = input.read_to_end(&mut nothing) => {}
        () = competing => {}
    }
    ExitCode::SUCCESS
}

fn builder(task: &Task) -> RedlockBuilder {
    Redlock::builder()
        .urls(task.nodes.split(','))
        .ttl(TTL)
        .guard_window(WINDOW)
        .restart_guard(task.guarded)
}

/// Again when a node is a replica just now: that is a reason not to start.
async fn connect(task: &Task) -> Redlock {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match builder(task).connect().await {
            Ok(redlock) => return redlock,
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn compete(task: Task, redlock: Redlock, journal: Journal, over: CancellationToken) {
    let worker = task.number as i64;
    while !over.is_cancelled() {
        let resource = fastrand::i32(0..resources(task.guarded));
        let renewed = task.guarded && fastrand::bool();
        let began = journal.begin().await;
        let request = redlock.lock(format!("job{resource}")).watchdog(renewed);
        let outcome = if !task.guarded || fastrand::bool() {
            request.try_acquire().await
        } else {
            request.within(TTL / 2).acquire().await
        };
        match outcome {
            Ok(lease) => {
                let work = Work {
                    worker,
                    journal: &journal,
                    lease,
                    resource,
                    renewed,
                    hurried: !task.guarded,
                };
                work.go_on(began).await;
            }
            Err(error) => {
                let list = if worker < INTRUDERS as i64 {
                    ""
                } else {
                    "with another list: "
                };
                let reason = format!("{list}{}", name_of(&error));
                journal.failed(worker, &reason, &faults(&error)).await;
                sleep(Duration::from_millis(fastrand::u64(1..20))).await;
            }
        }
    }
}

/// Returns the faults of nodes that could not vote.
fn faults(error: &AcquireError) -> Vec<String> {
    let votes = error.votes().into_iter().flat_map(|votes| votes.iter());
    let faults = votes.filter_map(|vote| vote.answer.as_ref()?.as_ref().err());
    faults
        .map(|fault| match fault {
            // It has no name of its own.
            Fault::Server { message } => format!("Server: {message}"),
            fault => name_of(fault),
        })
        .collect()
}

/// Returns the name of an enum's variant.
fn name_of(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let name = text.split(|c: char| !c.is_alphanumeric()).next();
    name.unwrap_or_default().to_owned()
}

struct Work<'a> {
    worker: i64,
    journal: &'a Journal,
    lease: Lease,
    resource: i32,
    /// Whether the watchdog renews it. Otherwise, it may be extended by hand.
    renewed: bool,
    /// One write, mostly at once: grants follow each other closely.
    hurried: bool,
}

impl Work<'_> {
    /// Returns a time at which the lease is held, and its deadline. `None` if it is over.
    fn seen(&self) -> Option<(i64, i64)> {
        let time = now();
        let remaining = self.lease.remaining();
        (!remaining.is_zero()).then(|| (time, time + remaining.as_nanos() as i64))
    }

    async fn go_on(self, began: i64) {
        let token = self.lease.fencing_token().unwrap().as_i64();
        let time = now();
        let (start, until) = self.seen().unwrap_or((time, time));
        let won = Won {
            worker: self.worker,
            resource: self.resource,
            token,
            began,
            granters: self.nodes(|reply| matches!(reply, Reply::Granted { .. } | Reply::Raised { .. })),
            raised: self.nodes(|reply| matches!(reply, Reply::Raised { .. })) > 0,
            start,
            until,
        };
        let number = self.journal.won(&won).await;
        // Some holders do not check that they still hold the lock. The store must refuse their late writes.
        let careful = fastrand::u8(..) < 192;
        let (writes, pause) = match fastrand::u8(..) {
            // Nodes may forget the lease meanwhile, and another client may get the lock as well.
            0..16 if self.hurried => (1, 100),
            _ if self.hurried => (1, 1),
            // Some hold it for several times the TTL.
            0..8 if self.renewed => (fastrand::u8(5..15), 300),
            8..20 => (fastrand::u8(1..5), 400),
            _ => (fastrand::u8(1..4), 15),
        };
        for _ in 0..writes {
            if !self
                .write(token, careful, Duration::from_millis(fastrand::u64(0..pause)))
                .await
            {
                break;
            }
            if !self.renewed && fastrand::u8(..) < 64 {
                let _ = self.lease.extend().await;
            }
            match self.seen() {
                Some((time, until)) => self.journal.seen(number, time, until).await,
                None if careful => break,
                None => {}
            }
        }
        self.end(number).await;
    }

    /// Reads, pauses, and writes. Returns whether to go on.
    async fn write(&self, token: i64, careful: bool, thought: Duration) -> bool {
        let read = self.journal.read(self.resource).await;
        if careful {
            tokio::select! {
                biased;
                _ = self.lease.lost() => return false,
                () = sleep(thought) => {}
            }
        } else {
            sleep(thought).await;
        }
        self.journal.overwrite(self.resource, read + 1).await;
        let admitted = self.journal.write(self.resource, token).await;
        if !admitted {
            quorlock::count_stale_write();
        }
        // A write after the end of the lease may be refused, but not an earlier one.
        if !admitted && self.lease.is_held() {
            self.journal.refused_in_time(self.resource, token).await;
        }
        admitted
    }

    async fn end(self, number: i64) {
        let time = now();
        if !self.lease.is_held() {
            self.journal.ends(number, time).await;
            // Unless timers are late, the loss is known by now (E3).
            let lost = timeout(MOMENT, self.lease.lost()).await;
            let how = name_of(&lost.expect("the loss was not reported").reason);
            self.journal.ended(number, &format!("lost: {how}")).await;
            return;
        }
        match fastrand::u8(..) {
            // As if the process had died.
            0..12 if !self.renewed => {
                self.journal.ended(number, "forgotten").await;
                std::mem::forget(self.lease);
            }
            12..24 => {
                self.journal.ends(number, time).await;
                drop(self.lease);
                self.journal.ended(number, "dropped").await;
            }
            _ => {
                self.journal.ends(number, time).await;
                let outcome = name_of(&self.lease.release().await);
                self.journal.ended(number, &format!("released: {outcome}")).await;
            }
        }
    }

    /// A bit for each node that gave such a reply.
    fn nodes(&self, is_such: impl Fn(&Reply) -> bool) -> i32 {
        let votes = self.lease.votes().iter().enumerate();
        let such = votes.filter(|(_, vote)| matches!(&vote.answer, Some(Ok(reply)) if is_such(reply)));
        such.map(|(node, _)| 1 << node).sum()
    }
}
