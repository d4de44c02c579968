//! What the two hand-written clients send.

use crate::contender::{Failure, TTL};

pub(crate) const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// One command in the servers' protocol.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

pub(crate) fn set(key: &str, token: &str) -> Vec<u8> {
    command(&["SET", key, token, "NX", "PX", &TTL.as_millis().to_string()])
}

pub(crate) fn unlock(digest: &str, key: &str, token: &str) -> Vec<u8> {
    command(&["EVALSHA", digest, "1", key, token])
}

/// All answers that are expected here are one line.
pub(crate) fn check(line: &[u8]) -> Result<(), Failure> {
    match line {
        b"+OK" | b":1" => Ok(()),
        other => Err(String::from_utf8_lossy(other).into_owned()),
    }
}

pub(crate) fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}
