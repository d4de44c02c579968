//! A simulated server: what `src/redis/lock.lua` does, on a clock and with a memory of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock::FencingToken;
use quorlock::node::{Action, Fault, Fencing, OwnerToken, Reply, Request};

use crate::desk::{Answer, Call};

/// F5: how far a proposed seed may be from the server's own time, in microseconds.
const ONE_SECOND: i64 = 1_000_000;
/// How often the state is kept for servers that may come back with an older one, in milliseconds, and for how long.
const KEEPS_EVERY: u64 = 50;
const KEEPS_FOR: u64 = 1_100;

/// A clock of its own, in microseconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct ServerClock {
    /// What it shows at the beginning, and what it was set by since.
    pub(crate) base: i64,
    /// How much faster than true time it runs, in millionths.
    pub(crate) ppm: i64,
}

impl ServerClock {
    pub(crate) fn micros(&self, now: u64) -> i64 {
        let now = i64::try_from(now).unwrap_or(i64::MAX / 2_000_000);
        self.base + now * (1_000_000 + self.ppm) / 1_000
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) owner: OwnerToken,
    /// In milliseconds of the server's clock.
    expires: i64,
    /// Who set it.
    pub(crate) client: usize,
    /// It was set when its owner had given up waiting for that.
    late: bool,
    /// It was there once, was deleted or not, and came back with an older state.
    pub(crate) ghost: bool,
    /// It was set by the plain SET, which does not refuse itself.
    pub(crate) plain: bool,
}

#[derive(Clone, Debug)]
struct Counter {
    value: u64,
    /// In milliseconds of the server's clock.
    expires: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct State {
    keys: BTreeMap<Arc<str>, Key>,
    counters: BTreeMap<Arc<str>, Counter>,
}

/// What a crash does to what the server knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    Lost,
    /// As it was so many milliseconds ago.
    Older(u64),
}

/// Somebody who is to be told of the releases of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ear {
    pub(crate) client: usize,
    pub(crate) key: Arc<str>,
    pub(crate) id: u64,
}

/// What of interest has happened on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) healed: bool,
    pub(crate) late_cleaned: bool,
    pub(crate) counter_expired: bool,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) clock: ServerClock,
    pub(crate) up: bool,
    pub(crate) stopped: bool,
    /// Counts its starts.
    pub(crate) run: u32,
    /// On its own clock: when it was started, and since when its memory is complete.
    pub(crate) started: i64,
    pub(crate) remembers_since: i64,
    /// It writes everything to disk before it answers.
    pub(crate) durable: bool,
    /// What arrived while it was stopped.
    pub(crate) inbox: VecDeque<(usize, Call)>,
    /// W2: which clients listen to which key.
    pub(crate) audience: Vec<Ear>,
    state: State,
    kept: VecDeque<(u64, State)>,
}

impl Server {
    pub(crate) fn new(clock: ServerClock, durable: bool) -> Self {
        let started = clock.micros(0) - 3_600 * ONE_SECOND;
        Server {
            clock,
            up: true,
            stopped: false,
            run: 1,
            started,
            remembers_since: started,
            durable,
            inbox: VecDeque::new(),
            audience: Vec::new(),
            state: State::default(),
            kept: VecDeque::new(),
        }
    }

    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.stopped = false;
        self.inbox.clear();
        self.audience.clear();
    }

    pub(crate) fn restart(&mut self, now: u64, memory: Memory) {
        self.up = true;
        self.run += 1;
        self.started = self.clock.micros(now);
        if !self.durable {
            self.remembers_since = self.started;
        }
        match memory {
            Memory::Kept => {}
            Memory::Lost => self.state = State::default(),
            Memory::Older(age) => {
                let wanted = now.saturating_sub(age);
                let older = self.kept.iter().rev().find(|(at, _)| *at <= wanted);
                if let Some((_, state)) = older.or(self.kept.front()) {
                    self.state = state.clone();
                }
                self.state.keys.values_mut().for_each(|key| key.ghost = true);
            }
        }
        self.kept.clear();
    }

    /// The keys that are set and not expired.
    pub(crate) fn keys(&self, now: u64) -> impl Iterator<Item = (&Arc<str>, &Key)> {
        let time = self.clock.micros(now) / 1_000;
        self.state.keys.iter().filter(move |(_, key)| time <= key.expires)
    }

    /// The answer, and the server's time where the script tells it.
    pub(crate) fn execute(
        &mut self,
        now: u64,
        client: usize,
        call: &Call,
    ) -> (Answer, Option<i64>, Happened) {
        let time = self.clock.micros(now);
        let mut happened = Happened::default();
        self.keep(now);
        self.expire(time, &call.request.key, &mut happened);
        let mut answer = self.state.execute(time, now, client, call, &mut happened);
        if let Ok(
            Reply::Held {
                listeners: listen, ..
            }
            | Reply::Released { listeners: listen },
        ) = &mut answer
        {
            *listen = self.listeners(&call.request.key).count() as u32;
        }
        let tells = match call.request.action {
            Action::Acquire { fencing, .. } => fencing.is_some(),
            Action::Heal { .. } | Action::Extend { .. } => true,
            Action::Raise { .. } | Action::Release { .. } => false,
        };
        (answer, tells.then_some(time), happened)
    }

    pub(crate) fn listeners(&self, key: &Arc<str>) -> impl Iterator<Item = &Ear> {
        self.audience.iter().filter(move |ear| ear.key == *key)
    }

    fn keep(&mut self, now: u64) {
        if self.durable
            || self
                .kept
                .back()
                .is_some_and(|(last, _)| *last + KEEPS_EVERY > now)
        {
            return;
        }
        self.kept.push_back((now, self.state.clone()));
        while self
            .kept
            .front()
            .is_some_and(|(first, _)| *first + KEEPS_FOR < now)
        {
            self.kept.pop_front();
        }
    }

    fn expire(&mut self, time: i64, key: &Arc<str>, happened: &mut Happened) {
        let state = &mut self.state;
        if state.keys.get(key).is_some_and(|key| time / 1_000 > key.expires) {
            state.keys.remove(key);
        }
        let expired = |counter: &Counter| counter.expires.is_some_and(|expires| time / 1_000 > expires);
        if state.counters.get(key).is_some_and(expired) {
            state.counters.remove(key);
            happened.counter_expired = true;
        }
    }
}

impl State {
    fn execute(
        &mut self,
        time: i64,
        now: u64,
        client: usize,
        call: &Call,
        happened: &mut Happened,
    ) -> Answer {
        let Request {
            key, owner, action, ..
        } = &call.request;
        let holder = self.keys.get(key).map(|key| (key.owner, key.expires));
        let mine = holder.is_some_and(|(holder, _)| holder == *owner);
        match *action {
            Action::Acquire { ttl, fencing, .. } => {
                if fencing.is_some() && time > call.latest {
                    return Err(Fault::TooLate);
                }
                if let Some(holder) = holder.filter(|_| !mine) {
                    return Ok(held(holder, time));
                }
                if !mine {
                    self.set(time, now, client, call, ttl.as_millis(), fencing.is_none());
                }
                Ok(granted(
                    fencing.map(|fencing| self.count(time, key, fencing, call.oldest)),
                ))
            }
            Action::Heal { ttl, fencing } => {
                if time > call.latest {
                    return Err(Fault::TooLate);
                }
                if let Some(holder) = holder.filter(|_| !mine) {
                    return Ok(held(holder, time));
                }
                if !mine {
                    self.set(time, now, client, call, ttl.as_millis(), fencing.is_none());
                    happened.healed = true;
                }
                Ok(granted(fencing.map(|(fencing, token)| {
                    self.learn(time, key, fencing, token.get(), call.oldest)
                })))
            }
            Action::Raise { token } => match (holder, mine) {
                (None, _) => Ok(Reply::Missing),
                (Some(_), false) => Ok(Reply::Foreign),
                (Some(_), true) => Ok(match self.counters.get_mut(key) {
                    Some(counter) => {
                        counter.value = counter.value.max(token.get());
                        Reply::Raised {
                            counter: as_token(counter.value),
                        }
                    }
                    None => Reply::Missing,
                }),
            },
            Action::Extend { .. } if time > call.latest => Err(Fault::TooLate),
            Action::Extend { ttl, .. } => match (self.keys.get_mut(key), mine) {
                (None, _) => Ok(Reply::Missing),
                (Some(_), false) => Ok(Reply::Foreign),
                (Some(key), true) => {
                    key.expires = key.expires.max(time / 1_000 + millis(ttl.as_millis()));
                    Ok(Reply::Extended)
                }
            },
            Action::Release { counter, .. } => {
                if let (Some(to), Some(counter)) = (counter, self.counters.get_mut(key)) {
                    counter.value = counter.value.max(to.get());
                }
                match (holder, mine) {
                    (None, _) => Ok(Reply::Missing),
                    (Some(_), false) => Ok(Reply::Foreign),
                    (Some(_), true) => {
                        let key = self.keys.remove(key);
                        happened.late_cleaned = key.is_some_and(|key| key.late);
                        Ok(Reply::Released { listeners: 0 })
                    }
                }
            }
        }
    }

    fn set(&mut self, time: i64, now: u64, client: usize, call: &Call, ttl: u128, plain: bool) {
        let key = Key {
            owner: call.request.owner,
            expires: time / 1_000 + millis(ttl),
            client,
            late: now > call.sent + call.budget,
            ghost: false,
            plain,
        };
        self.keys.insert(call.request.key.clone(), key);
    }

    /// F1: counts a grant.
    fn count(&mut self, time: i64, key: &Arc<str>, fencing: Fencing, oldest: i64) -> u64 {
        let counter = self.counters.entry(key.clone()).or_insert(Counter {
            value: 0,
            expires: None,
        });
        counter.value += 1;
        let value = counter.value;
        if is_outdated(value, oldest) {
            self.start(time, key, fencing, value, 0)
        } else {
            value
        }
    }

    /// E4: nothing is counted.
    fn learn(&mut self, time: i64, key: &Arc<str>, fencing: Fencing, token: u64, oldest: i64) -> u64 {
        let value = self.counters.get(key).map_or(0, |counter| counter.value);
        if is_outdated(value, oldest) {
            return self.start(time, key, fencing, value, token);
        }
        if let Some(counter) = self.counters.get_mut(key) {
            counter.value = counter.value.max(token);
        }
        value.max(token)
    }

    /// F5: starts a counter anew.
    fn start(&mut self, time: i64, key: &Arc<str>, fencing: Fencing, value: u64, least: u64) -> u64 {
        let proposed = i64::try_from(fencing.seed.get()).unwrap_or(i64::MAX);
        let seed = if (proposed - time).abs() > ONE_SECOND {
            time
        } else {
            proposed
        };
        let seed = u64::try_from(seed).unwrap_or(0).max(least);
        if seed <= value {
            return value;
        }
        let expires = fencing
            .retention
            .map(|retention| time / 1_000 + millis(retention.as_millis()));
        self.counters
            .insert(key.clone(), Counter { value: seed, expires });
        seed
    }
}

fn is_outdated(value: u64, oldest: i64) -> bool {
    value < u64::try_from(oldest).unwrap_or(0).max(2)
}

fn held((owner, expires): (OwnerToken, i64), time: i64) -> Reply {
    let left = u64::try_from(expires - time / 1_000).unwrap_or(0);
    Reply::Held {
        remaining: Some(std::time::Duration::from_millis(left)),
        holder: Some(owner),
        listeners: 0,
    }
}

fn granted(counter: Option<u64>) -> Reply {
    Reply::Granted {
        counter: counter.map(as_token),
    }
}

fn as_token(value: u64) -> FencingToken {
    FencingToken::new(value).unwrap()
}

fn millis(duration: u128) -> i64 {
    i64::try_from(duration).unwrap_or(i64::MAX / 4)
}
