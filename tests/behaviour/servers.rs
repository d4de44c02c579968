//! Users with restricted rights, and a server that runs no scripts.

use quorlock::node::Fault;
use quorlock::testbed::Testbed;
use quorlock::{AcquireError, ConnectError, Redlock, ReleaseOutcome};

use crate::common::{keys, unguarded};
use crate::world::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_user_who_may_not_load_scripts_can_lock,
        a_user_who_may_not_count_is_told_what_is_missing,
        a_user_who_may_not_touch_the_keys_is_told_what_is_missing,
        a_user_who_may_not_be_probed_is_told_what_is_missing,
        a_server_without_scripts_is_refused,
    ]
}

/// Returns the README's rights without `missing`. tests/transport/rights.rs tests all of them.
fn without(missing: &[&str]) -> Vec<&'static str> {
    let readme = include_str!("../../README.md");
    let mut lines = readme.lines().map(str::trim);
    let rights = lines.find(|line| line.starts_with("resetchannels ")).unwrap();
    let rights = rights.split(' ').filter(|right| right.starts_with('+'));
    rights.filter(|right| !missing.contains(right)).collect()
}

/// Returns a node, and a URL of a user with only these rights.
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

async fn a_user_who_may_not_load_scripts_can_lock() {
    let (_testbed, url) = with_rights("~quorlock:*", &without(&["+script|load"])).await;
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

/// Checks that connecting or the first acquire fails, and that the error lists the needed rights.
async fn assert_refused(url: &str) {
    let (text, votes) = match unguarded([url]).connect().await {
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

/// A script that a missing right stops half way leaves no lock.
async fn a_user_who_may_not_count_is_told_what_is_missing() {
    let (testbed, url) = with_rights("~quorlock:*", &without(&["+incr"])).await;
    assert_refused(&url).await;
    assert_eq!(keys(&testbed.nodes()[0]).await, 0);
}

async fn a_user_who_may_not_touch_the_keys_is_told_what_is_missing() {
    let (_testbed, url) = with_rights("~other:*", &without(&[])).await;
    assert_refused(&url).await;
}

async fn a_user_who_may_not_be_probed_is_told_what_is_missing() {
    for missing in [["+info"].as_slice(), &["+eval", "+evalsha"]] {
        let (_testbed, url) = with_rights("~quorlock:*", &without(missing)).await;
        let text = not_connected(url).await;
        assert!(text.contains("NOPERM") && text.contains(missing[0]), "{text}");
    }
}

async fn a_server_without_scripts_is_refused() {
    let settings = format!("{}/without-scripts.conf", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&settings, "rename-command EVALSHA hidden\n").unwrap();
    let testbed = Testbed::builder().nodes(1).arg("include", settings);
    let testbed = testbed.start().await.unwrap();
    let text = not_connected(testbed.urls()[0].clone()).await;
    assert!(text.contains("it runs no scripts"), "{text}");
}

async fn not_connected(url: String) -> String {
    let error = Redlock::connect([url]).await.unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::NoQuorum { .. } | ConnectError::Misconfigured(_)
        ),
        "{error:?}"
    );
    error.to_string()
}
