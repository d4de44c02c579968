//! Keeps one node connected: opens a link, hands it to the lane, waits for its end, and starts again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lane::Lane;
use super::link::{Endpoint, Link, Task};
use super::memory::Predecessor;
use crate::node::{Fault, Unfit};
use crate::protocol::backoff::Backoff;

/// Between two tries to connect.
const FASTEST: Duration = Duration::from_millis(5);
const SLOWEST: Duration = Duration::from_millis(500);
/// The same for a node that can be connected to and then does not answer.
const HUNG_FASTEST: Duration = Duration::from_millis(250);
const HUNG_SLOWEST: Duration = Duration::from_secs(5);

/// Runs until dropped.
pub(super) async fn keep(endpoint: Arc<Endpoint>, lane: Arc<Lane>) {
    let mut breaker = Breaker::default();
    let mut before = Predecessor::default();
    loop {
        let (end, fault) = match Link::open(&endpoint, &before).await {
            Ok((link, task)) => {
                link.adopt(false);
                serve(&endpoint, &lane, &mut before, link, task).await
            }
            Err(fault) => {
                before.was_replica |= fault == Fault::Unfit(Unfit::Replica);
                (End::Failed, fault)
            }
        };
        if breaker.is_closed() || end == End::Served {
            tracing::info!(node = &*endpoint.name, %fault, "node out of reach");
        }
        endpoint.addresses.set_current(None);
        lane.down(&fault);
        sleep(breaker.delay(end, fastrand::u32(..))).await;
    }
}

/// Uses the link, and the links that follow it as the node's name moves, until one of them ends.
async fn serve(
    endpoint: &Endpoint,
    lane: &Lane,
    before: &mut Predecessor,
    link: Link,
    mut task: Task,
) -> (End, Fault) {
    let mut link = Arc::new(link);
    loop {
        let since = Instant::now();
        lane.up(Arc::clone(&link));
        endpoint.addresses.set_current(link.peer());
        let (given_up, fault) = tokio::select! {
            fault = task.ended() => (false, fault),
            // T4: the next turn connects afresh; dropping `task` closes the old connection with a reset.
            fault = link.failed() => (true, fault),
            moved = follow(endpoint, before, &link) => match moved {
                Ok((next, next_task)) => {
                    replace(endpoint, lane, &link, &next);
                    remember(before, &link);
                    (link, task) = (Arc::new(next), next_task);
                    continue;
                }
                Err(fault) => (false, fault),
            },
        };
        remember(before, &link);
        let end = match link.has_served() {
            false if given_up => End::Hung,
            // One that is lost as soon as it is made counts as a failure like any other.
            _ if since.elapsed() <= SLOWEST => End::Failed,
            _ => End::Served,
        };
        return (end, fault);
    }
}

/// Waits until the node's name leads elsewhere, and to a server that passes the probe. Until then, the link stays in use
/// (L4). Fails if the link must not be used any more.
async fn follow(endpoint: &Endpoint, before: &mut Predecessor, link: &Link) -> Result<(Link, Task), Fault> {
    let mut known = None;
    loop {
        let found = endpoint.addresses.moved(link.peer()).await;
        before.last = Some((link.run_id().clone(), Instant::now()));
        before.seen_since = link.seen_since();
        let fault = match Link::open_at(endpoint, found, before).await {
            Ok(opened) => return Ok(opened),
            Err(fault) => fault,
        };
        before.was_replica |= fault == Fault::Unfit(Unfit::Replica);
        // The probe may have entered the other server in the roll.
        let entered = endpoint
            .roll
            .enter(endpoint.number, &endpoint.name, link.run_id());
        entered.map_err(Fault::Unfit)?;
        if known.as_ref() != Some(&fault) {
            let name = &*endpoint.name;
            tracing::info!(node = name, %fault, "the name leads elsewhere, but not to a node: the connection is kept");
        }
        known = Some(fault);
    }
}

/// Puts a link to another address in the place of one that is in use.
fn replace(endpoint: &Endpoint, lane: &Lane, link: &Link, next: &Link) {
    if let (Some(from), Some(to)) = (link.peer(), next.peer()) {
        tracing::info!(node = &*endpoint.name, %from, %to, "node moved: its name leads there now");
    }
    // Ends what is in flight on the old one, whose answers may still tell the old server's time.
    let reason = "the node's name leads elsewhere".into();
    lane.down(&Fault::Disconnected { reason });
    next.adopt(next.run_id() != link.run_id());
}

/// Keeps what the next probe has to know of the server that this link led to.
fn remember(before: &mut Predecessor, link: &Link) {
    before.last = Some((link.run_id().clone(), Instant::now()));
    before.was_replica = false;
    before.seen_since = link.seen_since();
}

/// How a connection ended, or a try to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It had been of use, or had at least lasted.
    Served,
    /// It did not come about, or did not last.
    Failed,
    /// It passed the probe, and then answered nothing.
    Hung,
}

/// R3: how long a node is left alone, the longer the more often it has failed in a row.
#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    hangs: u32,
}

impl Breaker {
    /// Whether the node has not failed lately.
    fn is_closed(&self) -> bool {
        self.failures == 0
    }

    /// Until the next try. `random` jitters.
    fn delay(&mut self, end: End, random: u32) -> Duration {
        match end {
            End::Served => *self = Breaker::default(),
            End::Failed => {}
            End::Hung => self.hangs = self.hangs.saturating_add(1),
        }
        self.failures = self.failures.saturating_add(1);
        let usual = Backoff::new(FASTEST, SLOWEST).delay(self.failures, random);
        match self.hangs {
            0 => usual,
            hangs => usual.max(Backoff::new(HUNG_FASTEST, HUNG_SLOWEST).delay(hangs, random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fails_is_left_alone_for_longer_each_time_up_to_a_limit() {
        let mut breaker = Breaker::default();
        let delays: Vec<Duration> = (0..20).map(|_| breaker.delay(End::Failed, u32::MAX)).collect();
        assert!(delays.is_sorted() && delays[0] < delays[5], "{delays:?}");
        assert_eq!(delays[19], SLOWEST);
    }

    #[test]
    fn a_node_that_lets_itself_be_connected_to_and_hangs_is_left_alone_for_longer_still() {
        let mut breaker = Breaker::default();
        let delays: Vec<Duration> = (0..20).map(|_| breaker.delay(End::Hung, u32::MAX)).collect();
        assert!(delays.is_sorted() && delays[0] <= HUNG_FASTEST * 2, "{delays:?}");
        assert_eq!(delays[19], HUNG_SLOWEST);
        // Also when it fails otherwise in between.
        assert_eq!(breaker.delay(End::Failed, u32::MAX), HUNG_SLOWEST);
    }

    #[test]
    fn a_connection_that_was_of_use_makes_up_for_all_before() {
        let mut breaker = Breaker::default();
        for _ in 0..20 {
            breaker.delay(End::Hung, u32::MAX);
        }
        assert!(breaker.delay(End::Served, u32::MAX) <= FASTEST * 2);
        assert!(!breaker.is_closed());
    }
}
