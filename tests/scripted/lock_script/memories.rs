//! Nodes with another memory than the client expects, or with one that has just begun (M1, M2, M9).

use super::*;

const GUARD: Duration = ms(30_000);

fn guarded(fencing: Option<Fencing>) -> Action {
    Action::Acquire {
        ttl: TTL,
        fencing,
        guard: Some(GUARD),
    }
}

fn restarted(ago: u64, remaining: u64) -> Answer {
    Err(Fault::Restarted {
        ago: ms(ago),
        remaining: ms(remaining),
    })
}

/// With another record, or none, a node only executes deletions (M1).
#[test]
fn another_memory_releases_and_does_nothing_else() {
    let seed = fencing(NOW, None);
    let other = lock_script::record(2, 0);
    // A record that ends after its id.
    let longer = format!("{}0", &other[..34]);
    for record in [None, Some(other), Some(longer), Some(String::new())] {
        let changed = |mut script: Script| {
            match &record {
                Some(record) => script.command(&["SET", &lock_script::record_key(), record]),
                None => script.command(&["DEL", &lock_script::record_key()]),
            };
            script
        };
        for action in [
            acquire(seed),
            plain_acquire(),
            guarded(None),
            heal(seed, 9),
            heal_without_tokens(),
        ] {
            let mut script = changed(Script::new());
            assert_eq!(
                script.ask(action),
                Err(Fault::OtherMemory),
                "{action:?} beside {record:?}"
            );
            assert_eq!(script.state(), (None, None), "{action:?} beside {record:?}");
        }
        for action in [
            acquire(seed),
            plain_acquire(),
            heal(seed, 9),
            Action::Raise { token: token(9) },
            extend(ms(30_000)),
            Action::Extend {
                ttl: ms(30_000),
                guarded: false,
            },
        ] {
            let mut script = changed(Script::held("5"));
            assert_eq!(
                script.ask(action),
                Err(Fault::OtherMemory),
                "{action:?} beside {record:?}"
            );
            assert_eq!(
                script.state(),
                (Some(&*owner(1).value()), Some("5")),
                "{action:?} beside {record:?}"
            );
            assert_eq!(
                script.ttl(KEY),
                Resp::Integer(10_000),
                "{action:?} beside {record:?}"
            );
        }
        let mut script = changed(Script::held("5"));
        let released = Ok(Reply::Released { notified: false });
        assert_eq!(script.ask(release(Some(9))), released, "{record:?}");
        assert_eq!(script.state(), (None, Some("9")), "{record:?}");
    }
}

/// In one call, the release succeeds and the acquire after it fails.
#[test]
fn a_lock_is_not_passed_on_by_another_memory() {
    let mut script = Script::held("5");
    script.command(&["SET", &lock_script::record_key(), &lock_script::record(2, 0)]);
    let call = [
        script.exchange(owner(1), release(None), NOW),
        script.exchange(owner(2), acquire(fencing(NOW, None)), NOW),
    ];
    let (answers, _) = node_model::run(&mut script.keyspace, &script.memory, &call).unwrap();
    let released = Ok(Reply::Released { notified: false });
    assert_eq!(answers, [released, Err(Fault::OtherMemory)]);
    assert_eq!(script.state().0, None);
}

/// A new memory gives locks after the guard window and the look period, and confirms extensions after the look period (M2).
#[test]
fn a_memory_that_has_just_begun_counts_for_nothing_yet() {
    let seed = fencing(NOW, None);
    for (age, remaining) in [(0, 40_000), (5_000, 35_000), (39_999, 1)] {
        for action in [guarded(Some(seed)), guarded(None)] {
            let mut script = Script::since(NOW - age * MILLISECOND);
            let answer = script.ask(action);
            assert_eq!(answer, restarted(age as u64, remaining), "{action:?} after {age}");
            assert_eq!(script.state(), (None, None), "{action:?} after {age}");
        }
    }
    for (age, remaining) in [(0, 10_000), (9_999, 1)] {
        let mut script = Script::since(NOW - age * MILLISECOND);
        // It sets keys for clients without a guard, and for heals.
        assert!(script.ask(acquire(seed)).is_ok());
        assert!(script.ask(heal(seed, NOW)).is_ok());
        // It extends the key, but does not confirm that.
        let answer = script.ask(extend(ms(30_000)));
        assert_eq!(answer, restarted(age as u64, remaining), "after {age}");
        assert_eq!(script.ttl(KEY), Resp::Integer(30_000), "after {age}");
        let unguarded = Action::Extend {
            ttl: TTL,
            guarded: false,
        };
        assert_eq!(script.ask(unguarded), Ok(Reply::Extended), "after {age}");
        assert_eq!(script.ask_as(owner(2), extend(TTL)), Ok(Reply::Foreign));
    }
    let mut script = Script::since(NOW - 40_000 * MILLISECOND);
    assert!(script.ask(guarded(Some(seed))).is_ok());
    let mut script = Script::since(NOW - 10_000 * MILLISECOND);
    script.command(&["SET", KEY, &owner(1).value(), "PX", "10000"]);
    assert_eq!(script.ask(extend(TTL)), Ok(Reply::Extended));
}

/// A restart with all data keeps the memory (M9).
#[test]
fn a_memory_that_goes_on_in_another_process_gives_no_locks_for_a_look_period() {
    let never = format!(" {:016} ", 0);
    let resumed = format!(" {:016} ", NOW - 4_000 * MILLISECOND);
    let since = NOW - 100_000 * MILLISECOND;
    let record = lock_script::record(1, since).replacen(&never, &resumed, 1);
    let mut script = Script::with_record(&record);
    let seed = Some(fencing(NOW, None));
    assert_eq!(script.ask(guarded(seed)), restarted(4_000, 6_000));
    script.command(&["SET", KEY, &owner(1).value(), "PX", "10000"]);
    assert_eq!(script.ask(extend(TTL)), Ok(Reply::Extended));
    script.pass(6_000);
    assert!(script.ask(guarded(seed)).is_ok());
}
