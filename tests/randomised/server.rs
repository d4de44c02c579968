//! A simulated server: `src/redis/lock.lua` on its own clock and data.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock::simulation::lock_script::{self, Announcement, Exchange, Memory as Target};
use quorlock::simulation::{Action, OwnerToken, Reply};

use crate::connections::{Answer, Call, Probe};
use crate::memory::{Durability, Finding, Look, MemoryId, Process, Record};
use crate::node_model::{self, Keyspace, Snapshot};
use crate::plan::Plan;

const ONE_SECOND: i64 = 1_000_000;
const REGISTRATION: &str = "quorlock:#client";
/// How often the state is saved for restarts with older data, and for how long, in milliseconds.
const KEEPS_EVERY: u64 = 50;
const KEEPS_FOR: u64 = 1_100;

/// A server's clock, in microseconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct ServerClock {
    /// The time at the start, plus all steps.
    pub(crate) base: i64,
    /// How much faster than true time the clock runs, in millionths.
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
    pub(crate) client: usize,
    /// It was set after the caller's budget.
    late: bool,
    /// It came back with older data, and may have been deleted.
    pub(crate) ghost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    Lost,
    /// The data as it was so many milliseconds ago.
    Older(u64),
}

/// A client that listens for announcements about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub(crate) client: usize,
    pub(crate) key: Arc<str>,
    pub(crate) id: u64,
}

/// Effects of a request that its answer does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) healed: bool,
    pub(crate) late_cleaned: bool,
    pub(crate) counter_expired: bool,
    pub(crate) announced: Option<Announcement>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) clock: ServerClock,
    pub(crate) up: bool,
    pub(crate) stopped: bool,
    /// The number of starts.
    pub(crate) run: u32,
    /// The server writes everything to disk before it answers.
    pub(crate) durable: bool,
    /// Requests that arrived while the server was stopped.
    pub(crate) inbox: VecDeque<(usize, Call)>,
    pub(crate) subscriptions: Vec<Subscription>,
    keyspace: Keyspace,
    marks: BTreeMap<OwnerToken, Mark>,
    kept: VecDeque<(u64, Snapshot)>,
}

impl Server {
    /// Returns a server whose memory began an hour ago.
    pub(crate) fn new(clock: ServerClock, durable: bool, id: MemoryId) -> Self {
        let since = clock.micros(0) - 3_600 * ONE_SECOND;
        let mut server = Server {
            clock,
            up: true,
            stopped: false,
            run: 1,
            durable,
            inbox: VecDeque::new(),
            subscriptions: Vec::new(),
            keyspace: Keyspace::default(),
            marks: BTreeMap::new(),
            kept: VecDeque::new(),
        };
        let record = Record::new(id, since, server.process(), server.durability());
        server.write_record(&record.to_string());
        server
    }

    fn process(&self) -> Process {
        Process {
            run_id: self.run.to_string().into(),
            former_master: None,
        }
    }

    fn durability(&self) -> Durability {
        match self.durable {
            true => Durability::Full,
            false => Durability::Partial,
        }
    }

    fn write_record(&mut self, record: &str) {
        self.keyspace
            .execute(&["SET", &lock_script::record_key(), record]);
    }

    /// Connects a client, and makes or moves the record if necessary (M1). Returns what the client finds, and how the record was
    /// changed.
    pub(crate) fn identify(
        &mut self,
        now: u64,
        client: usize,
        sent_local: i64,
        random: u128,
        plan: &Plan,
    ) -> (Probe, Option<Finding>) {
        self.keyspace.now = self.clock.micros(now);
        let time = self.keyspace.now;
        let found: Option<Record> = self.record();
        let look = Look {
            is_taken: false,
            has_registrations: self
                .keyspace
                .strings()
                .any(|(key, _)| key.starts_with(REGISTRATION)),
        };
        let finding = found.as_ref().map_or(Finding::New, |record| {
            record.judge(&self.process(), self.durability(), look)
        });
        let written = match &finding {
            Finding::Same => None,
            Finding::Renamed(record) => Some(record.to_string()),
            Finding::Resumed(record) => {
                let (head, tail) = record.around_resumed();
                Some(format!("{head}{time:016}{tail}"))
            }
            Finding::New => {
                Some(Record::new(random.into(), time, self.process(), self.durability()).to_string())
            }
        };
        if let Some(record) = &written {
            self.write_record(record);
        }
        self.register(client, plan);
        let text = self
            .keyspace
            .string(&lock_script::record_key())
            .unwrap_or_default();
        let probe = Probe {
            run: self.run,
            time,
            id: text.parse::<Record>().expect("a record").id,
            memory: Target::of(text, plan.look_period()).expect("a record"),
            sent_local,
        };
        (probe, written.map(|_| finding))
    }

    /// Executes a look (M3). Registers the client if it expects this memory.
    pub(crate) fn look(
        &mut self,
        now: u64,
        client: usize,
        taken_for: MemoryId,
        plan: &Plan,
    ) -> Option<MemoryId> {
        self.keyspace.now = self.clock.micros(now);
        let found = self.record().map(|record| record.id);
        if found == Some(taken_for) {
            self.register(client, plan);
        }
        found
    }

    fn record(&self) -> Option<Record> {
        self.keyspace.string(&lock_script::record_key())?.parse().ok()
    }

    /// Registers a client (M4). Only later starts of the server depend on that.
    fn register(&mut self, client: usize, plan: &Plan) {
        let life = plan.guard.unwrap_or_default() + plan.look_period();
        let (key, life) = (format!("{REGISTRATION}{client}"), life.as_millis().to_string());
        self.keyspace.execute(&["SET", &key, "", "PX", &life]);
    }

    pub(crate) fn flush(&mut self) {
        self.keyspace.restore(Snapshot::default());
    }

    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.stopped = false;
        self.inbox.clear();
        self.subscriptions.clear();
    }

    pub(crate) fn restart(&mut self, now: u64, memory: Memory) {
        self.up = true;
        self.run += 1;
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

    /// Returns the locks' keys that are set and not expired.
    pub(crate) fn keys(&mut self, now: u64) -> impl Iterator<Item = (&str, OwnerToken, &Mark)> {
        self.keyspace.now = self.clock.micros(now);
        self.keyspace.strings().filter_map(|(key, value)| {
            let owner = OwnerToken::from_value(value)?;
            Some((key, owner, self.marks.get(&owner)?))
        })
    }

    /// Runs the lock script. Returns the answer, the server's time if the script looked at it, and further effects.
    pub(crate) fn execute(&mut self, now: u64, client: usize, call: &Call) -> (Answer, Option<i64>, Effects) {
        self.keep(now);
        let key = &call.request.key;
        let subscriptions = self.listeners(key).count() as u32;
        let keyspace = &mut self.keyspace;
        keyspace.now = self.clock.micros(now);
        keyspace.subscribers = match subscriptions {
            0 => BTreeMap::new(),
            _ => [(lock_script::channel(key), subscriptions)].into(),
        };
        let owner = call.request.owner;
        let sets = matches!(call.request.action, Action::Acquire { .. } | Action::Heal { .. });
        let had_it = sets && keyspace.string(key) == Some(&owner.value());
        let exchange = Exchange {
            request: call.request.clone(),
            latest: call.latest,
        };
        let (answer, time) = match node_model::run(keyspace, &call.memory, &[exchange]) {
            Ok((mut replies, time)) => (replies.remove(0), time),
            Err(fault) => (Err(fault), None),
        };
        let effects = std::mem::take(&mut keyspace.effects);
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let mut effects = Effects {
            announced: (effects.published.first())
                .and_then(|(_, message)| lock_script::announced(text(message)?)),
            counter_expired: (effects.expired.iter())
                .any(|expired| text(expired).is_some_and(|key| key.ends_with("#fence"))),
            ..Effects::default()
        };
        match (&answer, call.request.action) {
            (Ok(Reply::Granted { .. }), action) if !had_it => {
                effects.healed = matches!(action, Action::Heal { .. });
                let mark = Mark {
                    client,
                    late: now > call.sent + call.budget,
                    ghost: false,
                };
                self.marks.insert(owner, mark);
            }
            (Ok(Reply::Released { .. }), _) => {
                effects.late_cleaned = self.marks.get(&owner).is_some_and(|mark| mark.late);
            }
            _ => {}
        }
        (answer, time, effects)
    }

    pub(crate) fn listeners(&self, key: &Arc<str>) -> impl Iterator<Item = &Subscription> {
        self.subscriptions
            .iter()
            .filter(move |subscription| subscription.key == *key)
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
