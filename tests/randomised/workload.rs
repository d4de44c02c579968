//! What the clients do with locks.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use quorlock::{AcquireError, Drift, ExtendError, Lease, LossReason, Redlock};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::connections::node::Tagged;
use crate::connections::{Connections, Message};
use crate::ledger::{End, Grant, Ledger};
use crate::plan::{LONGEST_TTL, Plan, Profile};
use crate::store::{Write, WriteOutcome};

/// In a calm run, longer than all other tasks together hold a lock.
const LONG: u64 = 20_000;

pub(crate) struct Workload {
    pub(crate) client: usize,
    pub(crate) connections: Arc<Connections>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) plan: Arc<Plan>,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn name(resource: usize) -> String {
    format!("resource{resource}")
}

impl Workload {
    /// Uses locks until the time of faults is over, then shuts down.
    pub(crate) async fn work(self: Arc<Self>, redlock: Redlock, mut rng: Rng) {
        let mut tasks = JoinSet::new();
        for _ in 0..self.plan.tasks[self.client] {
            let (this, redlock, mut rng) = (self.clone(), redlock.clone(), rng.fork());
            tasks.spawn(async move {
                while this.connections.now() < this.plan.until {
                    sleep(ms(rng.u64(0..300))).await;
                    this.use_one(&redlock, &mut rng).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                self.violated(format!("a task of client {} has panicked: {error}", self.client));
            }
        }
        drop(tasks);
        self.shut_down(redlock).await;
    }

    /// After all faults, acquires every lock (I6).
    pub(crate) async fn finish(self: Arc<Self>, redlock: Redlock) {
        for resource in 0..self.plan.fenced.len() {
            let acquire = self.ledger.records().next_acquire();
            let request = redlock.lock(name(resource)).ttl(ms(1_000)).within(ms(6_000));
            let began = self.connections.now();
            match self
                .tagged(acquire, request.fencing(self.plan.fenced[resource]).acquire())
                .await
            {
                Ok(lease) => {
                    let grant = self.granted(&lease, acquire, resource, began);
                    self.ended(grant, End::Released);
                    let _ = lease.release().await;
                }
                // A key outlives the run if its server's clock was put back.
                Err(_) if !self.plan.clocks_behave => self
                    .ledger
                    .records()
                    .tally
                    .count("held by a clock that was put back"),
                Err(error) => self.violated(format!(
                    "I6: client {} did not get {} after all faults: {error}",
                    self.client,
                    name(resource)
                )),
            }
        }
        self.shut_down(redlock).await;
    }

    /// Shuts down, which must end in time (I5).
    async fn shut_down(&self, redlock: Redlock) {
        let began = self.connections.now();
        redlock.shutdown().await;
        let took = self.connections.now() - began;
        if took > LONGEST_TTL + 1_000 {
            self.violated(format!("I5: shutdown of client {} took {took} ms", self.client));
        }
        drop(redlock);
        self.connections.send(Message::Done);
    }

    fn tagged<F: Future>(&self, acquire: u32, future: F) -> Tagged<F> {
        Tagged {
            connections: self.connections.clone(),
            acquire,
            future: Box::pin(future),
        }
    }

    async fn use_one(self: &Arc<Self>, redlock: &Redlock, rng: &mut Rng) {
        let resource = rng.usize(..self.plan.fenced.len());
        let ttl = rng.u64(self.plan.ttl.0..=self.plan.ttl.1);
        let style = rng.u8(..10);
        let (watchdog, manual) = (style < 6, style < 8);
        let calm = self.plan.profile == Profile::Calm;
        let mut request = redlock
            .lock(name(resource))
            .ttl(ms(ttl))
            .fencing(self.plan.fenced[resource])
            .counter_retention(self.plan.retention)
            .watchdog(watchdog);
        if rng.u8(..6) == 0 {
            request = request.max_hold(ms(rng.u64(ttl / 2..=ttl * 3)));
        }
        let acquire = self.ledger.records().next_acquire();
        let began = self.connections.now();
        let limit = match rng.u8(..10) {
            0..3 => 0,
            3..9 => rng.u64(50..=3_000),
            _ if calm => LONG,
            _ => rng.u64(1_000..=4_000),
        };
        let acquiring = async {
            match limit {
                0 => request.try_acquire().await,
                limit => request.within(ms(limit)).acquire().await,
            }
        };
        let patience = if rng.u8(..8) == 0 {
            rng.u64(0..=60)
        } else {
            LONG * 10
        };
        let outcome = {
            let mut acquiring = pin!(self.tagged(acquire, acquiring));
            tokio::select! {
                biased;
                outcome = &mut acquiring => Some(outcome),
                () = sleep(ms(patience)) => None,
            }
        };
        match outcome {
            None => {
                let mut records = self.ledger.records();
                records.tally.count("acquires cancelled");
                records.cancelled.insert((self.client, acquire));
            }
            Some(Ok(lease)) => {
                let grant = self.granted(&lease, acquire, resource, began);
                self.hold(lease, grant, resource, watchdog, manual && !watchdog, rng)
                    .await;
            }
            Some(Err(error)) => self.refused(&error, limit),
        }
    }

    fn refused(&self, error: &AcquireError, limit: u64) {
        let mut records = self.ledger.records();
        records.tally.count(match error {
            AcquireError::Held { .. } => "contention: held",
            AcquireError::NoQuorum { .. } => "no quorum",
            AcquireError::TooLate { .. } => "granted too late",
            _ => "other errors",
        });
        if self.plan.profile == Profile::Calm && limit == LONG {
            records.violated(format!(
                "I6: client {} did not get the lock in {LONG} ms: {error}",
                self.client
            ));
        }
    }

    fn granted(&self, lease: &Lease, acquire: u32, resource: usize, began: u64) -> usize {
        let drift = Drift::default().over(lease.ttl());
        let mut records = self.ledger.records();
        records.tally.count("grants");
        let now = self.connections.now();
        records.grants.push(Grant {
            client: self.client,
            acquire,
            resource,
            token: lease.fencing_token().map(|token| token.get()),
            began,
            returned: now,
            believable: lease.ttl().saturating_sub(drift).as_micros() as i64,
            deadline: self.connections.moment(lease.deadline()),
            lowered: false,
            ended: None,
            lost: None,
        });
        let grant = records.grants.len() - 1;
        drop(records);
        self.connections.keep(grant, lease.handle());
        grant
    }

    /// Records the end of a lease. To be called before the end.
    fn ended(&self, grant: usize, end: End) {
        let now = self.connections.now();
        let lease = self
            .connections
            .leases()
            .into_iter()
            .find(|(number, _)| *number == grant);
        let mut records = self.ledger.records();
        let grant_ = &mut records.grants[grant];
        if let Some((_, lease)) = lease {
            grant_.see(self.connections.moment(lease.deadline()));
        }
        grant_.ended = Some((now, end));
        drop(records);
        self.connections.let_go(grant);
    }

    fn watch(&self, lease: &Lease, grant: usize) -> tokio::task::JoinHandle<()> {
        let (lease, connections, ledger) = (lease.handle(), self.connections.clone(), self.ledger.clone());
        tokio::spawn(async move {
            let lost = lease.lost().await;
            let mut records = ledger.records();
            let clock = matches!(lost.reason, LossReason::ClockPutForward { .. });
            records.grants[grant].lost = Some((connections.now(), clock));
            records.tally.count(match lost.reason {
                LossReason::Expired { .. } => "lost: expired",
                LossReason::Gone(_) => "lost: gone",
                LossReason::MaxHold => "lost: max_hold",
                LossReason::Suspended { .. } => "lost: suspended",
                LossReason::ClockPutForward { .. } => "lost: clock put forward",
                _ => "lost: otherwise",
            });
        })
    }

    async fn hold(
        self: &Arc<Self>,
        lease: Lease,
        grant: usize,
        resource: usize,
        watchdog: bool,
        manual: bool,
        rng: &mut Rng,
    ) {
        let watch = self.watch(&lease, grant);
        let ttl = lease.ttl().as_millis() as u64;
        let until =
            self.connections.now() + rng.u64(0..=if watchdog || manual { ttl * 2 } else { ttl * 5 / 4 });
        // Some holders check the lease before they write, which alone is not safe.
        let looks = rng.bool();
        loop {
            if let Some(token) = lease.fencing_token()
                && (!looks || lease.is_held())
            {
                let write = Write {
                    resource,
                    grant,
                    token: token.get(),
                };
                let written = self.connections.write(write);
                if rng.bool() && written.await == Ok(WriteOutcome::Stale) {
                    break;
                }
            }
            let now = self.connections.now();
            if now >= until || (looks && !lease.is_held()) {
                break;
            }
            sleep(ms(rng.u64(1..=ttl / 3).min(until - now))).await;
            if manual && lease.remaining() < ms(ttl / 2) {
                match lease.extend().await {
                    Ok(_) => self.ledger.records().tally.count("extended by hand"),
                    Err(ExtendError::NoQuorum { .. }) => self.ledger.records().tally.count("not extended"),
                    Err(_) => break,
                }
            }
        }
        match rng.u8(..10) {
            0..6 => {
                self.ended(grant, End::Released);
                let outcome = lease.release().await;
                self.ledger.records().tally.count(match outcome {
                    quorlock::ReleaseOutcome::Released => "released",
                    quorlock::ReleaseOutcome::AlreadyGone => "already gone",
                    _ => "release uncertain",
                });
            }
            6 | 7 if !watchdog && lease.is_held() => {
                watch.abort();
                let _ = watch.await;
                self.ended(grant, End::Forgotten);
                let mut records = self.ledger.records();
                records.tally.count("forgotten");
                let acquire = records.grants[grant].acquire;
                records.forgotten.insert(acquire);
                records.leaky.insert(self.client);
                drop(records);
                std::mem::forget(lease);
                return;
            }
            8 => {
                // Without a watchdog, until the lease is lost.
                if !watchdog {
                    lease.lost().await;
                }
                self.ended(grant, End::Dropped);
                drop(lease);
            }
            _ => {
                self.ended(grant, End::Dropped);
                drop(lease);
            }
        }
        watch.abort();
        let _ = watch.await;
    }

    fn violated(&self, what: String) {
        self.ledger.records().violated(what);
    }
}
