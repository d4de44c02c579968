//! Simulated servers that run the lock script on the paused clock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorlock::FencingToken;
use quorlock::simulation::lock_script::{self, Announcement, Exchange, Memory};
use quorlock::simulation::{Action, Listener, OwnerToken, Reply, Request};
use tokio::time::Instant;

use super::Answer;
use crate::node_model::{self, Keyspace, Snapshot};

/// The servers' time at the beginning of every test, in microseconds since 1970.
const EPOCH: i64 = 1_795_000_000_000_000;

/// A server that runs `lock.lua` on the paused clock.
pub(crate) struct Server {
    pub(super) name: Arc<str>,
    pub(super) state: Arc<Mutex<State>>,
    latency: Mutex<Box<dyn FnMut() -> Duration + Send>>,
}

pub(super) struct State {
    keyspace: Keyspace,
    memory: Memory,
    raised: usize,
    healed: usize,
    acquires: usize,
    executed: usize,
    pub(super) listeners: Vec<Subscriber>,
    pub(super) next_listener: u64,
    pub(super) mute: bool,
    /// A keyspace that has the node's record only.
    empty: Snapshot,
}

#[derive(Clone)]
pub(super) struct Subscriber {
    pub(super) number: u64,
    pub(super) key: Arc<str>,
    pub(super) listener: Listener,
    pub(super) distance: Option<Distance>,
}

impl Subscriber {
    pub(super) fn tell(&self, announcement: Announcement) {
        match announcement {
            Announcement::Release(owner, notice) => self.listener.released(owner, notice),
            Announcement::Wait(notice) => self.listener.waits(notice),
        }
    }
}

/// Draws the one-way latency of one client.
pub(super) type Distance = Arc<dyn Fn() -> Duration + Send + Sync>;

impl Server {
    pub(crate) fn new(number: usize, latency: impl FnMut() -> Duration + Send + 'static) -> Arc<Server> {
        Arc::new(Server {
            name: format!("server{number}").into(),
            state: Arc::new(Mutex::new(State::new(number))),
            latency: Mutex::new(Box::new(latency)),
        })
    }

    pub(crate) fn keys(&self) -> usize {
        self.state().keys()
    }

    pub(crate) fn expired(&self) -> usize {
        let mut state = self.state();
        state.keyspace.now = micros();
        state.keyspace.sweep();
        state.keyspace.effects.expired.len()
    }

    pub(crate) fn counter(&self, key: &str) -> Option<FencingToken> {
        let state = self.state();
        let text = state.keyspace.string(&format!("{key}#fence"))?;
        FencingToken::new(text.parse().unwrap())
    }

    pub(crate) fn set_counter(&self, key: &str, counter: u64) {
        let set = ["SET", &format!("{key}#fence"), &counter.to_string()];
        self.state().keyspace.execute(&set);
    }

    pub(super) fn latency(&self) -> Duration {
        (self.latency.lock().unwrap())()
    }

    pub(crate) fn listeners(&self) -> usize {
        self.state().listeners.len()
    }

    pub(crate) fn acquires(&self) -> usize {
        self.state().acquires
    }

    pub(crate) fn executed(&self) -> usize {
        self.state().executed
    }

    /// Sends a forged announcement to the listeners.
    pub(crate) fn say(&self, key: &str, announcement: Announcement) {
        let listeners: Vec<Subscriber> = self.state().listeners(&key.into()).cloned().collect();
        listeners.iter().for_each(|of| of.tell(announcement));
    }

    /// Cuts the connections for announcements, or restores them.
    pub(crate) fn mute(&self, mute: bool) {
        let mut state = self.state();
        state.mute = mute;
        for Subscriber { listener, .. } in &state.listeners {
            if mute {
                listener.unsubscribed()
            } else {
                listener.subscribed()
            }
        }
    }

    pub(crate) fn healed(&self) -> usize {
        self.state().healed
    }

    /// Deletes everything but the node's record.
    pub(crate) fn forget(&self) {
        let state = &mut *self.state();
        state.keyspace.restore(state.empty.clone());
    }

    pub(crate) fn raised(&self) -> usize {
        self.state().raised
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    /// Returns a server whose memory began long ago.
    fn new(number: usize) -> State {
        // Before 1970, so that counters may be small.
        let record = lock_script::record(number as u128 + 1, -2_000_000);
        let mut keyspace = Keyspace::default();
        keyspace.execute(&["SET", &lock_script::record_key(), &record]);
        State {
            empty: keyspace.snapshot(),
            keyspace,
            memory: Memory::of(&record, Duration::ZERO).unwrap(),
            raised: 0,
            healed: 0,
            acquires: 0,
            executed: 0,
            listeners: Vec::new(),
            next_listener: 0,
            mute: false,
        }
    }

    /// Runs the lock script. Returns the answer, and the announcements with their listeners.
    pub(super) fn execute(&mut self, exchange: Exchange) -> (Answer, Vec<(Subscriber, Announcement)>) {
        let Request {
            ref key,
            owner,
            action,
            ..
        } = exchange.request;
        let listening: Vec<Subscriber> = self.listeners(key).cloned().collect();
        let audience = listening.len() as u32;
        self.keyspace.now = micros();
        self.keyspace.subscribers = [(lock_script::channel(key), audience)].into();
        let had_it = self.keyspace.string(key) == Some(&owner.value());
        let answer = match node_model::run(&mut self.keyspace, &self.memory, std::slice::from_ref(&exchange))
        {
            Ok((mut replies, _)) => replies.remove(0),
            Err(fault) => Err(fault),
        };
        self.executed += 1;
        self.acquires += usize::from(matches!(action, Action::Acquire { .. }));
        match (&answer, action) {
            (Ok(Reply::Granted { .. }), Action::Heal { .. }) => self.healed += usize::from(!had_it),
            (Ok(Reply::Raised { .. }), _) => self.raised += 1,
            _ => {}
        }
        let published = std::mem::take(&mut self.keyspace.effects.published);
        let announced = published
            .iter()
            .filter_map(|(_, message)| lock_script::announced(std::str::from_utf8(message).ok()?));
        let told = announced.flat_map(|announced| listening.iter().cloned().map(move |of| (of, announced)));
        (answer, told.collect())
    }

    fn listeners(&self, key: &Arc<str>) -> impl Iterator<Item = &Subscriber> {
        self.listeners
            .iter()
            .filter(move |of| of.key == *key && !self.mute)
    }

    /// Returns the number of locks' keys: those with an owner token as the value.
    fn keys(&mut self) -> usize {
        self.keyspace.now = micros();
        let locks = self
            .keyspace
            .strings()
            .filter_map(|(_, value)| OwnerToken::from_value(value));
        locks.count()
    }
}

/// Returns the servers' time: the paused clock.
pub(super) fn micros() -> i64 {
    thread_local! {
        static START: Instant = Instant::now();
    }
    EPOCH + START.with(Instant::elapsed).as_micros() as i64
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
