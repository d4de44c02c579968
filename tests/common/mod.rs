//! Shared by the suites on real servers. Not every suite uses all of it.
#![allow(dead_code)]

use std::future::Future;
use std::time::Duration;

use quorlock::Redlock;
use redis::FromRedisValue;
use tokio::time::{Instant, sleep};

/// Long enough for anything that is going to happen, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough to notice what should not happen. Too short can only miss a bug, not report one.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

/// Waits until `is` is true; panics when it never is.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let give_up = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < give_up, "never: {what}");
        sleep(Duration::from_millis(3)).await;
    }
}

/// One command over a connection of its own, past the library.
pub(crate) async fn ask<T: FromRedisValue>(url: &str, args: &[&[u8]]) -> redis::RedisResult<T> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::Cmd::new();
    for arg in args {
        command.arg(*arg);
    }
    command.query_async(&mut connection).await
}

/// A name that no other test, and no other run against the same nodes, uses.
pub(crate) fn unique(what: &str) -> String {
    format!("suite/{}/{what}", uuid::Uuid::new_v4().simple())
}

/// `EVAL` it to learn how many locks a node has. Counters stay when locks go, and so does what nodes are given to remember.
pub(crate) const LOCK_KEYS: &str = "return #redis.call('KEYS', '*') - #redis.call('KEYS', '*#fence') - #redis.call('KEYS', '*#node') - #redis.call('KEYS', '*#views') - #redis.call('KEYS', '*#client')";

/// Locks of up to an hour on servers that were just started and keep no memory: the restart guard would leave them out for as
/// long.
pub(crate) async fn unguarded<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Redlock {
    let builder = Redlock::builder().urls(urls).restart_guard(false);
    let builder = builder.guard_window(Duration::from_secs(3_600));
    builder.connect_timeout(PATIENCE).connect().await.unwrap()
}
