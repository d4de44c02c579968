//! What `lock.lua` does at its edges, request by request.

use std::time::Duration;

use quorlock::FencingToken;
use quorlock::lock_script::{self, Exchange};
use quorlock::node::{Action, Fault, Fencing, News, OwnerToken, Reply};

use crate::node_model::{self, Keyspace, Resp, Trouble};
use crate::nodes::{Answer, ms};

const KEY: &str = "lock";
const COUNTER: &str = "lock#fence";
/// The node's time, in microseconds.
const NOW: i64 = 1_795_000_000_000_000;
const MILLISECOND: i64 = 1_000;
const SECOND: i64 = 1_000_000;
const TTL: Duration = ms(10_000);
/// What a counter that was started now is at least.
const OLDEST: i64 = NOW - 60 * SECOND;

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

fn heal(fencing: Fencing, to: i64) -> Action {
    Action::Heal {
        ttl: TTL,
        fencing: Some((fencing, token(to))),
    }
}

fn release(counter: Option<i64>) -> Action {
    Action::Release {
        counter: counter.map(token),
        news: Some(News::Free),
    }
}

fn granted(counter: i64) -> Answer {
    Ok(Reply::Granted {
        counter: Some(token(counter)),
    })
}

/// One node.
struct Script {
    keyspace: Keyspace,
    oldest_counter: i64,
}

impl Script {
    fn new() -> Script {
        let mut keyspace = Keyspace::default();
        keyspace.now = NOW;
        Script {
            keyspace,
            oldest_counter: 0,
        }
    }

    /// A node on which owner 1 has the lock, with this counter.
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
            oldest_counter: self.oldest_counter,
        }
    }

    /// A request of owner 1 that is in time.
    fn ask(&mut self, action: Action) -> Answer {
        self.ask_as(owner(1), action)
    }

    fn ask_as(&mut self, owner: OwnerToken, action: Action) -> Answer {
        self.ask_by(owner, action, self.keyspace.now)
    }

    fn ask_by(&mut self, owner: OwnerToken, action: Action, latest: i64) -> Answer {
        let exchange = self.exchange(owner, action, latest);
        node_model::run(&mut self.keyspace, &[exchange])?.0.remove(0)
    }

    /// What the lock's key and its counter hold.
    fn state(&self) -> (Option<&str>, Option<&str>) {
        (self.keyspace.string(KEY), self.keyspace.string(COUNTER))
    }

    fn ttl(&mut self, key: &str) -> Resp {
        self.command(&["PTTL", key])
    }

    /// Lets so many milliseconds pass.
    fn pass(&mut self, millis: i64) {
        self.keyspace.now += millis * MILLISECOND;
    }
}

#[test]
fn a_grant_that_cannot_be_counted_leaves_no_key() {
    let seed = fencing(NOW, None);
    type Breaks = fn(&mut Script);
    let cases: [(&str, Breaks, Fault); 4] = [
        (
            "a list",
            |script| drop(script.command(&["RPUSH", COUNTER, "item"])),
            Fault::WrongType,
        ),
        (
            "no number",
            |script| drop(script.command(&["SET", COUNTER, "five"])),
            Fault::Server {
                message: "ERR value is not an integer or out of range".into(),
            },
        ),
        (
            "the largest number",
            |script| drop(script.command(&["SET", COUNTER, &i64::MAX.to_string()])),
            Fault::Server {
                message: "ERR increment or decrement would overflow".into(),
            },
        ),
        (
            "forbidden",
            |script| script.keyspace.trouble = Trouble::Forbidden("INCR"),
            Fault::NoPermission { needs: "" },
        ),
    ];
    for (what, breaks, fault) in cases {
        let mut script = Script::new();
        breaks(&mut script);
        let answer = script.ask(acquire(seed)).unwrap_err();
        match fault {
            Fault::NoPermission { .. } => assert!(matches!(answer, Fault::NoPermission { .. }), "{what}"),
            fault => assert_eq!(answer, fault, "{what}"),
        }
        assert_eq!(script.state().0, None, "{what}: the key was left");
    }
}

/// A key that an earlier request has set is kept: the grant is known.
#[test]
fn a_second_acquire_that_cannot_be_counted_keeps_the_key() {
    let mut script = Script::held("5");
    script.keyspace.trouble = Trouble::Forbidden("INCR");
    script.ask(acquire(fencing(NOW, None))).unwrap_err();
    assert_eq!(script.state().0, Some(&*owner(1).value()));
}

#[test]
fn a_heal_that_cannot_raise_the_counter_leaves_no_key() {
    let mut script = Script::new();
    script.command(&["RPUSH", COUNTER, "item"]);
    let answer = script.ask(heal(fencing(NOW, None), NOW));
    assert_eq!(answer, Err(Fault::WrongType));
    assert_eq!(script.state().0, None);
}

#[test]
fn servers_that_refuse_writes_are_named_and_unchanged() {
    for (trouble, fault) in [
        (Trouble::ReadOnly, Fault::ReadOnly),
        (Trouble::OutOfMemory, Fault::OutOfMemory),
    ] {
        let mut script = Script::new();
        script.keyspace.trouble = trouble;
        assert_eq!(script.ask(acquire(fencing(NOW, None))), Err(fault.clone()));
        assert_eq!(script.ask(plain_acquire()), Err(fault.clone()));
        assert_eq!(script.state(), (None, None));
        let mut script = Script::held("5");
        script.keyspace.trouble = trouble;
        assert_eq!(script.ask(Action::Raise { token: token(9) }), Err(fault.clone()));
        // A server without memory can still delete and extend.
        let released = script.ask(release(Some(9)));
        match trouble {
            Trouble::ReadOnly => assert_eq!(released, Err(fault)),
            _ => assert_eq!(released, Ok(Reply::Released { listeners: 0 })),
        }
        assert_eq!(script.state().1, Some("5"));
    }
}

/// F3, F4: the counter is raised only where it may be, and never lowered.
#[test]
fn a_counter_is_raised_only_where_it_may_be() {
    let (ours, others) = (Some(owner(1)), Some(owner(2)));
    let raise = |to| Action::Raise { token: token(to) };
    let raised = |counter| {
        Ok(Reply::Raised {
            counter: token(counter),
        })
    };
    let released = || Ok(Reply::Released { listeners: 0 });
    // The holder, the counter before, what is asked, the answer, the counter after.
    let cases = [
        (ours, Some("5"), raise(9), raised(9), Some("9")),
        (ours, Some("12"), raise(9), raised(12), Some("12")),
        (ours, None, raise(9), Ok(Reply::Missing), None),
        (others, Some("5"), raise(9), Ok(Reply::Foreign), Some("5")),
        (None, Some("5"), raise(9), Ok(Reply::Missing), Some("5")),
        (ours, Some("5"), release(Some(9)), released(), Some("9")),
        (ours, Some("12"), release(Some(9)), released(), Some("12")),
        (ours, None, release(Some(9)), released(), None),
        (ours, Some("5"), release(None), released(), Some("5")),
        (others, Some("5"), release(Some(9)), Ok(Reply::Foreign), Some("9")),
        (others, Some("5"), release(None), Ok(Reply::Foreign), Some("5")),
        (None, Some("5"), release(Some(9)), Ok(Reply::Missing), Some("9")),
        (None, None, release(Some(9)), Ok(Reply::Missing), None),
    ];
    for (holder, before, action, answer, after) in cases {
        let case = format!("{action:?} of {before:?}");
        let mut script = Script::new();
        if let Some(holder) = holder {
            script.command(&["SET", KEY, &holder.value(), "PX", "10000"]);
        }
        if let Some(before) = before {
            script.command(&["SET", COUNTER, before, "PX", "777"]);
        }
        assert_eq!(script.ask(action), answer, "{case}");
        let left = holder.filter(|_| !matches!(answer, Ok(Reply::Released { .. })));
        let left = left.map(|holder| holder.value());
        assert_eq!(script.state(), (left.as_deref(), after), "{case}");
        if after.is_some() {
            assert_eq!(
                script.ttl(COUNTER),
                Resp::Integer(777),
                "{case}: a raise keeps the expiry"
            );
        }
    }
}

/// A key of another type is named as such (R5).
#[test]
fn other_data_under_the_locks_name_is_not_touched() {
    let seed = fencing(NOW, None);
    for action in [
        acquire(seed),
        plain_acquire(),
        heal(seed, NOW),
        Action::Raise { token: token(9) },
        Action::Extend { ttl: TTL },
        release(None),
        release(Some(9)),
    ] {
        let mut script = Script::new();
        script.command(&["RPUSH", KEY, "item"]);
        assert_eq!(script.ask(action), Err(Fault::WrongType), "{action:?}");
        assert_eq!(
            script.command(&["RPUSH", KEY, "item"]),
            Resp::Integer(2),
            "{action:?}"
        );
    }
}

/// E4: tokens may have been issued that this node no longer knows of.
#[test]
fn a_heal_starts_a_missing_counter_at_no_less_than_the_token() {
    // The seed, the token, the counter.
    for (seed, to, counter) in [
        (NOW, NOW - SECOND, NOW),
        (NOW, NOW + SECOND, NOW + SECOND),
        // The node's own time instead of a seed that is off.
        (NOW - 2 * SECOND, NOW - SECOND, NOW),
        (NOW + 2 * SECOND, NOW + 3 * SECOND, NOW + 3 * SECOND),
    ] {
        let mut script = Script::new();
        script.oldest_counter = OLDEST;
        assert_eq!(script.ask(heal(fencing(seed, None), to)), granted(counter));
        assert_eq!(
            script.state(),
            (Some(&*owner(1).value()), Some(&*counter.to_string()))
        );
    }
}

/// E4: a heal is no grant.
#[test]
fn a_heal_raises_a_counter_and_counts_nothing() {
    for (before, to, counter) in [
        (NOW, NOW - 5, NOW),
        (NOW, NOW, NOW),
        (NOW, NOW + 5, NOW + 5),
        // From before the last start: started anew.
        (OLDEST - 1, NOW - SECOND, NOW),
        (OLDEST, NOW - SECOND, NOW - SECOND),
    ] {
        let mut script = Script::new();
        script.oldest_counter = OLDEST;
        script.command(&["SET", COUNTER, &before.to_string()]);
        assert_eq!(script.ask(heal(fencing(NOW, None), to)), granted(counter));
        assert_eq!(script.state().1, Some(&*counter.to_string()));
    }
    let mut script = Script::held("5");
    let other = owner(2);
    let answer = script.ask_as(other, heal(fencing(NOW, None), 9));
    assert!(matches!(answer, Ok(Reply::Held { holder, .. }) if holder == Some(owner(1))));
    assert_eq!(script.state(), (Some(&*owner(1).value()), Some("5")));
}

/// F1, F5.
#[test]
fn counters_from_before_the_last_start_are_started_anew_if_that_is_forward() {
    // The counter before, the seed, what the grant counts.
    for (before, seed, counter) in [
        (None, NOW, NOW),
        (Some(5), NOW, NOW),
        (Some(OLDEST - 2), NOW, NOW),
        // Counted, it is not below.
        (Some(OLDEST - 1), NOW, OLDEST),
        (Some(NOW), NOW, NOW + 1),
        // A seed is believed within a second.
        (None, NOW - SECOND, NOW - SECOND),
        (None, NOW + SECOND, NOW + SECOND),
        (None, NOW - SECOND - 1, NOW),
        (None, NOW + SECOND + 1, NOW),
    ] {
        let mut script = Script::new();
        script.oldest_counter = OLDEST;
        if let Some(before) = before {
            script.command(&["SET", COUNTER, &before.to_string()]);
        }
        let case = format!("{before:?}, seed {seed}");
        assert_eq!(
            script.ask(acquire(fencing(seed, None))),
            granted(counter),
            "{case}"
        );
        assert_eq!(script.state().1, Some(&*counter.to_string()), "{case}");
    }
    // Never back, if the clock was.
    let mut script = Script::new();
    script.oldest_counter = NOW + 60 * SECOND;
    script.command(&["SET", COUNTER, &(NOW + 30 * SECOND).to_string()]);
    let answer = script.ask(acquire(fencing(NOW, None)));
    assert_eq!(answer, granted(NOW + 30 * SECOND + 1));
}

#[test]
fn a_counter_lives_for_its_retention_from_its_start() {
    for (retention, left) in [(None, -1), (Some(ms(60_000)), 60_000)] {
        for action in [
            acquire(fencing(NOW, retention)),
            heal(fencing(NOW, retention), NOW - 1),
        ] {
            let mut script = Script::new();
            script.oldest_counter = OLDEST;
            script.ask(action).unwrap();
            assert_eq!(script.ttl(COUNTER), Resp::Integer(left), "{action:?}");
            script.pass(20_000);
            // Counted again: not prolonged.
            script.ask(acquire(fencing(NOW, retention))).unwrap();
            let left = if left > 0 { left - 20_000 } else { left };
            assert_eq!(script.ttl(COUNTER), Resp::Integer(left), "{action:?}");
        }
    }
}

/// E1.
#[test]
fn an_extension_never_shortens() {
    for (left, ttl, after) in [
        (10_000, 4_000, 10_000),
        (10_000, 30_000, 30_000),
        (10_000, 10_000, 10_000),
    ] {
        let mut script = Script::held("5");
        let answer = script.ask(Action::Extend { ttl: ms(ttl) });
        assert_eq!(answer, Ok(Reply::Extended));
        assert_eq!(script.ttl(KEY), Resp::Integer(after), "{left}, extended by {ttl}");
    }
    // It neither revives nor touches what is not the owner's.
    let mut script = Script::held("5");
    let extend = Action::Extend { ttl: ms(30_000) };
    assert_eq!(script.ask_as(owner(2), extend), Ok(Reply::Foreign));
    assert_eq!(script.ttl(KEY), Resp::Integer(10_000));
    script.pass(10_001);
    assert_eq!(script.ask(extend), Ok(Reply::Missing));
    assert_eq!(script.state().0, None);
}

/// L1, W2: the owner's release deletes and is announced; that of others is neither.
#[test]
fn a_release_deletes_and_announces_what_is_the_owners() {
    for (owner_number, answer, announced) in [
        (1, Ok(Reply::Released { listeners: 3 }), 1),
        (2, Ok(Reply::Foreign), 0),
    ] {
        let mut script = Script::held("5");
        script.keyspace.subscribers = [(lock_script::channel(KEY), 3)].into();
        assert_eq!(script.ask_as(owner(owner_number), release(None)), answer);
        assert_eq!(script.keyspace.effects.published.len(), announced);
        assert_eq!(script.state().0.is_none(), announced == 1);
    }
    // Deleted it is, whether or not the user may say so.
    let mut script = Script::held("5");
    script.keyspace.trouble = Trouble::Forbidden("PUBLISH");
    script.keyspace.subscribers = [(lock_script::channel(KEY), 3)].into();
    assert_eq!(script.ask(release(None)), Ok(Reply::Released { listeners: 0 }));
    assert_eq!(script.state().0, None);
    // A lock that was never had is not announced.
    let mut script = Script::held("5");
    let quietly = Action::Release {
        counter: None,
        news: None,
    };
    assert_eq!(script.ask(quietly), Ok(Reply::Released { listeners: 0 }));
    assert!(script.keyspace.effects.published.is_empty());
}

/// A9: the last moment is the last at which something is done.
#[test]
fn what_comes_too_late_changes_nothing() {
    let seed = fencing(NOW, None);
    for action in [acquire(seed), heal(seed, NOW), heal_without_tokens()] {
        let mut script = Script::new();
        assert_eq!(script.ask_by(owner(1), action, NOW - 1), Err(Fault::TooLate));
        assert_eq!(script.state(), (None, None), "{action:?}");
        assert!(script.ask_by(owner(1), action, NOW).is_ok(), "{action:?}");
        assert!(script.state().0.is_some(), "{action:?}");
    }
    let mut script = Script::held("5");
    let extend = Action::Extend { ttl: ms(30_000) };
    assert_eq!(script.ask_by(owner(1), extend, NOW - 1), Err(Fault::TooLate));
    assert_eq!(script.ttl(KEY), Resp::Integer(10_000));
    assert_eq!(script.ask_by(owner(1), extend, NOW), Ok(Reply::Extended));
    // What deletes or raises is never late.
    assert!(
        script
            .ask_by(owner(1), Action::Raise { token: token(9) }, 0)
            .is_ok()
    );
    assert!(script.ask_by(owner(1), release(None), 0).is_ok());
}

fn heal_without_tokens() -> Action {
    Action::Heal {
        ttl: TTL,
        fencing: None,
    }
}

/// A7, W3.
#[test]
fn who_finds_the_key_taken_is_told_by_whom_and_for_how_long() {
    let seed = fencing(NOW, None);
    let mut script = Script::held(&NOW.to_string());
    script.keyspace.subscribers = [(lock_script::channel(KEY), 2)].into();
    script.pass(4_000);
    for action in [acquire(seed), plain_acquire()] {
        let held = Reply::Held {
            remaining: Some(ms(6_000)),
            holder: Some(owner(1)),
            listeners: 2,
        };
        assert_eq!(script.ask_as(owner(2), action), Ok(held), "{action:?}");
    }
    // The own token is as good as having set it, and lives no longer for that.
    assert_eq!(script.ask(acquire(seed)), granted(NOW + 1));
    assert_eq!(script.ttl(KEY), Resp::Integer(6_000));
    // A key without an expiry, and with somebody else's text.
    script.command(&["SET", KEY, "job"]);
    let held = Reply::Held {
        remaining: None,
        holder: None,
        listeners: 2,
    };
    assert_eq!(script.ask(acquire(seed)), Ok(held));
}

/// W1, T2: requests of one call are executed in order, and none spoils another.
#[test]
fn one_call_passes_the_lock_on() {
    let mut script = Script::held(&NOW.to_string());
    script.command(&["RPUSH", "list", "item"]);
    let mut other = script.exchange(owner(1), acquire(fencing(NOW, None)), NOW);
    other.request = lock_script::request("list", owner(1), other.request.action);
    let call = [
        script.exchange(owner(1), release(None), NOW),
        other,
        script.exchange(owner(2), acquire(fencing(NOW, None)), NOW),
    ];
    let (answers, time) = node_model::run(&mut script.keyspace, &call).unwrap();
    let released = Ok(Reply::Released { listeners: 0 });
    assert_eq!(answers, [released, Err(Fault::WrongType), granted(NOW + 1)]);
    assert_eq!(time, Some(NOW));
    assert_eq!(script.state().0, Some(&*owner(2).value()));
}
