//! Votes of memories that are gone do not count (M7).

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Action, Fault};
use quorlock::{AcquireError, ExtendError, Redlock};
use tokio::time::sleep;

use crate::nodes::{Plan, ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

const TTL: Duration = ms(10_000);

/// Returns three nodes. Node 0 says yes at once, node 1 takes 50 ms for one kind of action, node 2 is out of memory.
fn nodes(action_that_takes_long: fn(&Action) -> bool) -> Vec<Arc<ScriptedNode>> {
    scripted_nodes(3, move |node, action| match node {
        1 if action_that_takes_long(&action) => Plan::Answer(ms(50), Ok(yes(action))),
        2 if !matches!(action, Action::Release { .. }) => at_once(Err(Fault::OutOfMemory)),
        _ => at_once(Ok(yes(action))),
    })
}

/// The node begins a new memory in the middle of the attempt: after its vote (0), before its vote (1), or without a vote (2).
#[tokio::test(start_paused = true)]
async fn a_grant_counts_only_while_the_memory_is_known_to_be_there() {
    for (node, is_won) in [(None, true), (Some(0), false), (Some(1), false), (Some(2), true)] {
        let nodes = nodes(|action| matches!(action, Action::Acquire { .. }));
        let manager = redlock(&nodes, Redlock::builder());
        let request = manager.lock("job").ttl(TTL).watchdog(false);
        let begins_anew = async {
            sleep(ms(20)).await;
            if let Some(node) = node {
                nodes[node].begin_anew();
            }
        };
        let (outcome, ()) = tokio::join!(request.try_acquire(), begins_anew);
        match outcome {
            Ok(_) => assert!(is_won, "{node:?}"),
            Err(error) => {
                assert!(!is_won, "{node:?}: {error}");
                assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_only_while_the_memory_is_known_to_be_there() {
    for (node, is_renewed) in [(None, true), (Some(0), false), (Some(2), true)] {
        let nodes = nodes(|action| matches!(action, Action::Extend { .. }));
        let manager = redlock(&nodes, Redlock::builder());
        let request = manager.lock("job").ttl(TTL).watchdog(false);
        let lease = request.try_acquire().await.unwrap();
        let deadline = lease.deadline();
        sleep(ms(100)).await;
        let begins_anew = async {
            sleep(ms(20)).await;
            if let Some(node) = node {
                nodes[node].begin_anew();
            }
        };
        let (outcome, ()) = tokio::join!(lease.extend(), begins_anew);
        match outcome {
            Ok(_) => assert!(is_renewed, "{node:?}"),
            Err(error) => {
                assert!(!is_renewed, "{node:?}: {error}");
                assert!(matches!(error, ExtendError::NoQuorum { .. }), "{error}");
                assert_eq!(lease.deadline(), deadline);
            }
        }
        // The renewal that did not count does not count later either.
        sleep(ms(500)).await;
        assert_eq!(lease.deadline() > deadline, is_renewed, "{node:?}");
    }
}
