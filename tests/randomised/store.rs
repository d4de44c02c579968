//! A store that checks fencing tokens: it refuses those that are smaller than the largest it has seen.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) resource: usize,
    pub(crate) grant: usize,
    pub(crate) token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Accepted,
    Stale,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    largest: BTreeMap<usize, u64>,
}

impl Store {
    pub(crate) fn write(&mut self, write: Write) -> WriteOutcome {
        let largest = self.largest.entry(write.resource).or_default();
        if write.token < *largest {
            return WriteOutcome::Stale;
        }
        *largest = write.token;
        WriteOutcome::Accepted
    }
}
