//! Nodes that have lost the key of a held lease get it again. A lost lease is not revived (E4).

use std::sync::Arc;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{ExtendError, Lease, Redlock, ReleaseOutcome};
use tokio::time::sleep;

use crate::nodes::{Plan, ScriptedNode, Server, at_once, ms, redlock, scripted_nodes, yes};

const TTL: std::time::Duration = ms(3_000);

fn servers(one_way: u64) -> Vec<Arc<Server>> {
    (0..5)
        .map(|number| Server::new(number, move || ms(one_way)))
        .collect()
}

async fn acquire(redlock: &Redlock, fencing: bool) -> Lease {
    let request = redlock.lock("job").ttl(TTL).fencing(fencing);
    let lease = request.try_acquire().await.unwrap();
    // Until the nodes that were not waited for have the key, too.
    sleep(ms(100)).await;
    lease
}

fn keys(servers: &[Arc<Server>]) -> Vec<usize> {
    servers.iter().map(|server| server.keys()).collect()
}

fn heals(scripted_nodes: &[Arc<ScriptedNode>]) -> Vec<usize> {
    let heals = |scripted_node: &Arc<ScriptedNode>| {
        scripted_node.calls().iter().filter(|call| call.is_heal()).count()
    };
    scripted_nodes.iter().map(heals).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_that_forget_one_after_the_other_have_it_again_after_the_next_renewal() {
    for fencing in [true, false] {
        let servers = servers(1);
        let redlock = redlock(&servers, Redlock::builder());
        let lease = acquire(&redlock, fencing).await;
        let token = lease.fencing_token();
        for round in 0..10 {
            let loser = &servers[round % 5];
            loser.forget();
            assert_eq!(keys(&servers).iter().sum::<usize>(), 4);
            sleep(TTL / 2).await;
            assert_eq!(keys(&servers), [1; 5]);
            assert!(token.is_none_or(|token| loser.counter("quorlock:job").unwrap() >= token));
        }
        assert!(lease.is_held());
        assert_eq!(servers.iter().map(|server| server.healed()).sum::<usize>(), 10);
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        redlock.shutdown().await;
        assert_eq!(keys(&servers), [0; 5]);
        let next = acquire(&crate::nodes::redlock(&servers, Redlock::builder()), fencing).await;
        assert_eq!(next.fencing_token() > token, fencing);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_healed_after_an_extension_by_hand() {
    let servers = servers(1);
    let redlock = redlock(&servers, Redlock::builder().watchdog(false));
    let lease = acquire(&redlock, true).await;
    servers[0].forget();
    servers[1].forget();
    lease.extend().await.unwrap();
    sleep(ms(10)).await;
    assert_eq!(keys(&servers), [1; 5]);
}

/// Two nodes have the key, two fail, and one has lost it. The lease may be lost, so no key is set again.
#[tokio::test(start_paused = true)]
async fn nothing_is_set_again_without_a_quorum_that_has_it() {
    let nodes = scripted_nodes(5, |node, action| match (action, node) {
        (Action::Extend { .. }, 0 | 1) => at_once(Ok(Reply::Extended)),
        (Action::Extend { .. }, 2) => at_once(Ok(Reply::Missing)),
        (Action::Extend { .. }, _) => at_once(Err(Fault::OutOfMemory)),
        (action, _) => at_once(Ok(yes(action))),
    });
    let lease = acquire(&redlock(&nodes, Redlock::builder().watchdog(false)), true).await;
    for _ in 0..3 {
        let error = lease.extend().await.unwrap_err();
        assert!(matches!(error, ExtendError::NoQuorum { .. }), "{error}");
        sleep(ms(400)).await;
    }
    assert_eq!(heals(&nodes), [0; 5]);
}

#[tokio::test(start_paused = true)]
async fn only_nodes_that_lost_the_key_are_healed_however_late_that_is_known() {
    let nodes = scripted_nodes(5, |node, action| match (action, node) {
        (Action::Extend { .. }, 3) => Plan::Answer(ms(200), Ok(Reply::Missing)),
        (Action::Extend { .. }, 4) => Plan::Answer(ms(200), Ok(Reply::Foreign)),
        (action, _) => at_once(Ok(yes(action))),
    });
    let lease = acquire(&redlock(&nodes, Redlock::builder().watchdog(false)), true).await;
    lease.extend().await.unwrap();
    sleep(ms(1_000)).await;
    assert_eq!(heals(&nodes), [0, 0, 0, 1, 0]);
}

/// A heal may be in flight when the lease ends.
#[tokio::test(start_paused = true)]
async fn a_key_set_again_while_the_lease_ends_is_deleted() {
    for dropped in [false, true] {
        for after in 0..120 {
            let servers = servers(20);
            let redlock = redlock(&servers, Redlock::builder().watchdog(false));
            let lease = acquire(&redlock, true).await;
            servers[2].forget();
            let extending = lease.handle();
            tokio::spawn(async move { extending.extend().await });
            sleep(ms(after)).await;
            if dropped {
                drop(lease);
            } else {
                let _ = lease.release().await;
            }
            redlock.shutdown().await;
            sleep(ms(100)).await;
            assert_eq!(keys(&servers), [0; 5], "ended after {after} ms");
        }
    }
}

/// The node was unreachable during the acquire. The answer to the heal is lost, so the key may be set.
#[tokio::test(start_paused = true)]
async fn a_heal_that_may_have_been_executed_is_cleaned_up() {
    let nodes = scripted_nodes(3, |node, action| match (action, node) {
        (Action::Acquire { .. }, 2) => at_once(Err(Fault::Disconnected {
            reason: "away".into(),
        })),
        (Action::Extend { .. }, 2) => at_once(Ok(Reply::Missing)),
        (Action::Heal { .. }, 2) => Plan::Never,
        (Action::Release { .. }, 2) => at_once(Ok(Reply::Missing)),
        (action, _) => at_once(Ok(yes(action))),
    });
    let redlock = redlock(&nodes, Redlock::builder().watchdog(false));
    let lease = acquire(&redlock, true).await;
    lease.extend().await.unwrap();
    sleep(ms(1)).await;
    assert_eq!(heals(&nodes), [0, 0, 1]);
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    redlock.shutdown().await;
    // "Missing" is final only when the heal can no longer arrive.
    let releases = nodes[2].calls().iter().filter(|call| call.is_release()).count();
    assert!(releases >= 2, "asked {releases} times");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_client_is_not_overwritten() {
    let servers = servers(1);
    let redlock = redlock(&servers, Redlock::builder().watchdog(false));
    let lease = acquire(&redlock, true).await;
    servers[0].forget();
    let other = servers[0].clone();
    let theirs = crate::nodes::redlock(&[other], Redlock::builder().watchdog(false));
    let foreign = theirs.lock("job").ttl(TTL).try_acquire().await.unwrap();
    lease.extend().await.unwrap();
    sleep(ms(10)).await;
    assert_eq!(servers[0].healed(), 0);
    assert!(foreign.extend().await.is_ok());
}

/// When the lease is over, nothing waits for a node that has not answered an extension.
#[tokio::test(start_paused = true)]
async fn nothing_of_a_lease_lives_on_when_it_is_over() {
    let nodes = scripted_nodes(3, |node, action| match (action, node) {
        (Action::Extend { .. }, 2) => Plan::Never,
        (action, _) => at_once(Ok(yes(action))),
    });
    let redlock = redlock(&nodes, Redlock::builder().ttl(ms(3_600_000)).watchdog(false));
    let lease = redlock.lock("job").try_acquire().await.unwrap();
    lease.extend().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    drop(redlock);
    sleep(ms(1_000)).await;
    assert!(nodes.iter().all(|node| Arc::strong_count(node) == 1));
}
