//! The lock script's requests and replies, for tests that run `lock.lua` themselves (feature `testbed`).
//!
//! No part of the public interface.

use std::time::Duration;

use tokio_util::bytes::BytesMut;

use super::resp;
pub use super::resp::Value;
use super::script::{self, Item, Target};
pub use crate::node::announcement::Announcement;
use crate::node::{Action, Fault, OwnerToken, Reply, Request};
use crate::options::RECORD_SUFFIX;
use crate::protocol::memory::{Durability, MemoryId, Process, Record};

const PREFIX: &str = "quorlock:";

/// The script's text.
pub const TEXT: &str = script::LOCK;

/// The memory that a call names.
#[derive(Clone, Debug)]
pub struct Memory(Target);

impl Memory {
    /// Returns the memory that this record names. `None` if the text is no record.
    ///
    /// For `look_period` after the record was made, the memory counts for no guarded request.
    pub fn of(record: &str, look_period: Duration) -> Option<Memory> {
        let record: Record = record.parse().ok()?;
        Some(Memory(Target::new(PREFIX, 0, record, look_period)))
    }
}

/// Returns the record of a memory that begins at `since`, in microseconds of the node's clock.
pub fn record(id: u128, since: i64) -> String {
    let process = Process {
        run_id: "simulated".into(),
        former_master: None,
    };
    Record::new(MemoryId::from(id), since, process, Durability::Full).to_string()
}

/// Returns the key of the record.
pub fn record_key() -> String {
    format!("{PREFIX}{RECORD_SUFFIX}")
}

/// A request, with the time that a connection adds to it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// The last moment at which the node may execute the request, in microseconds of the node's clock.
    pub latest: i64,
}

impl Exchange {
    fn item(&self) -> Item<'_> {
        Item {
            request: &self.request,
            latest: self.latest,
        }
    }
}

/// Makes a request. Outside of this crate, there is no other way.
pub fn request(key: &str, owner: OwnerToken, action: Action) -> Request {
    Request {
        key: key.into(),
        owner,
        action,
    }
}

/// Keys or arguments of a call.
pub type Words = Vec<Vec<u8>>;

/// Encodes requests as the script's `KEYS` and `ARGV`.
pub fn arguments(memory: &Memory, exchanges: &[Exchange]) -> (Words, Words) {
    let mut call = BytesMut::new();
    script::encode(None, &memory.0, exchanges.iter().map(Exchange::item), &mut call);
    // A command is encoded like a reply that is a list of strings.
    let Ok(Some((Value::List(words), _))) = resp::decode(&call) else {
        return Default::default();
    };
    let text = |word| match word {
        Value::Text(text) => Some(text),
        _ => None,
    };
    let mut keys: Words = words.into_iter().skip(3).filter_map(text).collect();
    let args = keys.split_off(keys.len() / 2);
    (keys, args)
}

/// A reply for each request, and the node's time in microseconds if the script told it.
pub type Replies = (Vec<Result<Reply, Fault>>, Option<i64>);

/// Decodes the script's answer to `exchanges`.
///
/// # Errors
///
/// [`Fault::Protocol`] if the answer is malformed.
pub fn read(answer: Value, memory: &Memory, exchanges: &[Exchange]) -> Result<Replies, Fault> {
    let answer = script::read(answer, &memory.0, exchanges.iter().map(Exchange::item))?;
    Ok((answer.replies, answer.node_time))
}

/// Decodes the first reply in the bytes, as a lock connection does. Returns it with its length; `None` if it is not complete.
///
/// # Errors
///
/// [`Fault::Protocol`] if the bytes are not the beginning of a reply.
pub fn decode(bytes: &[u8]) -> Result<Option<(Value, usize)>, Fault> {
    resp::decode(bytes)
}

/// Returns the fault that an error reply to the whole call stands for.
pub fn fault(error: &str) -> Fault {
    super::fault::from_message(error)
}

/// Returns the channel in which releases of `key` are announced.
pub fn channel(key: &str) -> String {
    script::channel(key, 0)
}

/// Decodes an announcement. `None` if `message` is not one.
pub fn announced(message: &str) -> Option<Announcement> {
    script::announced(message)
}
