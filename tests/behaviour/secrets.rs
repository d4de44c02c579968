//! Passwords and owner tokens appear in no message, debug output or log.

use std::fmt::{Debug, Display};
use std::time::Duration;

use quorlock::node::Fault;
use quorlock::testbed::{Data, Testbed};
use quorlock::{ConnectError, Redlock};

use crate::common::{ask, eventually};
use crate::log::Log;
use crate::world::{Behaviour, Case, World, behaviours, cases};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false; owner_tokens_are_shown_nowhere]
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_right_password_works,
        a_wrong_password_is_named_and_not_shown,
        a_missing_password_is_named,
        a_password_that_changed_is_named_and_not_shown,
    ]
}

fn shown(what: &(impl Display + Debug)) -> String {
    format!("{what} {what:?} {what:#?}")
}

async fn owner_tokens_are_shown_nowhere(world: &World) {
    let (log, _guard) = Log::start();
    tracing::trace!("canary");
    let redlock = world.redlock().await;
    let (resource, other) = (world.resource("job"), world.resource("job"));
    let request = redlock
        .lock(resource.as_str())
        .ttl(Duration::from_secs(6))
        .node_budget(Duration::from_secs(3));
    let mut seen = format!("{request:?} {redlock:?} {:?}", redlock.nodes());
    let lease = request.clone().acquire().await.unwrap();
    world.spread(&resource).await;
    let mut tokens: Vec<String> = world.values(&resource).await.into_iter().flatten().collect();
    seen += &format!("{lease:?} {:#?} {:?}", lease.handle(), lease.votes());
    seen += &shown(
        &world
            .redlock()
            .await
            .lock(resource.as_str())
            .try_acquire()
            .await
            .unwrap_err(),
    );
    world.delete(&resource).await;
    let lost = lease.lost().await;
    seen += &shown(&lost);
    seen += &shown(&lease.extend().await.unwrap_err());
    seen += &shown(&lease.release().await);

    let second = world
        .redlock()
        .await
        .lock(other.as_str())
        .acquire()
        .await
        .unwrap();
    world.spread(&other).await;
    tokens.extend(world.values(&other).await.into_iter().flatten());
    seen += &shown(&second.release().await);

    assert_eq!(tokens.len(), 2 * world.live().len());
    let logged = log.text();
    assert!(logged.contains("canary"), "the log captured nothing: {logged:?}");
    for token in tokens {
        let bare = token.replace('-', "");
        for text in [&seen, &logged] {
            assert!(!text.contains(&token) && !text.contains(&bare), "{text}");
        }
    }
}

const RIGHT: &str = "R1ght-s3cret";
const WRONG: &str = "Wr0ng-s3cret";

async fn guarded() -> (Testbed, impl Fn(&str) -> Vec<String>) {
    let testbed = Testbed::builder().nodes(2).password(RIGHT).start().await.unwrap();
    let addrs: Vec<_> = testbed.nodes().iter().map(|node| node.addr()).collect();
    let urls = move |credentials: &str| {
        addrs
            .iter()
            .map(|addr| format!("redis://{credentials}{addr}"))
            .collect()
    };
    (testbed, urls)
}

async fn refused(urls: Vec<String>) -> (ConnectError, String) {
    let (log, _guard) = Log::start();
    let builder = Redlock::builder()
        .urls(urls)
        .connect_timeout(Duration::from_millis(300));
    let mut seen = format!("{builder:?}");
    let error = builder.connect().await.unwrap_err();
    seen += &shown(&error);
    (error, seen + &log.text())
}

fn assert_auth(error: &ConnectError, code: &'static str) {
    match error {
        ConnectError::NoQuorum { votes, .. } => {
            for vote in votes.iter() {
                assert_eq!(vote.answer, Some(Err(Fault::Auth { code })), "{error}");
            }
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains(code), "{error}");
}

async fn a_right_password_works() {
    let (log, _guard) = Log::start();
    let (_testbed, urls) = guarded().await;
    for credentials in [format!(":{RIGHT}@"), format!("default:{RIGHT}@")] {
        let redlock = Redlock::connect(urls(&credentials)).await.unwrap();
        let lease = redlock.lock("job").acquire().await.unwrap();
        let seen = format!("{redlock:?} {lease:?} {:?}", redlock.nodes());
        let _ = lease.release().await;
        assert!(!seen.contains(RIGHT) && !log.text().contains(RIGHT), "{seen}");
    }
}

async fn a_wrong_password_is_named_and_not_shown() {
    let (_testbed, urls) = guarded().await;
    for credentials in [format!(":{WRONG}@"), format!("somebody:{WRONG}@")] {
        let (error, seen) = refused(urls(&credentials)).await;
        assert_auth(&error, "WRONGPASS");
        assert!(!seen.contains(WRONG) && !seen.contains(RIGHT), "{seen}");
    }
}

async fn a_missing_password_is_named() {
    let (_testbed, urls) = guarded().await;
    let (error, _) = refused(urls("")).await;
    assert_auth(&error, "NOAUTH");
}

async fn a_password_that_changed_is_named_and_not_shown() {
    let (log, _guard) = Log::start();
    let testbed = Testbed::start(1).await.unwrap();
    let url = format!("redis://:{WRONG}@{}", testbed.nodes()[0].addr());
    let set = ["CONFIG", "SET", "requirepass", WRONG];
    testbed.nodes()[0].command(&set).await.unwrap();
    let redlock = Redlock::connect([&url]).await.unwrap();
    let _: redis::Value = ask(&url, &[b"CONFIG", b"SET", b"requirepass", RIGHT.as_bytes()])
        .await
        .unwrap();
    let right = url.replace(WRONG, RIGHT);
    let _: redis::Value = ask(&right, &[b"CLIENT", b"KILL", b"TYPE", b"normal"])
        .await
        .unwrap();
    eventually("the error names the wrong password", || async {
        let error = redlock.lock("job").try_acquire().await.unwrap_err();
        let text = shown(&error);
        assert!(!text.contains(WRONG) && !text.contains(RIGHT), "{text}");
        text.contains("WRONGPASS")
    })
    .await;
    // The restart drops the password, which only `CONFIG SET` had set.
    testbed.nodes()[0].restart(Data::Keep).await.unwrap();
    let seen = format!("{redlock:?} {:?} {}", redlock.nodes(), log.text());
    assert!(!seen.contains(WRONG) && !seen.contains(RIGHT), "{seen}");
}
