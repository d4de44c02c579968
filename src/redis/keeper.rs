//! Keeps one node connected: opens a link, hands it to the lane, waits for its end, and starts again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::connection::Task;
use super::lane::Lane;
use super::link::{Endpoint, Link};
use super::members::Members;
use crate::node::Fault;
use crate::protocol::backoff::Backoff;

/// Between two tries to connect.
const FASTEST: Duration = Duration::from_millis(5);
const SLOWEST: Duration = Duration::from_millis(500);
/// The same for a node that can be connected to and then does not answer.
const HUNG_FASTEST: Duration = Duration::from_millis(250);
const HUNG_SLOWEST: Duration = Duration::from_secs(2);

/// Runs until dropped.
pub(super) async fn keep(endpoint: Arc<Endpoint>, lane: Arc<Lane>, members: Arc<Members>) {
    let mut breaker = Breaker::default();
    loop {
        let opened = Link::open(&endpoint).await;
        let adopted = opened.and_then(|(link, task)| link.adopt(&endpoint, None).map(|()| (link, task)));
        let (end, fault) = match adopted {
            Ok((link, task)) => serve(&endpoint, &lane, &members, link, task).await,
            Err(fault) => (End::Failed, fault),
        };
        endpoint.addresses.set_current(None);
        lane.down(&fault);
        // One that stays away is no news, or all others would be looked at with every try.
        if breaker.is_closed() || end == End::Served {
            tracing::info!(node = &*endpoint.name, %fault, "node out of reach");
            members.changed();
        }
        sleep(breaker.delay(end, fastrand::u32(..))).await;
    }
}

/// Uses the link, and the links that follow it as the node's name moves, until one of them ends.
async fn serve(
    endpoint: &Endpoint,
    lane: &Lane,
    members: &Members,
    link: Link,
    mut task: Task,
) -> (End, Fault) {
    let mut link = Arc::new(link);
    loop {
        let since = Instant::now();
        lane.up(Arc::clone(&link));
        members.changed();
        endpoint.addresses.set_current(link.peer());
        let (given_up, fault) = tokio::select! {
            fault = task.ended() => (false, fault),
            // T4: the next turn connects afresh; dropping `task` closes the old connection with a reset.
            fault = link.failed() => (true, fault),
            (next, next_task) = follow(endpoint, &link) => {
                replace(endpoint, lane, &link, &next);
                (link, task) = (Arc::new(next), next_task);
                continue;
            }
        };
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
/// (M3).
async fn follow(endpoint: &Endpoint, link: &Link) -> (Link, Task) {
    let mut known = None;
    loop {
        let found = endpoint.addresses.moved(link.peer()).await;
        let opened = Link::open_at(endpoint, found).await;
        let fault =
            match opened.and_then(|(next, task)| next.adopt(endpoint, Some(link)).map(|()| (next, task))) {
                Ok(opened) => return opened,
                Err(fault) => fault,
            };
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
    // Ends what is in flight on the old one.
    let reason = "the node's name leads elsewhere".into();
    lane.down(&Fault::Disconnected { reason });
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
