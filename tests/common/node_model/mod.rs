//! A model of a node for simulations: `lock.lua` itself on a keyspace in memory. Not every suite uses all of it.
#![allow(dead_code, unused_imports)]

mod keyspace;
mod lua;

use quorlock::node::Fault;
use quorlock::simulation::lock_script::{self, Exchange, Memory, Replies, Value};

pub(crate) use keyspace::{Effects, Keyspace, Resp, Snapshot, Trouble};
use lua::Runner;

thread_local! {
    static LOCK: Runner = Runner::new(lock_script::TEXT);
}

/// Runs the lock script for `exchanges`, as one call over a connection to `memory`.
pub(crate) fn run(
    keyspace: &mut Keyspace,
    memory: &Memory,
    exchanges: &[Exchange],
) -> Result<Replies, Fault> {
    let (keys, args) = lock_script::arguments(memory, exchanges);
    let (keys, args) = (keys.iter().map(Vec::as_slice), args.iter().map(Vec::as_slice));
    match LOCK.with(|lock| lock.run(keyspace, keys, args)) {
        Resp::Error(error) => Err(lock_script::fault(&error)),
        answer => lock_script::read(value(answer), memory, exchanges),
    }
}

/// Converts as a connection reads the answer.
fn value(answer: Resp) -> Value {
    match answer {
        Resp::Nil => Value::Nil,
        Resp::Integer(number) => Value::Integer(number),
        Resp::Status(text) => Value::Text(text.into()),
        // The script catches errors one by one, and returns their texts.
        Resp::Error(error) => panic!("an error inside the answer: {error}"),
        Resp::Bulk(bytes) => Value::Text(bytes.to_vec()),
        Resp::Array(items) => Value::List(items.into_iter().map(value).collect()),
    }
}
