//! Shared by the suites on real servers. Not every suite uses all of it.
#![allow(dead_code)]

use std::future::Future;
use std::time::Duration;

use quorlock::testbed::{TestNode, Testbed};
use quorlock::{Redlock, RedlockBuilder};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};
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

/// Connects without the library. A busy machine may take longer than the client's usual half a second.
pub(crate) async fn open(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Sends one command, without the library.
pub(crate) async fn ask<T: FromRedisValue>(url: &str, args: &[&[u8]]) -> redis::RedisResult<T> {
    let mut connection = open(url).await?;
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

/// Counts a node's keys of locks. Counters stay when locks go, and so does what nodes are given to remember.
const LOCK_KEYS: &str = "return #redis.call('KEYS', '*') - #redis.call('KEYS', '*#fence') - #redis.call('KEYS', '*#node') - #redis.call('KEYS', '*#views') - #redis.call('KEYS', '*#client')";

/// Counts the locks that a node has.
pub(crate) async fn keys(node: &TestNode) -> i64 {
    let answer = node.command(&["EVAL", LOCK_KEYS, "0"]).await.unwrap();
    answer.as_int().unwrap()
}

/// Returns how often the server has executed a command, from scripts too. Redis 6.2 counts `SCRIPT LOAD` as `SCRIPT`.
pub(crate) async fn calls(node: &TestNode, command: &str) -> u64 {
    let stats = node.command(&["INFO", "commandstats"]).await.unwrap();
    let stats = stats.as_str().unwrap();
    let counted = |command| {
        let prefix = format!("cmdstat_{command}:calls=");
        stats.lines().find_map(|line| line.strip_prefix(&prefix))
    };
    let container = command.split('|').next().unwrap();
    let found = counted(command).or_else(|| counted(container));
    found.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Settings for locks of up to an hour on servers that were just started. The restart guard would leave such servers out for an
/// hour.
pub(crate) fn unguarded<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedlockBuilder {
    let builder = Redlock::builder().urls(urls).restart_guard(false);
    builder
        .guard_window(Duration::from_secs(3_600))
        .connect_timeout(PATIENCE)
}

/// Connects to all nodes of a testbed that was just started.
pub(crate) async fn connect(testbed: &Testbed) -> Redlock {
    unguarded(testbed.urls()).connect().await.unwrap()
}
