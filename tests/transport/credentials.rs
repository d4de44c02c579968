//! Passwords that rotate and credentials that expire, under a lease.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use quorlock::testbed::{TestNode, Testbed};
use quorlock::{Credentials, CredentialsProvider, Lease, NodeConfig, Redlock, ReleaseOutcome};

use crate::{eventually, testbed};

const USER: &str = "locker";

async fn set_password(testbed: &Testbed, password: &str) {
    for node in testbed.nodes() {
        let password = format!(">{password}");
        let rule = [
            "ACL",
            "SETUSER",
            USER,
            "on",
            "resetpass",
            &password,
            "~*",
            "&*",
            "+@all",
        ];
        node.command(&rule).await.unwrap();
    }
}

async fn connect(testbed: &Testbed, provider: CredentialsProvider) -> Redlock {
    let mut builder = Redlock::builder()
        .ttl(Duration::from_secs(6))
        .restart_guard(false);
    for node in testbed.nodes() {
        let url = format!("redis://{USER}@{}", node.addr());
        let node = NodeConfig::from_url(&url).unwrap();
        builder = builder.node(node.with_credentials(provider.clone()));
    }
    builder.connect().await.unwrap()
}

async fn renewed(lease: &Lease) {
    let deadline = lease.deadline();
    eventually("the lease is renewed", async || lease.deadline() > deadline).await;
}

/// Returns the ids of lock connections.
async fn connections(node: &TestNode) -> Vec<String> {
    let list = node.command(&["CLIENT", "LIST"]).await.unwrap();
    let list = list.as_str().unwrap();
    let is_for_locks = |line: &&str| line.contains(" name=quorlock/") && !line.contains("/announcements ");
    let ours = list.lines().filter(is_for_locks);
    ours.map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_password_file_is_read_again_for_each_connection() {
    let testbed = testbed(3, false).await;
    let file = testbed.folder().join("password");
    let rotate = async |password: &str| {
        set_password(&testbed, password).await;
        fs::write(&file, format!("{password}\n")).unwrap();
    };
    rotate("first").await;
    let redlock = connect(&testbed, CredentialsProvider::file(&file)).await;
    let leases = [
        redlock.lock("a").acquire().await.unwrap(),
        redlock.lock("b").acquire().await.unwrap(),
    ];
    for password in ["second", "third"] {
        rotate(password).await;
        for node in testbed.nodes() {
            node.command(&["CLIENT", "KILL", "USER", USER]).await.unwrap();
        }
        for lease in &leases {
            renewed(lease).await;
        }
    }
    for lease in leases {
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn live_connections_authenticate_again_before_credentials_expire() {
    let testbed = testbed(3, false).await;
    set_password(&testbed, "0").await;
    let given = Arc::new(AtomicUsize::new(0));
    let asked = given.clone();
    let provider = CredentialsProvider::from_fn(move || {
        asked.fetch_add(1, SeqCst);
        std::future::ready(Ok::<_, String>(
            Credentials::password("0").valid_for(Duration::from_secs(1)),
        ))
    });
    let redlock = connect(&testbed, provider).await;
    let lease = redlock.lock("a").acquire().await.unwrap();
    let before = connections(&testbed.nodes()[0]).await;
    assert_eq!(before.len(), 1);
    eventually("new credentials are asked for", async || {
        given.load(SeqCst) > 2 * testbed.nodes().len()
    })
    .await;
    renewed(&lease).await;
    assert_eq!(connections(&testbed.nodes()[0]).await, before);
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_node_without_credentials_says_why() {
    let testbed = testbed(1, false).await;
    let missing = testbed.folder().join("missing");
    let node = NodeConfig::from_url(&testbed.urls()[0]).unwrap();
    let node = node.with_credentials(CredentialsProvider::file(&missing));
    let builder = Redlock::builder()
        .node(node)
        .connect_timeout(Duration::from_millis(500));
    let error = builder.connect().await.unwrap_err().to_string();
    assert!(
        error.contains("no credentials") && error.contains("missing"),
        "{error}"
    );
}
