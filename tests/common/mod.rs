//! Shared by the suites on real servers. Not every suite uses all of it.
#![allow(dead_code)]

use std::future::Future;
use std::time::Duration;

use quorlock::Redlock;
use redis::FromRedisValue;
use tokio::time::{Instant, sleep};

/// How long to wait for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long to watch for what must not happen. A shorter time can only hide a bug.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

/// Waits until `is` is true. Panics after `PATIENCE`.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let give_up = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < give_up, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(3)).await;
    }
}

/// Sends one command, without the library.
pub(crate) async fn ask<T: FromRedisValue>(url: &str, args: &[&[u8]]) -> redis::RedisResult<T> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::Cmd::new();
    for arg in args {
        command.arg(*arg);
    }
    command.query_async(&mut connection).await
}

/// Returns a name that no other test or run uses.
pub(crate) fn unique(what: &str) -> String {
    format!("suite/{}/{what}", uuid::Uuid::new_v4().simple())
}

/// Lua that counts a node's locks, without counters, records and registrations.
pub(crate) const LOCK_KEYS: &str = "return #redis.call('KEYS', '*') - #redis.call('KEYS', '*#fence') - #redis.call('KEYS', '*#node') - #redis.call('KEYS', '*#views') - #redis.call('KEYS', '*#client')";

/// Connects a client for locks of up to an hour. The restart guard would leave new servers out for as long.
pub(crate) async fn unguarded<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Redlock {
    let builder = Redlock::builder().urls(urls).restart_guard(false);
    let builder = builder.guard_window(Duration::from_secs(3_600));
    builder.connect_timeout(PATIENCE).connect().await.unwrap()
}
