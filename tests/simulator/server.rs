//! A simulated server: `src/redis/lock.lua`, on a clock and with a memory of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock::lock_script::{self, Exchange};
use quorlock::node::{Action, News, OwnerToken, Reply};

use crate::desk::{Answer, Call};
use crate::node_model::{self, Keyspace, Snapshot};

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

/// How a lock's key was set, beside what the server knows of it.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The client that set it.
    pub(crate) client: usize,
    /// It was set after its caller had given up waiting.
    late: bool,
    /// It came back with an older state, whether or not it had been deleted.
    pub(crate) ghost: bool,
    /// It was set without fencing, and so without a last moment.
    pub(crate) plain: bool,
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
    pub(crate) announced: Option<(OwnerToken, News)>,
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
    keyspace: Keyspace,
    marks: BTreeMap<OwnerToken, Mark>,
    kept: VecDeque<(u64, Snapshot)>,
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
            keyspace: Keyspace::default(),
            marks: BTreeMap::new(),
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
            Memory::Lost => self.keyspace.restore(Snapshot::default()),
            Memory::Older(age) => {
                let wanted = now.saturating_sub(age);
                let older = self.kept.iter().rev().find(|(at, _)| *at <= wanted);
                if let Some((_, snapshot)) = older.or(self.kept.front()) {
                    self.keyspace.restore(snapshot.clone());
                }
                for (_, value) in self.keyspace.strings() {
                    let owner = OwnerToken::from_value(value);
                    if let Some(mark) = owner.and_then(|owner| self.marks.get_mut(&owner)) {
                        mark.ghost = true;
                    }
                }
            }
        }
        self.kept.clear();
    }

    /// The locks' keys that are set and not expired.
    pub(crate) fn keys(&mut self, now: u64) -> impl Iterator<Item = (&str, OwnerToken, &Mark)> {
        self.keyspace.now = self.clock.micros(now);
        self.keyspace.strings().filter_map(|(key, value)| {
            let owner = OwnerToken::from_value(value)?;
            Some((key, owner, self.marks.get(&owner)?))
        })
    }

    /// The answer, and the server's time where the script tells it.
    pub(crate) fn execute(
        &mut self,
        now: u64,
        client: usize,
        call: &Call,
    ) -> (Answer, Option<i64>, Happened) {
        self.keep(now);
        let key = &call.request.key;
        let audience = self.listeners(key).count() as u32;
        let keyspace = &mut self.keyspace;
        keyspace.now = self.clock.micros(now);
        keyspace.subscribers = match audience {
            0 => BTreeMap::new(),
            _ => [(lock_script::channel(key), audience)].into(),
        };
        let owner = call.request.owner;
        let sets = matches!(call.request.action, Action::Acquire { .. } | Action::Heal { .. });
        let had_it = sets && keyspace.string(key) == Some(&owner.value());
        let exchange = Exchange {
            request: call.request.clone(),
            latest: call.latest,
            oldest_counter: call.oldest,
        };
        let (answer, time) = match node_model::run(keyspace, &[exchange]) {
            Ok((mut replies, time)) => (replies.remove(0), time),
            Err(fault) => (Err(fault), None),
        };
        let effects = std::mem::take(&mut keyspace.effects);
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let mut happened = Happened {
            announced: (effects.published.first())
                .and_then(|(_, message)| lock_script::announced(text(message)?)),
            // Nothing else expires but the lock's key.
            counter_expired: effects.expired.iter().any(|expired| text(expired) != Some(key)),
            ..Happened::default()
        };
        match (&answer, call.request.action) {
            (Ok(Reply::Granted { .. }), action) if !had_it => {
                happened.healed = matches!(action, Action::Heal { .. });
                let mark = Mark {
                    client,
                    late: now > call.sent + call.budget,
                    ghost: false,
                    plain: call.is_plain(),
                };
                self.marks.insert(owner, mark);
            }
            (Ok(Reply::Released { .. }), _) => {
                happened.late_cleaned = self.marks.get(&owner).is_some_and(|mark| mark.late);
            }
            _ => {}
        }
        (answer, time, happened)
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
        self.kept.push_back((now, self.keyspace.snapshot()));
        while self
            .kept
            .front()
            .is_some_and(|(first, _)| *first + KEEPS_FOR < now)
        {
            self.kept.pop_front();
        }
    }
}
