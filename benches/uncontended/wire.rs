//! The requests of the two hand-written clients, and the answers that they accept.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::contender::{Failure, TTL};

pub(crate) const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

const LOCK: &str = include_str!("../../src/redis/lock.lua");

pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// The prefix, as long as quorlock's. Keys and record are separate from quorlock's.
pub(crate) const PREFIX: &str = "handmade:";
const RECORD_KEY: &str = "handmade:#node";
/// The beginning of the record.
const STAMP: &str = "1 00000000000000000000000000000001";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// As the description of Redlock says: `SET NX PX`, and compare-and-delete.
    Plain,
    /// quorlock's own, to the byte: its script for both.
    Scripted,
    /// quorlock's own with fencing off.
    Unfenced,
}

impl Requests {
    /// Returns the commands that prepare a server: they set the record, and load the script.
    pub(crate) fn preparation(self) -> Vec<u8> {
        let record = format!("{STAMP} {:016} {:016} - {:040} -", 1, 0, 0);
        let script = match self {
            Requests::Plain => UNLOCK,
            Requests::Scripted | Requests::Unfenced => LOCK,
        };
        let mut bytes = command(&["SET", RECORD_KEY, &record]);
        bytes.extend(command(&["SCRIPT", "LOAD", script]));
        bytes
    }

    pub(crate) fn acquire(self, digest: &str, key: &str, token: &str) -> Vec<u8> {
        let ttl = TTL.as_millis();
        let (latest, earliest) = (9_999_999_999_999_999_u64, 0);
        match self {
            Requests::Plain => command(&["SET", key, token, "NX", "PX", &ttl.to_string()]),
            Requests::Unfenced => scripted(digest, key, &format!("s{token}{latest:016}{earliest:016}{ttl}")),
            Requests::Scripted => {
                let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let (oldest, retention) = (2, 24 * 3_600 * 1_000);
                let item = format!(
                    "a{token}{latest:016}{earliest:016}{:016}{oldest:016}{retention:016}{ttl}",
                    seed.as_micros()
                );
                scripted(digest, key, &item)
            }
        }
    }

    pub(crate) fn release(self, digest: &str, key: &str, token: &str) -> Vec<u8> {
        match self {
            Requests::Plain => command(&["EVALSHA", digest, "1", key, token]),
            Requests::Scripted | Requests::Unfenced => {
                // No counter; announced as free by a process with this number.
                let item = format!("r{token}{:016}f{:016x}{:08x}", 0, 1, 1);
                scripted(digest, key, &item)
            }
        }
    }
}

fn scripted(digest: &str, key: &str, item: &str) -> Vec<u8> {
    command(&["EVALSHA", digest, "2", key, RECORD_KEY, item, STAMP])
}

/// The length of the answers to the preparation. The script's digest is at the end.
pub(crate) const PREPARED: usize = "+OK\r\n$40\r\n".len() + 40 + 2;

pub(crate) fn digest(prepared: &[u8; PREPARED]) -> String {
    String::from_utf8_lossy(&prepared[PREPARED - 42..PREPARED - 2]).into_owned()
}

/// Joins lines to answers. No string in them contains the end of a line.
#[derive(Default)]
pub(crate) struct Answers {
    line: Vec<u8>,
    /// The number of entries to come, for each level of nesting.
    missing: Vec<usize>,
    failure: Option<Failure>,
}

impl Answers {
    /// Adds bytes, and calls `answered` for each complete answer.
    pub(crate) fn take_in(&mut self, bytes: &[u8], mut answered: impl FnMut(Result<(), Failure>)) {
        for byte in bytes {
            match byte {
                b'\r' => {}
                b'\n' => {
                    self.end_of_line();
                    if self.missing.is_empty() {
                        answered(self.failure.take().map_or(Ok(()), Err));
                    }
                }
                byte => self.line.push(*byte),
            }
        }
    }

    fn end_of_line(&mut self) {
        let length = |line: &[u8]| std::str::from_utf8(&line[1..]).ok()?.parse::<usize>().ok();
        match (self.line.first(), length(&self.line)) {
            (Some(b'*'), Some(entries)) if entries > 0 => self.missing.push(entries),
            // The string follows, and is the entry.
            (Some(b'$'), Some(_)) => {}
            _ => {
                self.check();
                // The last entry of a list ends the list, which may be the last entry of another one.
                while let Some(missing) = self.missing.last_mut() {
                    *missing -= 1;
                    if *missing > 0 {
                        break;
                    }
                    self.missing.pop();
                }
            }
        }
        self.line.clear();
    }

    /// Expects `OK` or one deleted key; from the script, 0 or a counter, and a time in digits.
    fn check(&mut self) {
        let expected = match (self.missing.len(), self.line.first()) {
            (0, _) => self.line == b"+OK" || self.line == b":1",
            (1, Some(b':')) => self.line.get(1) != Some(&b'-'),
            (1, Some(first)) => first.is_ascii_digit(),
            _ => false,
        };
        if !expected {
            self.failure = Some(String::from_utf8_lossy(&self.line).into_owned());
        }
    }
}

pub(crate) fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}
