#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::node::{Action, ClientId, Fencing, LocalClient, Node, NodeState, OwnerToken, Reply, Request};
use crate::protocol::token::FencingToken;
use crate::redis::{NodeConfig, Participation, RedisNode, Settings};
use crate::sys::clock::{Clock, machine};
use crate::testbed::Testbed;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// An acquire that is sent again may be behind its own deletion. "No such key" is then not final (A6).
#[tokio::test]
async fn an_acquire_that_is_sent_again_changes_the_number_of_the_connection() {
    let testbed = Testbed::start(1).await.unwrap();
    let config = NodeConfig::from_url(&testbed.urls()[0]).unwrap();
    let clock = Clock::new(machine());
    let settings = Settings {
        prefix: "quorlock:".into(),
        timeout: TEST_TIMEOUT,
        window: TEST_TIMEOUT,
        longest_ttl: TEST_TIMEOUT,
        guard: None,
        participation: Participation::Full,
        client: LocalClient {
            id: ClientId::random(),
            info: None,
        },
    };
    let closed = CancellationToken::new();
    let set = RedisNode::set(vec![config], &settings, &Handle::current(), &clock, &closed);
    let node = &set[0];
    let is_up = |state: &NodeState| matches!(state, NodeState::Up { .. });
    node.watch().wait_for(is_up).await.unwrap();
    let acquire = async |key: &str| {
        let before = node.connection();
        let fencing = Fencing {
            seed: FencingToken::new(1).unwrap(),
            retention: None,
        };
        let action = Action::Acquire {
            ttl: TEST_TIMEOUT,
            fencing: Some(fencing),
            guard: None,
        };
        let request = Request {
            key: key.into(),
            owner: OwnerToken::random(),
            action,
        };
        let reply = node.call(request, TEST_TIMEOUT).await.unwrap();
        assert!(matches!(reply, Reply::Granted { .. }), "{reply:?}");
        node.connection() != before
    };
    assert!(!acquire("known").await);
    // The server refuses the digest, and the script's text is sent.
    testbed.nodes()[0].command(&["SCRIPT", "FLUSH"]).await.unwrap();
    assert!(acquire("forgotten").await);
    assert!(!acquire("known again").await);
}
