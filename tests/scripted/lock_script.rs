//! Edge cases of `lock.lua`, request by request.

mod announcements;
mod counters;
mod keys;
mod memories;

use std::time::Duration;

use quorlock::simulation::lock_script::{self, Exchange, Memory};
use quorlock::simulation::{Action, Fault, Fencing, OwnerToken, ReleaseKind, ReleaseNotice, Reply, SetMark};
use quorlock::{DoneMark, FencingToken};

use crate::node_model::{self, Keyspace, Resp, Trouble};
use crate::nodes::{Answer, ms};

const KEY: &str = "lock";
const COUNTER: &str = "lock#fence";
/// The node's time, in microseconds since 1970.
const NOW: i64 = 1_795_000_000_000_000;
const MILLISECOND: i64 = 1_000;
const SECOND: i64 = 1_000_000;
const TTL: Duration = ms(10_000);
/// A memory's counters start at least this far ahead of its beginning (F5).
const LEAD: i64 = SECOND + 1;
/// The look period (P).
const LOOK_PERIOD: Duration = ms(10_000);

fn owner(number: u128) -> OwnerToken {
    OwnerToken::from(number)
}

fn token(number: i64) -> FencingToken {
    FencingToken::try_from(number).unwrap()
}

fn fencing(seed: i64, retention: Option<Duration>) -> Fencing {
    Fencing {
        seed: token(seed),
        retention,
    }
}

fn acquire(fencing: Fencing) -> Action {
    Action::Acquire {
        ttl: TTL,
        fencing: Some(fencing),
        guard: None,
    }
}

fn plain_acquire() -> Action {
    Action::Acquire {
        ttl: TTL,
        fencing: None,
        guard: None,
    }
}

fn extend(ttl: Duration) -> Action {
    Action::Extend { ttl, guarded: true }
}

fn heal(fencing: Fencing, to: i64) -> Action {
    Action::Heal {
        ttl: TTL,
        fencing: Some((fencing, token(to))),
    }
}

fn heal_without_tokens() -> Action {
    Action::Heal {
        ttl: TTL,
        fencing: None,
    }
}

fn release(counter: Option<i64>) -> Action {
    Action::Release {
        counter: counter.map(token),
        notice: Some(ReleaseNotice {
            kind: ReleaseKind::Free,
            turn: None,
        }),
        keep_until: None,
    }
}

fn granted(counter: i64) -> Answer {
    Ok(Reply::Granted {
        counter: Some(token(counter)),
    })
}

struct Script {
    keyspace: Keyspace,
    /// The memory that the client believes the node to be.
    memory: Memory,
}

impl Script {
    /// Returns a node whose memory began long ago.
    fn new() -> Script {
        Script::since(0)
    }

    fn since(since: i64) -> Script {
        Script::with_record(&lock_script::record(1, since))
    }

    fn with_record(record: &str) -> Script {
        let mut keyspace = Keyspace::default();
        keyspace.now = NOW;
        keyspace.execute(&["SET", &lock_script::record_key(), record]);
        let memory = Memory::of(record, LOOK_PERIOD).unwrap();
        Script { keyspace, memory }
    }

    /// Returns a node on which owner 1 has the lock, with this counter.
    fn held(counter: &str) -> Script {
        let mut script = Script::new();
        let set = ["SET", KEY, &owner(1).value(), "PX", "10000"];
        script.command(&set);
        script.command(&["SET", COUNTER, counter]);
        script
    }

    fn command(&mut self, command: &[&str]) -> Resp {
        self.keyspace.execute(command)
    }

    fn exchange(&self, owner: OwnerToken, action: Action, latest: i64) -> Exchange {
        Exchange {
            request: lock_script::request(KEY, owner, action),
            latest,
        }
    }

    /// Sends a request of owner 1 that is in time.
    fn ask(&mut self, action: Action) -> Answer {
        self.ask_as(owner(1), action)
    }

    fn ask_as(&mut self, owner: OwnerToken, action: Action) -> Answer {
        self.ask_by(owner, action, self.keyspace.now)
    }

    fn ask_by(&mut self, owner: OwnerToken, action: Action, latest: i64) -> Answer {
        let exchange = self.exchange(owner, action, latest);
        node_model::run(&mut self.keyspace, &self.memory, &[exchange])?
            .0
            .remove(0)
    }

    /// Returns the values of the lock's key and of its counter.
    fn state(&self) -> (Option<&str>, Option<&str>) {
        (self.keyspace.string(KEY), self.keyspace.string(COUNTER))
    }

    fn ttl(&mut self, key: &str) -> Resp {
        self.command(&["PTTL", key])
    }

    fn pass(&mut self, millis: i64) {
        self.keyspace.now += millis * MILLISECOND;
    }
}
