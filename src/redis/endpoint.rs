//! How to reach one node of the set, and what its connections have in common.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::address::Addresses;
use super::node_config::NodeConfig;
use super::patience::Patience;
use super::probe::RunIds;
use super::time::ServerTime;
use crate::protocol::memory::MemoryId;
use crate::sys::mutex::lock;

pub(super) struct Endpoint {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) node: NodeConfig,
    pub(super) addresses: Addresses,
    pub(super) run_ids: Arc<RunIds>,
    pub(super) prefix: Arc<str>,
    pub(super) timeout: Duration,
    /// For connections for locks, and for those for announcements.
    pub(super) patience: Patience,
    pub(super) announcement_patience: Patience,
    pub(super) time: Arc<ServerTime>,
    /// The longest time between two looks of a client at addresses and records (P in the design).
    pub(super) look_period: Duration,
    /// The guard window.
    pub(super) window: Duration,
    /// The memory in this node's record, if its data or its clock was put back. The node then gets a new memory.
    pub(super) rejected_memory: Arc<Mutex<Option<MemoryId>>>,
    /// The memory that this client used last at the address, and its last look at it, in microseconds of our clock.
    pub(super) last_used: Mutex<Option<(MemoryId, i64)>>,
    /// The name of the connections, in the server's list of clients.
    pub(super) client_name: Arc<str>,
    /// The number of connections that have passed the probe.
    pub(super) opened: AtomicU64,
    /// Warnings that were logged already. Each is logged once, and not with every connection.
    pub(super) warned: Mutex<HashSet<String>>,
}

impl Endpoint {
    /// Records that this client has just looked at the memory.
    pub(super) fn record_use(&self, memory: MemoryId) {
        *lock(&self.last_used) = Some((memory, self.time.now()));
    }

    /// Returns whether the record of `memory` is older, by more than a look period, than the last look at the memory used before
    /// it. Then the address has led back to an earlier server. The guard of its memory began too early: the other server has
    /// granted locks since. `age` and `now` are in microseconds.
    pub(super) fn is_outdated(&self, memory: MemoryId, age: i64, now: i64) -> bool {
        let period = i64::try_from(self.look_period.as_micros()).unwrap_or(i64::MAX);
        let last = *lock(&self.last_used);
        last.is_some_and(|(used, at)| used != memory && age > now.saturating_sub(at).saturating_add(period))
    }

    pub(super) fn warn_once(&self, what: String, warning: &dyn fmt::Display) {
        if lock(&self.warned).insert(what) {
            tracing::warn!(node = &*self.name, "{warning}");
        }
    }

    pub(super) fn database(&self) -> u8 {
        self.node.config().database.unwrap_or(0)
    }
}
