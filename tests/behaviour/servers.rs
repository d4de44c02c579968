//! Users with restricted rights.

use quorlock::node::Fault;
use quorlock::testbed::Testbed;
use quorlock::{AcquireError, ConnectError, Redlock, ReleaseOutcome};

use crate::common::LOCK_KEYS;
use crate::world::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_documented_rights_are_enough,
        a_user_who_may_not_load_scripts_can_lock,
        a_user_who_may_not_run_scripts_is_told_what_is_missing,
        a_user_who_may_not_count_is_told_what_is_missing,
        a_user_who_may_not_touch_the_keys_is_told_what_is_missing,
        a_user_who_may_not_be_probed_is_told_what_is_missing,
    ]
}

const RIGHTS: [&str; 13] = [
    "+evalsha",
    "+eval",
    "+info",
    "+config|get",
    "+time",
    "+set",
    "+get",
    "+mget",
    "+del",
    "+incr",
    "+incrby",
    "+pexpire",
    "+pttl",
];

/// A node, and a URL with which only `rights` are had there.
async fn with_rights(keys: &str, rights: &[&str]) -> (Testbed, String) {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let mut rule = vec!["ACL", "SETUSER", "locker", "on", ">secret", keys];
    rule.extend(rights);
    let answer = node.command(&rule).await.unwrap();
    assert!(!answer.is_error(), "{answer:?}");
    let url = format!("redis://locker:secret@{}", node.addr());
    (testbed, url)
}

async fn works(url: &str) {
    let redlock = Redlock::connect([url]).await.unwrap();
    for fencing in [true, false] {
        let request = redlock.lock("job").fencing(fencing);
        let lease = request.clone().acquire().await.unwrap();
        let second = request.try_acquire().await;
        assert!(matches!(second, Err(AcquireError::Held { .. })), "{second:?}");
        assert!(lease.extend().await.is_ok());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

async fn the_documented_rights_are_enough() {
    let mut rights = RIGHTS.to_vec();
    rights.push("+script|load");
    let (_testbed, url) = with_rights("~quorlock:*", &rights).await;
    works(&url).await;
}

async fn a_user_who_may_not_load_scripts_can_lock() {
    let (_testbed, url) = with_rights("~quorlock:*", &RIGHTS).await;
    works(&url).await;
}

/// When it connects, or when it first acquires a lock.
async fn assert_refused(url: &str) {
    let builder = Redlock::builder().url(url).restart_guard(false);
    let (text, votes) = match builder.connect().await {
        Err(ConnectError::NoQuorum { votes, .. }) => (votes.to_string(), votes),
        Err(other) => panic!("{other:?}"),
        Ok(redlock) => match redlock.lock("job").try_acquire().await {
            Err(AcquireError::NoQuorum { votes, .. }) => (votes.to_string(), votes),
            other => panic!("{other:?}"),
        },
    };
    let faults: Vec<_> = votes.iter().filter_map(|vote| vote.answer.as_ref()).collect();
    assert!(matches!(&faults[..], [Err(Fault::NoPermission { .. })]), "{text}");
    assert!(text.contains("NOPERM") && text.contains("+evalsha"), "{text}");
}

async fn a_user_who_may_not_run_scripts_is_told_what_is_missing() {
    let rights: Vec<&str> = RIGHTS
        .into_iter()
        .filter(|right| !right.starts_with("+eval"))
        .collect();
    let (_testbed, url) = with_rights("~quorlock:*", &rights).await;
    assert_refused(&url).await;
}

/// A script that was stopped half way by a missing right leaves no lock behind.
async fn a_user_who_may_not_count_is_told_what_is_missing() {
    let rights: Vec<&str> = RIGHTS.into_iter().filter(|right| *right != "+incr").collect();
    let (testbed, url) = with_rights("~quorlock:*", &rights).await;
    assert_refused(&url).await;
    let answer = testbed.nodes()[0]
        .command(&["EVAL", LOCK_KEYS, "0"])
        .await
        .unwrap();
    assert_eq!(answer.as_int(), Some(0));
}

async fn a_user_who_may_not_touch_the_keys_is_told_what_is_missing() {
    let (_testbed, url) = with_rights("~other:*", &RIGHTS).await;
    assert_refused(&url).await;
}

async fn a_user_who_may_not_be_probed_is_told_what_is_missing() {
    let rights: Vec<&str> = RIGHTS.into_iter().filter(|right| *right != "+info").collect();
    let (_testbed, url) = with_rights("~quorlock:*", &rights).await;
    let error = Redlock::builder()
        .url(url)
        .connect_timeout(std::time::Duration::from_millis(200))
        .connect()
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::NoQuorum { .. }), "{error:?}");
    assert!(text.contains("NOPERM") && text.contains("+info"), "{text}");
}
