//! The record of a node's memory, and changes to it (M1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock::node::{Fault, Unfit};
use quorlock::testbed::{Data, TestNode, Testbed};
use quorlock::{AcquireError, ConnectError, Redlock, ReleaseOutcome};

use crate::common::eventually;
use crate::{LONG, WINDOW, all_up, flush, grant, known_to_all, on};

const KEY: &str = "quorlock:#node";

/// Starts masters that write everything to disk.
pub(crate) async fn durable(nodes: usize) -> Testbed {
    Testbed::start(nodes).await.unwrap()
}

pub(crate) async fn restart(testbed: &Testbed, number: usize, data: Data) {
    testbed.nodes()[number].restart(data).await.unwrap();
}

pub(crate) async fn configure(testbed: &Testbed, setting: &str, value: &str) {
    let command = ["CONFIG", "SET", setting, value];
    let answer = testbed.nodes()[0].command(&command).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}

/// Returns the parts of a record: format, id, since, resumed, durable, process, former master.
async fn parts(node: &TestNode, key: &str) -> Vec<String> {
    let record = node.command(&["GET", key]).await.unwrap();
    let parts: Vec<_> = record.as_str().unwrap().split(' ').map(str::to_owned).collect();
    assert_eq!(parts.len(), 7, "{parts:?}");
    parts
}

/// Returns the id of the node's memory; empty without a record.
pub(crate) async fn id(node: &TestNode) -> String {
    match node.command(&["GET", KEY]).await.unwrap().as_str() {
        Some(record) => record.split(' ').nth(1).unwrap().to_owned(),
        None => String::new(),
    }
}

/// The first client makes the record, and the others keep it.
#[tokio::test]
async fn clients_that_come_at_the_same_time_make_one_record() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    for round in 0..10 {
        let prefix = format!("round{round}:");
        let micros = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let before = micros();
        let connecting = (0..4).map(|_| on(&testbed).restart_guard(false).key_prefix(&*prefix).connect());
        let clients = futures_util::future::join_all(connecting).await;
        let clients: Vec<Redlock> = clients.into_iter().map(Result::unwrap).collect();
        let made = parts(node, &format!("{prefix}#node")).await;
        let since: u128 = made[2].parse().unwrap();
        assert!((before..=micros()).contains(&since), "{made:?}");
        for redlock in &clients {
            grant(&redlock.lock("job")).await;
        }
        assert_eq!(parts(node, &format!("{prefix}#node")).await, made);
    }
}

#[tokio::test]
async fn records_have_keys_that_no_lock_can_have() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    let builder = on(&testbed).key_prefix("app:");
    let redlock = builder.connect().await.unwrap();
    let keys = node.command(&["KEYS", "app:*"]).await.unwrap();
    let mut keys: Vec<_> = keys.as_array().unwrap().iter().collect();
    keys.sort_by_key(|key| key.as_str().map(|key| (key.ends_with("#client"), key.to_owned())));
    let keys: Vec<_> = keys.into_iter().map(|key| key.as_str().unwrap()).collect();
    assert!(
        matches!(keys[..], ["app:#node", "app:#views", client] if client.ends_with("#client")),
        "{keys:?}"
    );
    for (number, key) in keys.into_iter().enumerate() {
        let ttl = node.command(&["PTTL", key]).await.unwrap().as_int().unwrap();
        // The record stays. Registrations expire soon after their clients.
        assert_eq!(ttl == -1, number == 0, "{key}: {ttl} ms");
    }
    for name in ["#node", "job#node", "#views", "0#client", "0#probe", "job#memory"] {
        let error = redlock.lock(name).try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Config(_)), "{error}");
        assert!(error.votes().is_none());
    }
}

/// Other data must not be lost, and a node without a record cannot be recognised.
#[tokio::test]
async fn other_data_under_the_key_of_the_record_is_left_alone() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    let good = node.command(&["GET", KEY]).await.unwrap();
    let good = good.as_str().unwrap();
    for data in [
        "data",
        "1784624400000000",
        &good.replacen('1', "2", 1),
        &good[..40],
    ] {
        node.command(&["SET", KEY, data]).await.unwrap();
        let error = on(&testbed).connect().await.unwrap_err();
        let ConnectError::Misconfigured(votes) = &error else {
            panic!("{error}")
        };
        let fault = votes.iter().next().unwrap().answer.clone().unwrap().unwrap_err();
        let expected = Unfit::OtherRecord { key: KEY.into() };
        assert_eq!(fault, Fault::Unfit(expected), "{data}");
        assert!(error.to_string().contains(KEY), "{error}");
        assert_eq!(node.command(&["GET", KEY]).await.unwrap().as_str(), Some(data));
    }
}

/// Each of these ends the memory. A client learns that from its next request, which sets no key.
#[tokio::test]
async fn the_end_of_a_memory_shows_in_the_next_request() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    for losses in 0..4 {
        // Looks only every few seconds.
        let asks = on(&testbed).guard_window(LONG).restart_guard(false);
        let asks = asks.connect().await.unwrap();
        let before = id(node).await;
        match losses {
            0 => flush(node).await,
            1 => drop(node.command(&["DEL", KEY]).await.unwrap()),
            2 => drop(node.command(&["SET", KEY, "data"]).await.unwrap()),
            _ => {
                let record = node.command(&["GET", KEY]).await.unwrap();
                let other = record.as_str().unwrap().replace(&before, &"0".repeat(32));
                node.command(&["SET", KEY, &other]).await.unwrap();
            }
        }
        let error = asks.lock("job").try_acquire().await.unwrap_err();
        let vote = error.votes().unwrap().iter().next().unwrap().answer.clone();
        assert_eq!(vote, Some(Err(Fault::OtherMemory)), "{losses}");
        let exists = node.command(&["EXISTS", "quorlock:job"]).await.unwrap();
        assert_eq!(exists.as_int(), Some(0));
        drop(asks);
        if losses == 2 {
            node.command(&["DEL", KEY]).await.unwrap();
        }
        let next = on(&testbed).connect().await.unwrap();
        all_up(&next, &testbed).await;
        assert_ne!(id(node).await, before, "{losses}");
    }
}

#[tokio::test]
async fn idle_clients_find_out_by_themselves_that_a_memory_has_ended() {
    let testbed = durable(3).await;
    let clients = [
        on(&testbed).connect().await.unwrap(),
        on(&testbed).connect().await.unwrap(),
    ];
    let node = &testbed.nodes()[0];
    let before = id(node).await;
    flush(node).await;
    known_to_all(&testbed, &[&clients[0], &clients[1]]).await;
    assert!(![before, String::new()].contains(&id(node).await));
    for redlock in &clients {
        eventually("the node is left out", async || {
            redlock.nodes()[0].left_out.is_some()
        })
        .await;
    }
}

/// A client that may not read the settings leaves what others have recorded.
#[tokio::test]
async fn a_client_that_may_not_ask_for_settings_leaves_what_others_know() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    let rule = [
        "ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-config",
    ];
    assert_eq!(node.command(&rule).await.unwrap().as_str(), Some("OK"));
    let as_user = || {
        let builder = Redlock::builder().url(format!("redis://app:pw@{}", node.addr()));
        builder.ttl(LONG).guard_window(WINDOW)
    };
    let known = parts(node, KEY).await;
    let redlock = as_user().connect().await.unwrap();
    grant(&redlock.lock("job")).await;
    assert_eq!(parts(node, KEY).await, known);
    assert_eq!(known[4], "+");
    // A memory that such a client begins is not trusted to be durable.
    flush(node).await;
    let redlock = as_user().connect().await.unwrap();
    all_up(&redlock, &testbed).await;
    let made = parts(node, KEY).await;
    assert_eq!(made[4], "-");
    restart(&testbed, 0, Data::Keep).await;
    let other = on(&testbed).connect().await.unwrap();
    all_up(&other, &testbed).await;
    assert_ne!(id(node).await, made[1]);
}

/// Without registrations, the data may be from long ago.
#[tokio::test]
async fn a_restart_is_believed_only_while_clients_are_registered() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    let short = Duration::from_millis(250);
    for in_use in [false, true] {
        let redlock = on(&testbed)
            .ttl(short)
            .guard_window(short)
            .connect()
            .await
            .unwrap();
        let before = parts(node, KEY).await;
        assert_eq!(before[4], "+");
        let in_use = in_use.then(|| on(&testbed));
        let in_use = match in_use {
            Some(builder) => Some(builder.connect().await.unwrap()),
            None => None,
        };
        drop(redlock);
        if in_use.is_none() {
            eventually("no client is registered", async || {
                let exists = node.command(&["EXISTS", "quorlock:#views"]).await.unwrap();
                exists.as_int() == Some(0)
            })
            .await;
        }
        restart(&testbed, 0, Data::Keep).await;
        let _next = on(&testbed).connect().await.unwrap();
        let after = parts(node, KEY).await;
        assert_eq!(
            after[1] == before[1],
            in_use.is_some(),
            "{before:?}, then {after:?}"
        );
        let resumed: i64 = after[3].parse().unwrap();
        assert_eq!(resumed > 0, in_use.is_some(), "{after:?}");
    }
}

/// A full node cannot store registrations, but gives no locks to others, either.
#[tokio::test]
async fn leases_go_on_while_nodes_are_full() {
    let ttl = Duration::from_secs(2);
    let testbed = durable(3).await;
    let redlock = on(&testbed).ttl(ttl).watchdog(true).connect().await.unwrap();
    let lease = redlock.lock("job").acquire().await.unwrap();
    let limit = async |bytes| {
        for node in testbed.nodes() {
            let set = node.command(&["CONFIG", "SET", "maxmemory", bytes]).await;
            assert_eq!(set.unwrap().as_str(), Some("OK"));
        }
    };
    limit("1").await;
    tokio::time::sleep(2 * ttl).await;
    assert!(lease.is_held());
    // The nodes have forgotten nothing meanwhile.
    let known = id(&testbed.nodes()[0]).await;
    limit("0").await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    eventually("locks are given again", async || {
        let lease = redlock.lock("job").try_acquire().await;
        lease.is_ok()
    })
    .await;
    assert_eq!(id(&testbed.nodes()[0]).await, known);
}
