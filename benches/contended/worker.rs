//! One process that wants the lock.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::advisory::Advisory;
use crate::contender::{Contender, ContenderKind};
use crate::etcd::Etcd;
use crate::quorlock::Quorlock;
use crate::record::{Grant, Job, Moment, Order, Record, now};
use crate::rslock::Rslock;

/// The first argument of such a process. The second is a [`Job`].
pub(crate) const WORKER: &str = "--worker";
/// For the last waits of a round to end by themselves.
const LINGER: Duration = Duration::from_millis(300);
/// Printed once the process has connected.
pub(crate) const READY: &str = "ready";

/// Returns the job of this process. `None` if it is not a worker.
pub(crate) fn job() -> Result<Option<Job>, Box<dyn Error>> {
    let mut words = env::args().skip(1);
    match (words.next(), words.next()) {
        (Some(word), Some(job)) if word == WORKER => Ok(Some(serde_json::from_str(&job)?)),
        _ => Ok(None),
    }
}

pub(crate) fn main(job: &Job) -> Result<(), Box<dyn Error>> {
    // The process would notice the end of its input only after a round.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut runtime = if job.multi_thread {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build()?;
    let done = runtime.block_on(async {
        match job.who {
            ContenderKind::Quorlock | ContenderKind::QuorlockPlain => work::<Quorlock>(job).await,
            ContenderKind::Rslock | ContenderKind::RslockTuned => work::<Rslock>(job).await,
            ContenderKind::PostgresBlocking | ContenderKind::PostgresPolling => work::<Advisory>(job).await,
            ContenderKind::Etcd => work::<Etcd>(job).await,
        }
    });
    // The thread that reads the input would be waited for.
    runtime.shutdown_background();
    done
}

async fn work<C: Contender>(job: &Job) -> Result<(), Box<dyn Error>> {
    let waiters = C::connect(job.who, &job.addresses, job.waiters).await?;
    let waiters: Vec<Arc<C>> = waiters.into_iter().map(Arc::new).collect();
    let linger = if job.who.may_be_dropped() {
        LINGER
    } else {
        Duration::MAX
    };
    println!("{READY}");
    let mut orders: Lines<BufReader<Stdin>> = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let record = compete(&waiters, serde_json::from_str(&line)?, linger).await;
        println!("{}", serde_json::to_string(&record)?);
    }
    Ok(())
}

async fn compete<C: Contender>(waiters: &[Arc<C>], order: Order, linger: Duration) -> Record {
    let order = Arc::new(order);
    let mut running = JoinSet::new();
    for (number, waiter) in waiters.iter().take(order.waiters).enumerate() {
        running.spawn(take_turns(waiter.clone(), number, order.clone(), linger));
    }
    let mut all = Record::default();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(mut record) => {
                all.grants.append(&mut record.grants);
                all.unserved.append(&mut record.unserved);
                all.gave_up += record.gave_up;
                all.failed.append(&mut record.failed);
            }
            Err(panic) => all.failed.push(panic.to_string()),
        }
    }
    all
}

async fn take_turns<C: Contender>(
    contender: Arc<C>,
    waiter: usize,
    order: Arc<Order>,
    linger: Duration,
) -> Record {
    let mut record = Record::default();
    sleep(Duration::from_nanos(order.start.saturating_sub(now()))).await;
    while record.grants.len() < order.at_most {
        let asked = now();
        if asked >= order.until {
            break;
        }
        let give_up = Duration::from_nanos(order.until.saturating_sub(asked)).saturating_add(linger);
        let acquiring = timeout(give_up, acquire(&*contender, &order, &mut record));
        let Ok(Some(held)) = acquiring.await else {
            record.unserved.push(now().min(order.until).saturating_sub(asked));
            break;
        };
        let from = now();
        // A late holder releases at once, so that no waiter is left in a queue.
        let late = from >= order.until;
        if late {
            record.unserved.push(order.until.saturating_sub(asked));
        } else {
            sleep(order.hold).await;
        }
        let to = now();
        if let Err(failure) = contender.release(held).await {
            record.failed.push(format!("release: {failure}"));
        }
        record.grants.push(Grant {
            process: 0, // set by the parent
            waiter,
            asked,
            from,
            to,
            released: now(),
        });
        if !late && !order.pause.is_zero() {
            sleep(order.pause).await;
        }
    }
    record
}

/// Tries again whenever the contender gives up, until the round is over.
async fn acquire<C: Contender>(contender: &C, order: &Order, record: &mut Record) -> Option<C::Held> {
    let mut refused: Moment = 0;
    loop {
        match contender.acquire(&order.key).await {
            Ok(held) => return Some(held),
            Err(_) if now() < order.until => record.gave_up += 1,
            Err(_) => return None,
        }
        // At most one try a millisecond, whatever fails.
        if now().saturating_sub(refused) < 1_000_000 {
            sleep(Duration::from_millis(1)).await;
        }
        refused = now();
    }
}
