//! Clients with different lists of nodes: the second one is refused, and told both lists.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use quorlock::Redlock;
use quorlock::node::NodeState;
use quorlock::testbed::{Data, TestNode, Testbed, TestbedError};
use tokio::time::sleep;

use crate::common::eventually;
use crate::{Client, Holders, all_up, short, wide};

/// Why nodes miss the first client's lock.
#[derive(Clone, Copy)]
enum Absence {
    Stopped,
    Killed,
}

impl Absence {
    async fn begin(self, node: &TestNode) -> Result<(), TestbedError> {
        match self {
            Absence::Stopped => node.stop(),
            Absence::Killed => node.kill().await,
        }
    }

    async fn end(self, node: &TestNode) -> Result<(), TestbedError> {
        match self {
            Absence::Stopped => node.resume(),
            Absence::Killed => node.restart(Data::Keep).await,
        }
    }
}

fn urls(testbed: &Testbed, list: &[usize]) -> Vec<String> {
    list.iter().map(|&node| testbed.nodes()[node].url()).collect()
}

/// Returns whether the error names all nodes of both lists.
pub(crate) fn tells_both_lists(error: &str, lists: [&[String]; 2]) -> bool {
    let mut urls = lists.into_iter().flatten();
    error.contains("list of nodes") && urls.all(|url| error.contains(url.trim_start_matches("redis://")))
}

/// Waits until a client has given up a node. Requests in the node's buffers do nothing after that.
async fn given_up(redlock: &Redlock, node: &TestNode) {
    let name = node.addr().to_string();
    eventually("the node is given up", async || {
        let mut nodes = redlock.nodes().into_iter();
        nodes.any(|status| *status.name == *name && !matches!(status.state, NodeState::Up { .. }))
    })
    .await;
}

/// The first client takes a lock while common nodes are away, which would help the second client to it later.
async fn second_is_refused(first: &[usize], away: &[usize], how: Absence, second: &[usize]) {
    let testbed = Testbed::start(6).await.unwrap();
    let (ours, theirs) = (urls(&testbed, first), urls(&testbed, second));
    let away = || away.iter().map(|&node| &testbed.nodes()[node]);
    // Stopped nodes are given up after a few requests.
    let budget = Duration::from_millis(300);
    let holders = Holders::default();
    let mut first = Client::connected("the first list", || wide(&ours).node_budget(budget)).await;
    all_up(first.redlock()).await;
    try_join_all(away().map(|node| how.begin(node))).await.unwrap();
    let lease = first.acquire("job", &holders).await;
    join_all(away().map(|node| given_up(first.redlock(), node))).await;
    try_join_all(away().map(|node| how.end(node))).await.unwrap();
    all_up(first.redlock()).await;
    let mut second = Client::new("the second list", || wide(&theirs).node_budget(budget));
    let error = second.try_acquire("job", &holders).await.unwrap_err();
    assert!(tells_both_lists(&error, [&ours, &theirs]), "{error}");
    assert!(second.redlock.is_none(), "the second client connected: {error}");
    // The first client goes on.
    assert!(lease.is_held());
    drop(lease.release().await);
    first.succeed("job", &holders).await;
}

#[tokio::test]
async fn three_nodes_first_then_five() {
    second_is_refused(&[0, 1, 2], &[2], Absence::Stopped, &[0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn five_nodes_first_then_three() {
    second_is_refused(&[0, 1, 2, 3, 4], &[0, 1], Absence::Killed, &[0, 1, 2]).await;
}

#[tokio::test]
async fn five_nodes_first_then_five_with_another_one() {
    second_is_refused(&[0, 1, 2, 3, 4], &[0, 1], Absence::Stopped, &[0, 1, 2, 3, 5]).await;
}

#[tokio::test]
async fn five_nodes_with_another_one_first() {
    second_is_refused(&[0, 1, 2, 3, 5], &[0, 1], Absence::Killed, &[0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn the_first_three_of_five_nodes_first_then_the_last_three() {
    second_is_refused(&[0, 1, 2], &[2], Absence::Killed, &[2, 3, 4]).await;
}

#[tokio::test]
async fn the_last_three_of_five_nodes_first_then_the_first_three() {
    second_is_refused(&[2, 3, 4], &[2], Absence::Stopped, &[0, 1, 2]).await;
}

/// A node that was away at the first client's start does not help the second client, either.
#[tokio::test]
async fn three_nodes_of_which_one_is_away_from_the_start_then_five() {
    let testbed = Testbed::start(5).await.unwrap();
    let (ours, theirs) = (urls(&testbed, &[0, 1, 2]), urls(&testbed, &[0, 1, 2, 3, 4]));
    let holders = Holders::default();
    testbed.nodes()[2].stop().unwrap();
    let mut first = Client::connected("three nodes", || short(&ours)).await;
    let lease = first.acquire("job", &holders).await;
    testbed.nodes()[2].resume().unwrap();
    let mut second = Client::new("five nodes", || short(&theirs));
    let error = second.try_acquire("job", &holders).await.unwrap_err();
    assert!(tells_both_lists(&error, [&ours, &theirs]), "{error}");
    drop(lease);
}

/// The only common node is away at first. Once it is back, one client is refused.
#[tokio::test]
async fn lists_that_meet_while_both_run() {
    let testbed = Testbed::start(5).await.unwrap();
    let lists = [urls(&testbed, &[0, 1, 2]), urls(&testbed, &[2, 3, 4])];
    testbed.nodes()[2].kill().await.unwrap();
    let mut clients = [
        Client::connected("the first three", || short(&lists[0])).await,
        Client::connected("the last three", || short(&lists[1])).await,
    ];
    testbed.nodes()[2].restart(Data::Keep).await.unwrap();
    for client in &clients {
        all_up(client.redlock()).await;
    }
    // Recorded separately: until they meet on that node, both get locks.
    let give_up = Instant::now() + Duration::from_secs(10);
    let refused = 'met: loop {
        assert!(
            Instant::now() < give_up,
            "both still get locks, so there are two holders"
        );
        for (number, client) in clients.iter_mut().enumerate() {
            match client.try_acquire("job", &Holders::default()).await {
                Ok(lease) => drop(lease.release().await),
                Err(error) if tells_both_lists(&error, [&lists[0], &lists[1]]) => break 'met number,
                Err(_) => {}
            }
        }
        sleep(crate::STEP).await;
    };
    let holders = Holders::default();
    let lease = clients[1 - refused].acquire("job", &holders).await;
    let taken = clients[refused].contest(&lease, &holders).await;
    assert!(taken.is_none() && lease.is_held());
}
