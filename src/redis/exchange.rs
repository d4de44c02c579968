//! The lock script's requests and replies, for tests that run `lock.lua` themselves (feature `testbed`).
//!
//! No part of the public interface.

use fred::types::Value;

use super::script::{self, Item};
use crate::node::{Action, Fault, News, OwnerToken, Reply, Request};

/// The script.
pub const TEXT: &str = script::LOCK;

/// One request, with what a connection adds to it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// What is asked of the node.
    pub request: Request,
    /// A9: the last moment at which the request may act, in microseconds of the node's clock.
    pub latest: i64,
    /// F5: counters below this are started anew, in microseconds of the node's clock.
    pub oldest_counter: i64,
}

impl Exchange {
    fn item(&self) -> Item<'_> {
        Item {
            request: &self.request,
            latest: self.latest,
            oldest_counter: self.oldest_counter,
            only_ask: false,
        }
    }
}

/// Makes a request: outside of this crate, nothing else can.
pub fn request(key: &str, owner: OwnerToken, action: Action) -> Request {
    Request {
        key: key.into(),
        owner,
        action,
    }
}

/// Encodes requests as the script's `KEYS` and `ARGV`.
pub fn arguments(exchanges: &[Exchange]) -> (Vec<Value>, Vec<Value>) {
    let mut all = script::arguments(Value::Null, exchanges.iter().map(Exchange::item));
    let count = all.get(1).and_then(Value::as_usize).unwrap_or_default();
    let args = all.split_off(2 + count);
    (all.split_off(2), args)
}

/// A reply for each request, and the node's time in microseconds if the script told it.
pub type Replies = (Vec<Result<Reply, Fault>>, Option<i64>);

/// Decodes the script's answer to `exchanges`.
///
/// # Errors
///
/// [`Fault::Protocol`] if the answer is malformed.
pub fn read(answer: Value, exchanges: &[Exchange]) -> Result<Replies, Fault> {
    let answer = script::read(answer, exchanges.iter().map(Exchange::item))?;
    Ok((answer.replies, answer.node_time))
}

/// Returns the fault that an error reply to the whole call stands for.
pub fn fault(error: &str) -> Fault {
    super::fault::from_message(error)
}

/// Returns the channel in which releases of `key` are announced.
pub fn channel(key: &str) -> String {
    script::channel(key)
}

/// Decodes an announcement. `None` if `message` is not one.
pub fn announced(message: &str) -> Option<(OwnerToken, News)> {
    script::announced(message)
}
