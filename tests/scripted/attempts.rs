//! One attempt: its outcome, when that is certain, and the clean-up.

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{AcquireError, Drift, Lease, Redlock, ReleaseOutcome};
use tokio::time::Instant;

use crate::nodes::{Answer, Plan, ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

const TTL: Duration = ms(10_000);
const BUDGET: Duration = ms(1_000);

fn held() -> Answer {
    Ok(Reply::Held {
        remaining: Some(ms(500)),
        holder: None,
    })
}

/// Returns a fault after which the request was certainly not executed.
fn refused() -> Answer {
    Err(Fault::OutOfMemory)
}

fn lost() -> Answer {
    Err(Fault::ConnectionLost {
        reason: "reset".into(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Grant,
    Hold,
    Refuse,
    Lose,
    Never,
}

const ALL: [Behaviour; 5] = [
    Behaviour::Grant,
    Behaviour::Hold,
    Behaviour::Refuse,
    Behaviour::Lose,
    Behaviour::Never,
];

impl Behaviour {
    fn plan(self, action: Action, after: Duration) -> Plan {
        match self {
            Behaviour::Grant => Plan::Answer(after, Ok(yes(action))),
            Behaviour::Hold => Plan::Answer(after, held()),
            Behaviour::Refuse => Plan::Answer(after, refused()),
            Behaviour::Lose => Plan::Answer(after, lost()),
            Behaviour::Never => Plan::Never,
        }
    }

    fn may_hold(self) -> bool {
        matches!(self, Behaviour::Grant | Behaviour::Lose | Behaviour::Never)
    }
}

fn worlds(nodes: usize) -> impl Iterator<Item = Vec<Behaviour>> {
    (0..ALL.len().pow(nodes as u32)).map(move |world| {
        (0..nodes)
            .map(|node| ALL[world / ALL.len().pow(node as u32) % ALL.len()])
            .collect()
    })
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Won,
    Held,
    NoQuorum,
}

/// Returns the expected end, its time, and the nodes heard by then. Answers come in `order`, one each millisecond, until the
/// others cannot matter. A lost attempt is "held" only if a quorum answered.
fn expected(world: &[Behaviour], order: &[usize]) -> (End, Duration, Vec<usize>) {
    let quorum = world.len() / 2 + 1;
    let (mut yes, mut no, mut faults) = (0, 0, 0);
    let mut heard = Vec::new();
    for (moment, node) in order.iter().enumerate() {
        match world[*node] {
            Behaviour::Grant => yes += 1,
            Behaviour::Hold => no += 1,
            Behaviour::Refuse | Behaviour::Lose => faults += 1,
            Behaviour::Never => continue,
        }
        heard.push(*node);
        let at = ms(moment as u64 + 1);
        if yes >= quorum {
            return (End::Won, at, heard);
        }
        if yes + world.len() - heard.len() < quorum {
            if yes + no >= quorum {
                return (End::Held, at, heard);
            }
            if world.len() - faults < quorum {
                return (End::NoQuorum, at, heard);
            }
        }
    }
    // At the end of the budget, silent nodes have failed.
    let end = if yes + no >= quorum {
        End::Held
    } else {
        End::NoQuorum
    };
    (end, BUDGET, heard)
}

fn end_of(outcome: &Result<Lease, AcquireError>) -> End {
    match outcome {
        Ok(_) => End::Won,
        Err(AcquireError::Held { .. }) => End::Held,
        Err(AcquireError::NoQuorum { .. }) => End::NoQuorum,
        Err(other) => panic!("{other}"),
    }
}

async fn attempt(redlock: &Redlock) -> Result<Lease, AcquireError> {
    let request = redlock.lock("job").ttl(TTL).node_budget(BUDGET);
    request.watchdog(false).try_acquire().await
}

/// Returns nodes that answer in `order`, one each millisecond, and confirm a release at the third try.
fn world_of(world: &[Behaviour], order: &[usize]) -> Vec<Arc<ScriptedNode>> {
    (0..world.len())
        .map(|node| {
            let does = world[node];
            let place = order.iter().position(|other| *other == node).unwrap();
            let mut releases = 0;
            ScriptedNode::new(node, move |action| match action {
                Action::Acquire { .. } | Action::Raise { .. } => does.plan(action, ms(place as u64 + 1)),
                Action::Extend { .. } | Action::Heal { .. } | Action::Mark { .. } | Action::Announce(_) => {
                    unreachable!("no lease is held for long, and no process waits")
                }
                Action::Release { .. } => {
                    releases += 1;
                    match releases {
                        1 => Plan::Never,
                        2 => at_once(lost()),
                        _ => at_once(Ok(Reply::Released { notified: false })),
                    }
                }
            })
        })
        .collect()
}

async fn check(world: &[Behaviour], order: &[usize]) {
    let nodes = world_of(world, order);
    let redlock = redlock(&nodes, Redlock::builder());
    let started = Instant::now();
    let outcome = attempt(&redlock).await;
    let (end, after, heard) = expected(world, order);
    let seen = (end_of(&outcome), started.elapsed());
    assert_eq!(seen, (end, after), "{world:?} in order {order:?}");
    drop(outcome);
    redlock.shutdown().await;
    assert!(
        started.elapsed() < TTL,
        "{world:?}: the clean-up waited for the expiry"
    );
    for (number, node) in nodes.iter().enumerate() {
        let calls = node.calls();
        assert!(calls[0].is_acquire() && calls[1..].iter().all(|call| call.is_release()));
        assert!(calls.iter().all(|call| call.owner == calls[0].owner));
        // A node that was not heard before the verdict may have the key, whatever it answers later.
        let must = !heard.contains(&number) || world[number].may_hold();
        let releases = if must { 3 } else { 0 };
        assert_eq!(
            calls.len() - 1,
            releases,
            "{world:?} in order {order:?}: node {number}"
        );
    }
}

fn orders(nodes: usize) -> Vec<Vec<usize>> {
    if nodes == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in orders(nodes - 1) {
        for place in 0..=shorter.len() {
            let mut order = shorter.clone();
            order.insert(place, nodes - 1);
            all.push(order);
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn every_world_of_up_to_three_nodes_in_every_order_is_settled_at_once_and_cleaned_up() {
    for nodes in 1..=3 {
        for world in worlds(nodes) {
            for order in orders(nodes) {
                check(&world, &order).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_world_of_four_and_five_nodes_is_settled_at_once_and_cleaned_up() {
    for nodes in 4..=5 {
        let orders = orders(nodes);
        for (number, world) in worlds(nodes).enumerate() {
            // One order for each world; all orders occur.
            check(&world, &orders[number % orders.len()]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_there_at_once_take_no_time_and_a_hung_node_none_either() {
    for nodes in 1..=5 {
        let quorum = nodes / 2 + 1;
        for world in worlds(nodes) {
            let plan = world.clone();
            let nodes = scripted_nodes(nodes, move |node, action| match action {
                Action::Acquire { .. } => plan[node].plan(action, Duration::ZERO),
                other => at_once(Ok(yes(other))),
            });
            let redlock = redlock(&nodes, Redlock::builder());
            let started = Instant::now();
            let outcome = attempt(&redlock).await;
            let count = |does| world.iter().filter(|other| **other == does).count();
            let (granted, silent) = (count(Behaviour::Grant), count(Behaviour::Never));
            assert_eq!(outcome.is_ok(), granted >= quorum, "{world:?}");
            // A silent node costs time only if it could decide: on the lock, or between "held" and "no quorum".
            let answered = granted + count(Behaviour::Hold);
            let failed = world.len() - answered - silent;
            let lost_for_sure = granted + silent < quorum;
            let known = answered >= quorum || world.len() - failed < quorum;
            let at_once = granted >= quorum || (lost_for_sure && known);
            let expected = if at_once { Duration::ZERO } else { BUDGET };
            assert_eq!(started.elapsed(), expected, "{world:?}");
            let end = match granted >= quorum {
                true => End::Won,
                false if answered >= quorum => End::Held,
                false => End::NoQuorum,
            };
            assert_eq!(end_of(&outcome), end, "{world:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_never_confirm_are_asked_until_the_key_has_expired_and_no_longer() {
    let nodes = scripted_nodes(3, |_, action| match action {
        Action::Release { .. } => at_once(lost()),
        other => at_once(Ok(yes(other))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let started = Instant::now();
    drop(attempt(&redlock).await.unwrap());
    redlock.shutdown().await;
    // The key is set at most a budget after the acquire was sent (A9).
    assert_eq!(started.elapsed(), TTL + BUDGET);
    for node in nodes {
        let calls = node.calls();
        assert!(calls.len() > 10, "only {} deletions", calls.len() - 1);
        assert!(calls.len() < 100, "{} deletions: too many", calls.len() - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn granted_too_late_is_no_lease_and_is_cleaned_up() {
    let ttl = ms(100);
    // Less 1 % and 2 ms of drift, 97 ms are left.
    for (after, valid) in [(96, true), (97, false), (98, false)] {
        let nodes = scripted_nodes(3, move |_, action| match action {
            Action::Acquire { .. } => Plan::Answer(ms(after), Ok(yes(action))),
            other => at_once(Ok(yes(other))),
        });
        let redlock = redlock(&nodes, Redlock::builder());
        let started = Instant::now();
        let request = redlock.lock("job").ttl(ttl).node_budget(ms(99)).watchdog(false);
        match request.try_acquire().await {
            Ok(lease) => {
                assert!(valid && lease.is_held());
                assert_eq!(lease.deadline(), (started + ms(97)).into_std());
            }
            Err(AcquireError::TooLate { votes, .. }) => {
                assert!(!valid && votes.yes() >= 2);
            }
            Err(other) => panic!("{other}"),
        }
        redlock.shutdown().await;
        for node in nodes {
            assert!(
                node.calls().iter().any(|call| call.is_release()),
                "after {after} ms"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_send_and_takes_the_drift_off() {
    for (drift, believable) in [
        (Drift::default(), ms(10_000 - 102)),
        (Drift::from_ppm(0, Duration::ZERO), ms(10_000)),
        (Drift::from_ppm(500_000, ms(1)), ms(4_999)),
    ] {
        let nodes = scripted_nodes(5, |node, action| {
            Plan::Answer(ms(100 + 100 * node as u64), Ok(yes(action)))
        });
        let redlock = redlock(&nodes, Redlock::builder().drift(drift));
        let started = Instant::now();
        let lease = attempt(&redlock).await.unwrap();
        assert_eq!(started.elapsed(), ms(300), "the third of five");
        assert_eq!(lease.deadline(), (started + believable).into_std());
        assert_eq!(lease.votes().outstanding(), 2);
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_sleeps_after_the_last_attempt() {
    for limit in [0, 1, 10, 25, 333] {
        let nodes = scripted_nodes(3, |_, action| match action {
            Action::Acquire { .. } => at_once(held()),
            other => at_once(Ok(yes(other))),
        });
        let redlock = redlock(&nodes, Redlock::builder());
        let started = Instant::now();
        let request = redlock.lock("job").within(ms(limit));
        let error = request.acquire().await.unwrap_err();
        let AcquireError::Held { attempts, waited, .. } = error else {
            panic!("{error}")
        };
        let calls = nodes[0].calls();
        let acquires: Vec<_> = calls.iter().filter(|call| call.is_acquire()).collect();
        assert_eq!(acquires.len(), attempts as usize);
        assert_eq!((waited, started.elapsed()), (ms(limit), ms(limit)));
        assert_eq!(acquires.last().unwrap().at, started + ms(limit));
        // Between attempts lie at least 10 ms, except before the last one (W4).
        for pair in acquires.windows(2).rev().skip(1) {
            assert!(pair[1].at - pair[0].at >= ms(10));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_token_of_its_own() {
    let nodes = scripted_nodes(1, |_, action| match action {
        Action::Acquire { .. } => at_once(held()),
        other => at_once(Ok(yes(other))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let _ = redlock.lock("job").within(ms(5_000)).acquire().await;
    let calls = nodes[0].calls();
    let tokens: std::collections::HashSet<_> = calls.iter().map(|call| call.owner).collect();
    assert!(calls.len() > 10 && tokens.len() == calls.len());
}

#[tokio::test(start_paused = true)]
async fn for_ever_sits_out_a_holder_but_not_an_outage() {
    let nodes = scripted_nodes(3, |_, _| {
        at_once(Err(Fault::Disconnected {
            reason: "gone".into(),
        }))
    });
    let outage = redlock(&nodes, Redlock::builder().guard_window(ms(60_000)));
    for (ttl, patience) in [(ms(1_000), ms(10_000)), (ms(60_000), ms(60_000))] {
        let started = Instant::now();
        let error = outage.lock("job").ttl(ttl).forever().acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
        assert!(started.elapsed() >= patience && started.elapsed() < patience + ms(1_000));
    }

    // The holder stays for an hour. With two of five nodes down, a single "held" decides an attempt.
    let until = Instant::now() + ms(3_600_000);
    let nodes = scripted_nodes(5, move |node, action| match action {
        Action::Acquire { .. } if node >= 3 => at_once(Err(Fault::Disconnected {
            reason: "gone".into(),
        })),
        Action::Acquire { .. } if Instant::now() < until => at_once(held()),
        other => at_once(Ok(yes(other))),
    });
    let busy = redlock(&nodes, Redlock::builder());
    let lease = busy.lock("job").forever().acquire().await.unwrap();
    assert!(Instant::now() >= until);
    drop(lease);
}

/// The nodes answer, and say when they vote again.
#[tokio::test(start_paused = true)]
async fn waiting_for_ever_sits_out_the_restart_guard() {
    let restarted = Instant::now();
    let votes_from = ms(45_000);
    let nodes = scripted_nodes(3, move |_, action| {
        let ago = restarted.elapsed();
        at_once(match action {
            Action::Acquire { .. } if ago < votes_from => Err(Fault::Restarted {
                ago,
                remaining: votes_from - ago,
            }),
            action => Ok(yes(action)),
        })
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = redlock.lock("job").ttl(TTL).forever().acquire().await;
    assert!(lease.is_ok(), "{lease:?}");
}
