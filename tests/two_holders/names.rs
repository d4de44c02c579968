//! The same nodes under other names and in another order are the same list.

use quorlock::testbed::{Data, TestNode, Testbed};

use crate::common::PATIENCE;
use crate::{Client, Holders, all_up, flush, short};

#[derive(Clone, Copy)]
enum Event {
    Restart(Data),
    Flush,
}

impl Event {
    async fn befall(self, node: &TestNode) {
        match self {
            Event::Restart(data) => node.restart(data).await.unwrap(),
            Event::Flush => flush(node).await,
        }
    }
}

/// Two clients hold the lock in turns, also after the event. One knows the nodes by other names.
async fn in_turns(event: Event) {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut renamed: Vec<_> = urls
        .iter()
        .map(|url| url.replace("127.0.0.1", "localhost"))
        .collect();
    renamed.reverse();
    let holders = Holders::default();
    let mut first = Client::connected("by address", || short(&urls)).await;
    let mut second = Client::connected("by name", || short(&renamed)).await;
    for node in [None, Some(0), Some(2)] {
        if let Some(node) = node {
            event.befall(&testbed.nodes()[node]).await;
        }
        for _ in 0..2 {
            first.succeed("job", &holders).await;
            second.succeed("job", &holders).await;
        }
        let lease = first.acquire("job", &holders).await;
        second.try_acquire("job", &holders).await.unwrap_err();
        drop(lease.release().await);
        all_up(first.redlock()).await;
        all_up(second.redlock()).await;
    }
    // Later clients get the lock once registrations with lost memories have expired: under other names, those are other lists.
    let patient = |urls: &[String]| short(urls).connect_timeout(PATIENCE);
    Client::connected("by address, later", || patient(&urls))
        .await
        .succeed("job", &holders)
        .await;
    Client::connected("by name, later", || patient(&renamed))
        .await
        .succeed("job", &holders)
        .await;
}

#[tokio::test]
async fn with_a_node_that_restarts() {
    in_turns(Event::Restart(Data::Keep)).await;
}

#[tokio::test]
async fn with_a_node_that_comes_back_empty() {
    in_turns(Event::Restart(Data::Wipe)).await;
}

#[tokio::test]
async fn with_a_node_that_is_flushed() {
    in_turns(Event::Flush).await;
}
