//! Counters: how they are counted, raised and started (F1, F3, F4, F5, E4).

use super::*;

/// The smallest value that a counter of a memory that began at `OLDEST - LEAD` can have.
const OLDEST: i64 = NOW - 60 * SECOND;

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
        assert_eq!(script.state().0, None, "{what}: the script left the key");
    }
}

/// The key was set by an earlier request, so the client may know of the grant already.
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

/// A counter is raised if the key is the owner's, or by a release. It is never lowered (F3, F4).
#[test]
fn a_counter_is_raised_only_where_it_may_be() {
    let (ours, others) = (Some(owner(1)), Some(owner(2)));
    let raise = |to| Action::Raise { token: token(to) };
    let raised = |counter| {
        Ok(Reply::Raised {
            counter: token(counter),
        })
    };
    let released = || Ok(Reply::Released { notified: false });
    // The holder, the counter before, the request, the answer, the counter after.
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

/// Tokens may have been issued that this node has lost (E4).
#[test]
fn a_heal_starts_a_missing_counter_at_no_less_than_the_token() {
    // The seed, the token, the counter.
    for (seed, to, counter) in [
        (NOW, NOW - SECOND, NOW),
        (NOW, NOW + SECOND, NOW + SECOND),
        // The seed is more than a second off, so the node's own time is used.
        (NOW - 2 * SECOND, NOW - SECOND, NOW),
        (NOW + 2 * SECOND, NOW + 3 * SECOND, NOW + 3 * SECOND),
    ] {
        let mut script = Script::since(OLDEST - LEAD);
        assert_eq!(script.ask(heal(fencing(seed, None), to)), granted(counter));
        assert_eq!(
            script.state(),
            (Some(&*owner(1).value()), Some(&*counter.to_string()))
        );
    }
}

/// A heal is no grant (E4).
#[test]
fn a_heal_raises_a_counter_and_counts_nothing() {
    for (before, to, counter) in [
        (NOW, NOW - 5, NOW),
        (NOW, NOW, NOW),
        (NOW, NOW + 5, NOW + 5),
        // From before the memory began: started anew.
        (OLDEST - 1, NOW - SECOND, NOW),
        (OLDEST, NOW - SECOND, NOW - SECOND),
    ] {
        let mut script = Script::since(OLDEST - LEAD);
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

/// A counter that is smaller than any of this memory is from an earlier memory (F5).
#[test]
fn counters_from_before_the_memory_began_are_started_anew_if_that_is_forward() {
    // The counter before, the seed, the counter of the grant.
    for (before, seed, counter) in [
        (None, NOW, NOW),
        (Some(5), NOW, NOW),
        (Some(OLDEST - 2), NOW, NOW),
        // Once the grant is counted, this one is not too small.
        (Some(OLDEST - 1), NOW, OLDEST),
        (Some(NOW), NOW, NOW + 1),
        // A seed counts if it is within a second of the node's clock.
        (None, NOW - SECOND, NOW - SECOND),
        (None, NOW + SECOND, NOW + SECOND),
        (None, NOW - SECOND - 1, NOW),
        (None, NOW + SECOND + 1, NOW),
    ] {
        let mut script = Script::since(OLDEST - LEAD);
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
    // The node's clock was put back after the memory began.
    let mut script = Script::since(NOW + 60 * SECOND);
    script.command(&["SET", COUNTER, &(NOW + 30 * SECOND).to_string()]);
    let answer = script.ask(acquire(fencing(NOW, None)));
    assert_eq!(answer, granted(NOW + 60 * SECOND + LEAD));
}

#[test]
fn a_counter_lives_for_its_retention_from_its_start() {
    for (retention, left) in [(None, -1), (Some(ms(60_000)), 60_000)] {
        for action in [
            acquire(fencing(NOW, retention)),
            heal(fencing(NOW, retention), NOW - 1),
        ] {
            let mut script = Script::since(OLDEST - LEAD);
            script.ask(action).unwrap();
            assert_eq!(script.ttl(COUNTER), Resp::Integer(left), "{action:?}");
            script.pass(20_000);
            // Another grant does not prolong the counter's life.
            script.ask(acquire(fencing(NOW, retention))).unwrap();
            let left = if left > 0 { left - 20_000 } else { left };
            assert_eq!(script.ttl(COUNTER), Resp::Integer(left), "{action:?}");
        }
    }
}

/// A counter that was lost with the earlier memory may have been started a second ahead of the clock (F5).
#[test]
fn counters_start_a_second_ahead_of_a_memory_that_began_just_now() {
    for (before, seed) in [
        (None, NOW),
        (None, NOW + SECOND),
        (Some(5), NOW),
        (Some(NOW + SECOND - 1), NOW + SECOND),
    ] {
        for action in [
            acquire(fencing(seed, None)),
            heal(fencing(seed, None), NOW - SECOND),
        ] {
            let mut script = Script::since(NOW);
            if let Some(before) = before {
                script.command(&["SET", COUNTER, &before.to_string()]);
            }
            assert_eq!(
                script.ask(action),
                granted(NOW + LEAD),
                "{before:?}, seed {seed}: {action:?}"
            );
        }
    }
    // A counter of this memory continues.
    let mut script = Script::since(NOW);
    script.command(&["SET", COUNTER, &(NOW + LEAD).to_string()]);
    assert_eq!(script.ask(acquire(fencing(NOW, None))), granted(NOW + LEAD + 1));
}

/// If clients want different retentions for one counter, the longest applies (F5).
#[test]
fn a_longer_retention_lengthens_the_life_of_a_counter_and_a_shorter_one_never_shortens_it() {
    let (minute, hour) = (Some(ms(60_000)), Some(ms(3_600_000)));
    // The counter's start, the first retention, the one requested 20 s later, the life left after that (ms; -1 is unlimited).
    for (start, first, then, left) in [
        (NOW, minute, minute, 40_000),
        (NOW, minute, hour, 3_580_000),
        (NOW, minute, None, -1),
        (NOW, hour, minute, 3_580_000),
        (NOW, None, minute, -1),
        // Less than a second more: not worth a command.
        (NOW, minute, Some(ms(60_900)), 40_000),
        // A counter that is ahead of the clock does not show when it was started.
        (NOW + 60 * SECOND, minute, hour, 40_000),
        (NOW + 60 * SECOND, minute, None, -1),
    ] {
        let mut script = Script::since(OLDEST - LEAD);
        script.ask(acquire(fencing(NOW, first))).unwrap();
        script.ask(release(Some(start))).unwrap();
        script.pass(20_000);
        script.ask(acquire(fencing(NOW, then))).unwrap();
        let Resp::Integer(now_left) = script.ttl(COUNTER) else {
            panic!("no life")
        };
        // Grants counted since make the counter look younger by a microsecond each.
        assert!(
            (left..=left + 1).contains(&now_left),
            "{first:?}, then {then:?}: {now_left} left"
        );
    }
}
