//! Keys: how they are set, kept, extended and deleted (A7, A9, E1, L1, W2).

use super::*;

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
            _ => assert_eq!(released, Ok(Reply::Released { notified: false })),
        }
        assert_eq!(script.state().1, Some("5"));
    }
}

/// The fault names the wrong type (R5).
#[test]
fn other_data_under_the_locks_name_is_not_touched() {
    let seed = fencing(NOW, None);
    for action in [
        acquire(seed),
        plain_acquire(),
        heal(seed, NOW),
        Action::Raise { token: token(9) },
        extend(TTL),
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

/// An extension counts from now, and only ever prolongs (E1).
#[test]
fn an_extension_never_shortens() {
    for (left, ttl, after) in [
        (10_000, 4_000, 10_000),
        (10_000, 30_000, 30_000),
        (10_000, 10_000, 10_000),
    ] {
        let mut script = Script::held("5");
        let answer = script.ask(extend(ms(ttl)));
        assert_eq!(answer, Ok(Reply::Extended));
        assert_eq!(script.ttl(KEY), Resp::Integer(after), "{left}, extended by {ttl}");
    }
    // An extension neither revives a key nor touches another owner's.
    let mut script = Script::held("5");
    let extend = extend(ms(30_000));
    assert_eq!(script.ask_as(owner(2), extend), Ok(Reply::Foreign));
    assert_eq!(script.ttl(KEY), Resp::Integer(10_000));
    script.pass(10_001);
    assert_eq!(script.ask(extend), Ok(Reply::Missing));
    assert_eq!(script.state().0, None);
}

/// Only the owner's release deletes the key and is announced (L1, W2).
#[test]
fn a_release_deletes_and_announces_what_is_the_owners() {
    for (owner_number, answer, announced) in [
        (1, Ok(Reply::Released { notified: true }), 1),
        (2, Ok(Reply::Foreign), 0),
    ] {
        let mut script = Script::held("5");
        script.keyspace.subscribers = [(lock_script::channel(KEY), 3)].into();
        assert_eq!(script.ask_as(owner(owner_number), release(None)), answer);
        assert_eq!(script.keyspace.effects.published.len(), announced);
        assert_eq!(script.state().0.is_none(), announced == 1);
    }
    // Without the right to publish, the key is deleted all the same.
    let mut script = Script::held("5");
    script.keyspace.trouble = Trouble::Forbidden("PUBLISH");
    script.keyspace.subscribers = [(lock_script::channel(KEY), 3)].into();
    assert_eq!(script.ask(release(None)), Ok(Reply::Released { notified: false }));
    assert_eq!(script.state().0, None);
    // The release of a lost attempt is not announced.
    let mut script = Script::held("5");
    let quietly = Action::Release {
        counter: None,
        notice: None,
        keep_until: None,
    };
    assert_eq!(script.ask(quietly), Ok(Reply::Released { notified: false }));
    assert!(script.keyspace.effects.published.is_empty());
}

/// A key that is kept expires earlier, and never later (L4).
#[test]
fn a_release_with_a_minimum_only_shortens() {
    let keep = |millis| Action::Release {
        counter: Some(token(7)),
        notice: Some(ReleaseNotice {
            kind: ReleaseKind::Abandoned,
            turn: None,
        }),
        keep_until: Some(tokio::time::Instant::now() + ms(millis)),
    };
    // A minute is long enough for a slow machine to encode the request in.
    for (left, most) in [(3_600_000, 60_001), (10_000, 10_000)] {
        let mut script = Script::held("5");
        script.command(&["PEXPIRE", KEY, &left.to_string()]);
        script.keyspace.subscribers = [(lock_script::channel(KEY), 1)].into();
        assert_eq!(script.ask(keep(60_000)), Ok(Reply::Released { notified: true }));
        let Resp::Integer(after) = script.ttl(KEY) else {
            panic!("no time")
        };
        assert!(after <= most && after > most - 10_000, "{left}: {after}");
        let (holder, counter) = script.state();
        assert_eq!((holder, counter), (Some(&*owner(1).value()), Some("7")));
        let announced = &script.keyspace.effects.published[0].1;
        assert_eq!(**announced, *format!("g{}", owner(1).value()).as_bytes());
    }
    // Not for another owner, and not after the minimum: the key is deleted then.
    let mut script = Script::held("5");
    assert_eq!(script.ask_as(owner(2), keep(1_000)), Ok(Reply::Foreign));
    assert_eq!(script.ttl(KEY), Resp::Integer(10_000));
    assert_eq!(script.ask(keep(0)), Ok(Reply::Released { notified: false }));
    assert_eq!(script.state().0, None);
    // A key that somebody has made endless ends.
    let mut script = Script::held("5");
    script.command(&["PERSIST", KEY]);
    assert_eq!(script.ask(keep(60_000)), Ok(Reply::Released { notified: false }));
    assert!(matches!(script.ttl(KEY), Resp::Integer(1..=60_001)));
}

/// Only the owner sets and reads the mark (L5). A later mark stays, unless it is too late to be right.
#[test]
fn a_mark_is_the_owners_and_never_falls() {
    const HOUR: u64 = 3_600_000;
    const END: u64 = 497_222 * HOUR;
    let mark = |end_ms, length_ms| DoneMark { end_ms, length_ms };
    let set = |end_ms, length_ms| Action::Mark {
        set: Some(SetMark {
            mark: mark(end_ms, length_ms),
            ttl: TTL,
            latest_plausible_ms: END + 2 * HOUR,
        }),
    };
    let read = Action::Mark { set: None };
    let done = |end_ms, length_ms| {
        Ok(Reply::Mark {
            mark: Some(mark(end_ms, length_ms)),
        })
    };
    let mut script = Script::held("5");
    assert_eq!(script.ask(read), Ok(Reply::Mark { mark: None }));
    for (action, answer) in [
        (set(END, HOUR), done(END, HOUR)),
        (read, done(END, HOUR)),
        (set(END - HOUR, HOUR), done(END, HOUR)),
        (set(END + 2 * HOUR, HOUR), done(END + 2 * HOUR, HOUR)),
        (set(END, HOUR), done(END + 2 * HOUR, HOUR)),
        (set(END + 3 * HOUR, HOUR), done(END + 3 * HOUR, HOUR)),
        (set(END, HOUR), done(END, HOUR)),
        // Another length replaces it.
        (set(END - HOUR, HOUR / 2), done(END - HOUR, HOUR / 2)),
    ] {
        assert_eq!(script.ask(action), answer, "{action:?}");
    }
    assert_eq!(script.ttl("lock#done"), Resp::Integer(10_000));
    for action in [set(END, HOUR), read] {
        assert_eq!(script.ask_as(owner(2), action), Ok(Reply::Foreign));
    }
    let text = format!("{}:{}", END - HOUR, HOUR / 2);
    assert_eq!(script.keyspace.string("lock#done"), Some(&*text));
    // Data that is no mark.
    for data in ["x", "-7:9", "0:9", "5:0", "9", "9999999999999999:1", "inf:1"] {
        script.command(&["SET", "lock#done", data]);
        assert_eq!(script.ask(read), Ok(Reply::Mark { mark: None }), "{data}");
    }
    script.command(&["DEL", "lock#done"]);
    script.command(&["RPUSH", "lock#done", "x"]);
    let other = script.ask(read).unwrap_err().to_string();
    assert!(
        other.contains("lock#done holds other data than a mark"),
        "{other}"
    );
    script.command(&["DEL", "lock#done"]);
    script.keyspace.trouble = Trouble::Forbidden("SET");
    let forbidden = script.ask(set(END, HOUR));
    assert!(
        matches!(forbidden, Err(Fault::NoPermission { .. })),
        "{forbidden:?}"
    );
    script.keyspace.trouble = Trouble::None;
    script.command(&["DEL", KEY]);
    for action in [set(END, HOUR), read] {
        assert_eq!(script.ask(action), Ok(Reply::Missing));
    }
}

/// At the last moment itself, a request still acts (A9).
#[test]
fn a_request_that_comes_too_late_changes_nothing() {
    let seed = fencing(NOW, None);
    for action in [acquire(seed), heal(seed, NOW), heal_without_tokens()] {
        let mut script = Script::new();
        assert_eq!(script.ask_by(owner(1), action, NOW - 1), Err(Fault::TooLate));
        assert_eq!(script.state(), (None, None), "{action:?}");
        assert!(script.ask_by(owner(1), action, NOW).is_ok(), "{action:?}");
        assert!(script.state().0.is_some(), "{action:?}");
    }
    let mut script = Script::held("5");
    let extend = extend(ms(30_000));
    assert_eq!(script.ask_by(owner(1), extend, NOW - 1), Err(Fault::TooLate));
    assert_eq!(script.ttl(KEY), Resp::Integer(10_000));
    assert_eq!(script.ask_by(owner(1), extend, NOW), Ok(Reply::Extended));
    // Releases and raises are never too late.
    assert!(
        script
            .ask_by(owner(1), Action::Raise { token: token(9) }, 0)
            .is_ok()
    );
    assert!(script.ask_by(owner(1), release(None), 0).is_ok());
}

/// A refusal names the token that holds the key (W3). The own token counts as a grant (A7).
#[test]
fn a_refusal_names_the_holder_and_the_remaining_time() {
    let seed = fencing(NOW, None);
    let mut script = Script::held(&NOW.to_string());
    script.pass(4_000);
    for action in [acquire(seed), plain_acquire()] {
        let held = Reply::Held {
            remaining: Some(ms(6_000)),
            holder: Some(owner(1)),
        };
        assert_eq!(script.ask_as(owner(2), action), Ok(held), "{action:?}");
    }
    // The own token: the key's life does not change.
    assert_eq!(script.ask(acquire(seed)), granted(NOW + 1));
    assert_eq!(script.ttl(KEY), Resp::Integer(6_000));
    // A key without an expiry, whose value is no owner token.
    script.command(&["SET", KEY, "job"]);
    let held = Reply::Held {
        remaining: None,
        holder: None,
    };
    assert_eq!(script.ask(acquire(seed)), Ok(held));
}

/// Requests of one call are executed in order. A failed one does not affect the others (W1, T2).
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
    let (answers, time) = node_model::run(&mut script.keyspace, &script.memory, &call).unwrap();
    let released = Ok(Reply::Released { notified: false });
    assert_eq!(answers, [released, Err(Fault::WrongType), granted(NOW + 1)]);
    assert_eq!(time, Some(NOW));
    assert_eq!(script.state().0, Some(&*owner(2).value()));
}
