//! Redis as the store: a hash with its last writer's token, changed by a script.

use futures_util::future::join_all;
use quorlock::testbed::Testbed;
use quorlock::{FenceGate, FencingToken};

use crate::common::{ask, open};
use crate::{dealt, token};

const FENCED_SET: &str = include_str!("../../examples/stores/fenced_set.lua");
const FENCED_GET: &str = include_str!("../../examples/stores/fenced_get.lua");
const KEY: &str = "invoice:42";

struct Store {
    testbed: Testbed,
    url: String,
}

impl Store {
    async fn start() -> Store {
        let testbed = Testbed::start(1).await.unwrap();
        let url = testbed.urls().remove(0);
        Store { testbed, url }
    }

    async fn ask<T: redis::FromRedisValue>(&self, args: &[&str]) -> redis::RedisResult<T> {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
        ask(&self.url, &args).await
    }

    /// Returns whether the value was written.
    async fn set(&self, token: impl ToString, value: &str) -> redis::RedisResult<bool> {
        let token = token.to_string();
        self.ask(&["EVAL", FENCED_SET, "1", KEY, &token, value]).await
    }

    /// Reads before a write. Older holders are refused from then on.
    async fn get(&self, token: impl ToString) -> redis::RedisResult<Option<String>> {
        let token = token.to_string();
        self.ask(&["EVAL", FENCED_GET, "1", KEY, &token]).await
    }

    async fn kept(&self) -> (Option<String>, Option<String>) {
        self.ask(&["HMGET", KEY, "value", "fencing_token"]).await.unwrap()
    }

    async fn assert_kept(&self, value: &str, token: impl ToString) {
        assert_eq!(
            self.kept().await,
            (Some(value.to_owned()), Some(token.to_string()))
        );
    }
}

#[tokio::test]
async fn an_older_holder_is_refused_and_the_same_one_is_not() {
    let store = Store::start().await;
    assert!(store.set(33, "first").await.unwrap());
    assert!(store.set(33, "second").await.unwrap());
    assert!(!store.set(32, "stale").await.unwrap());
    assert!(!store.set(9, "stale, and larger as a text").await.unwrap());
    store.assert_kept("second", 33).await;
    assert!(store.set(100, "third").await.unwrap());
    assert!(!store.set(33, "stale").await.unwrap());
    store.assert_kept("third", 100).await;
    store.testbed.shutdown().await;
}

/// Once the newer holder has read, the older one is refused, even before the newer one writes.
#[tokio::test]
async fn a_read_for_a_later_write_already_refuses_the_older_holder() {
    let store = Store::start().await;
    assert_eq!(store.get(32).await.unwrap(), None);
    assert!(store.set(32, "100").await.unwrap());
    assert_eq!(store.get(33).await.unwrap().as_deref(), Some("100"));
    assert!(!store.set(32, "stale").await.unwrap());
    let error = store.get(32).await.unwrap_err();
    assert_eq!(error.code(), Some("STALE"), "{error}");
    for nonsense in ["", "0", "nan", "07", "9007199254740992"] {
        let error = store.get(nonsense).await.unwrap_err();
        assert!(error.to_string().contains("not a fencing token"), "{error}");
    }
    assert!(store.set(33, "200").await.unwrap());
    store.assert_kept("200", 33).await;

    // After a read without the token, the older holder's deposit is lost.
    let read: String = store.ask(&["HGET", KEY, "value"]).await.unwrap();
    assert!(store.set(33, "300").await.unwrap());
    assert!(store.set(34, &read).await.unwrap());
    store.assert_kept("200", 34).await;
    store.testbed.shutdown().await;
}

#[tokio::test]
async fn tokens_are_compared_and_kept_exactly() {
    let store = Store::start().await;
    let max = FencingToken::MAX.get();
    for value in [1_795_826_400_123_456, max - 1, max] {
        assert!(store.set(value, "new").await.unwrap());
        assert!(!store.set(value - 1, "stale").await.unwrap(), "{value}");
        store.assert_kept("new", value).await;
    }
    store.testbed.shutdown().await;
}

#[tokio::test]
async fn without_a_token_nothing_is_written() {
    let store = Store::start().await;
    let nonsense = [
        "",
        "0",
        "-1",
        "+5",
        "1.5",
        "1e9",
        "0x10",
        "nan",
        "inf",
        " 7",
        "7 ",
        "07",
        "nil",
        "9007199254740992",
        "9007199254740993",
        "18446744073709551616",
    ];
    for before in [None, Some("kept")] {
        for text in nonsense {
            let error = store.set(text, "nonsense").await.unwrap_err();
            assert!(
                error.to_string().contains("not a fencing token"),
                "{text:?}: {error}"
            );
        }
        let nothing = store.ask::<bool>(&["EVAL", FENCED_SET, "1", KEY]).await;
        assert!(nothing.is_err());
        assert_eq!(store.kept().await.0.as_deref(), before);
        assert!(store.set(33, "kept").await.unwrap());
    }
    store.testbed.shutdown().await;
}

#[tokio::test]
async fn a_key_that_is_not_a_guarded_value_is_not_overwritten() {
    let store = Store::start().await;
    store.ask::<()>(&["SET", KEY, "a text"]).await.unwrap();
    assert!(store.set(33, "new").await.is_err());
    assert_eq!(store.ask::<String>(&["GET", KEY]).await.unwrap(), "a text");

    let broken = ["HSET", KEY, "value", "old", "fencing_token", "nan"];
    store.ask::<()>(&["DEL", KEY]).await.unwrap();
    store.ask::<()>(&broken).await.unwrap();
    assert!(store.set(33, "new").await.is_err());
    store.assert_kept("old", "nan").await;
    store.testbed.shutdown().await;
}

#[tokio::test]
async fn the_guard_lasts_as_long_as_the_hash_and_no_longer() {
    let store = Store::start().await;
    assert!(store.set(34, "new").await.unwrap());
    // A hash without its value still guards, until it expires.
    store.ask::<()>(&["HDEL", KEY, "value"]).await.unwrap();
    assert!(!store.set(33, "stale").await.unwrap());
    store.ask::<()>(&["PEXPIRE", KEY, "0"]).await.unwrap();
    assert!(store.set(33, "stale").await.unwrap());
    store.testbed.shutdown().await;
}

#[tokio::test]
async fn the_redis_guard_judges_as_a_fence_gate_in_every_order_of_writers() {
    let store = Store::start().await;
    let writers = dealt(8, 40).into_iter().map(|tokens| async {
        let mut connection = open(&store.url).await.unwrap();
        let mut told = Vec::new();
        for token in tokens {
            // Numbers the attempt, in the transaction of its write.
            let (number, written): (u64, bool) = redis::pipe()
                .atomic()
                .cmd("INCR")
                .arg("attempts")
                .cmd("EVAL")
                .arg(FENCED_SET)
                .arg(1)
                .arg(KEY)
                .arg(token.get())
                .arg(token.get())
                .query_async(&mut connection)
                .await
                .unwrap();
            told.push((number, token, written));
        }
        told
    });
    let mut told = join_all(writers).await.concat();
    told.sort();

    let mut gate = FenceGate::new();
    for (number, token, written) in told {
        assert_eq!(
            gate.admit(token).is_ok(),
            written,
            "attempt {number}, token {token}"
        );
    }
    assert_eq!(gate.highest(), Some(token(320)));
    store.assert_kept("320", 320).await;
    store.testbed.shutdown().await;
}
