//! Stores that check fencing tokens: `examples/stores` on real servers.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod documented;
mod holds;
mod isolation;
#[path = "../../examples/stores/postgres.rs"]
mod patterns;
#[path = "../common/postgres.rs"]
mod postgres;
mod redis;
mod rows;

use quorlock::FencingToken;
use tokio_postgres::Client;

use self::common::eventually;
use self::patterns::{SCHEMA, WriteError};
use self::postgres::Database;

pub(crate) fn token(value: u64) -> FencingToken {
    FencingToken::new(value).unwrap()
}

/// Returns a database with the tables of the examples, and a connection to it.
pub(crate) async fn store() -> (Database, Client) {
    let database = Database::create().await;
    let client = database.connect().await;
    client.batch_execute(SCHEMA).await.unwrap();
    (database, client)
}

/// Returns whether a write was refused because a newer holder has written. Panics on other errors.
pub(crate) fn is_stale<T>(result: Result<T, WriteError>) -> bool {
    match result {
        Ok(_) => false,
        Err(WriteError::Stale(_)) => true,
        Err(WriteError::Database(error)) => panic!("{error:?}"),
    }
}

pub(crate) async fn pid(client: &Client) -> i32 {
    client
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0)
}

/// Waits until this connection waits for another one's lock.
pub(crate) async fn blocked(observer: &Client, pid: i32) {
    let waits = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted";
    eventually("the connection waits for the other transaction", || async {
        observer.query_one(waits, &[&pid]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

/// Deals the tokens 1 to `writers * each` in random order.
pub(crate) fn dealt(writers: usize, each: usize) -> Vec<Vec<FencingToken>> {
    let mut tokens: Vec<_> = (1..=(writers * each) as u64).map(token).collect();
    fastrand::shuffle(&mut tokens);
    tokens.chunks(each).map(<[_]>::to_vec).collect()
}

/// Checks that the store took the writes that writers were told it took, no older one after a newer one.
pub(crate) fn assert_never_back(taken: &[FencingToken], mut told: Vec<FencingToken>, newest: FencingToken) {
    assert!(taken.is_sorted(), "{taken:?}");
    told.sort();
    assert_eq!(taken, told);
    assert_eq!(taken.last(), Some(&newest));
}
