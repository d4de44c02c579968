//! Keeps one node connected: opens a link, hands it to the lane, waits for its end, and starts again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lane::Lane;
use super::link::{Endpoint, Link};
use super::memory::Predecessor;
use crate::node::{Fault, Unfit};
use crate::protocol::backoff::Backoff;

/// Between two tries to connect.
const FASTEST: Duration = Duration::from_millis(5);
const SLOWEST: Duration = Duration::from_millis(500);

/// Runs until dropped.
pub(super) async fn keep(endpoint: Endpoint, lane: Arc<Lane>) {
    let backoff = Backoff::new(FASTEST, SLOWEST);
    let mut failures = 0u32;
    let mut before = Predecessor::default();
    loop {
        let fault = match Link::open(&endpoint, &before).await {
            Ok((link, mut task)) => {
                let since = Instant::now();
                let link = Arc::new(link);
                lane.up(Arc::clone(&link));
                let fault = tokio::select! {
                    fault = task.ended() => fault,
                    // T4: the next turn connects afresh; dropping `task` closes the old connection with a reset.
                    fault = link.failed() => fault,
                };
                before.last = Some((link.run_id().clone(), Instant::now()));
                before.was_replica = false;
                // One that is lost as soon as it is made counts as a failure like any other.
                if since.elapsed() > SLOWEST {
                    failures = 0;
                }
                fault
            }
            Err(fault) => {
                before.was_replica |= fault == Fault::Unfit(Unfit::Replica);
                fault
            }
        };
        if failures == 0 {
            tracing::info!(node = &*endpoint.name, %fault, "node out of reach");
        }
        failures = failures.saturating_add(1);
        lane.down(&fault);
        sleep(backoff.delay(failures, fastrand::u32(..))).await;
    }
}
