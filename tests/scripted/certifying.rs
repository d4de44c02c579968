//! How grants become a fencing token (F2-F4, F6).

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{AcquireError, FencingToken, Lease, Redlock, ReleaseOutcome};
use tokio::time::{Instant, sleep};

use crate::nodes::{Answer, Plan, ScriptedNode, Server, at_once, ms, redlock, scripted_nodes, yes};

const TTL: Duration = ms(1_000);
const BUDGET: Duration = ms(100);

fn token(value: u64) -> FencingToken {
    FencingToken::new(value).unwrap()
}

fn granted(counter: u64) -> Answer {
    Ok(Reply::Granted {
        counter: Some(token(counter)),
    })
}

fn raised(counter: u64) -> Answer {
    Ok(Reply::Raised {
        counter: token(counter),
    })
}

fn gone() -> Answer {
    Err(Fault::ConnectionLost { reason: "cut".into() })
}

/// Returns nodes that answer an acquire with `grants`, by node number, and a raise with `raise`.
fn counting(
    grants: Vec<Plan>,
    raise: impl FnMut(usize, FencingToken) -> Plan + Clone + Send + 'static,
) -> Vec<Arc<ScriptedNode>> {
    let mut raise = raise;
    scripted_nodes(grants.len(), move |node, action| match action {
        Action::Acquire { .. } => grants[node].clone(),
        Action::Raise { token } => raise(node, token),
        other => at_once(Ok(yes(other))),
    })
}

async fn attempt(manager: &Redlock) -> Result<Lease, AcquireError> {
    let request = manager.lock("job").ttl(TTL).node_budget(BUDGET);
    request.watchdog(false).try_acquire().await
}

fn raises(nodes: &[Arc<ScriptedNode>]) -> Vec<Vec<u64>> {
    let of = |node: &Arc<ScriptedNode>| node.calls().iter().filter_map(|call| call.raise()).collect();
    nodes.iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn counters_that_agree_take_a_single_message_a_node() {
    for nodes in 1..=5 {
        let nodes = counting(vec![at_once(granted(41)); nodes], |_, _| panic!("raised"));
        let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
        assert_eq!(lease.fencing_token(), Some(token(41)));
        assert!(nodes.iter().all(|node| node.calls().len() == 1));
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_behind_are_raised_before_the_lock_is_won() {
    let plans = vec![
        at_once(granted(7)),
        at_once(granted(3)),
        at_once(granted(5)),
        Plan::Never,
        Plan::Never,
    ];
    let nodes = counting(plans, |_, token| Plan::Answer(ms(20), raised(token.get())));
    let started = Instant::now();
    let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(7)));
    assert_eq!(started.elapsed(), ms(20), "one more round trip");
    assert_eq!(raises(&nodes), [vec![], vec![7], vec![7], vec![], vec![]]);
    // The deadline counts from before the first round (A5).
    assert_eq!(lease.deadline(), (started + ms(988)).into_std());
}

#[tokio::test(start_paused = true)]
async fn a_straggler_that_agrees_spares_the_wait_for_a_hung_one() {
    let plans = vec![
        at_once(granted(7)),
        at_once(granted(3)),
        Plan::Answer(ms(30), granted(7)),
    ];
    let nodes = counting(plans, |_, _| Plan::Never);
    let started = Instant::now();
    let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(7)));
    assert_eq!(started.elapsed(), ms(30));
}

#[tokio::test(start_paused = true)]
async fn a_straggler_that_is_ahead_is_counted_only_where_it_is_needed() {
    // Whether the node that is behind can be raised.
    for (obeys, issued) in [(true, 7), (false, 9)] {
        let plans = vec![
            at_once(granted(7)),
            at_once(granted(3)),
            Plan::Answer(ms(10), granted(9)),
        ];
        let nodes = counting(plans, move |node, token| match (node, obeys) {
            (1, false) => Plan::Answer(ms(20), gone()),
            _ => Plan::Answer(ms(20), raised(token.get())),
        });
        let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
        assert_eq!(lease.fencing_token(), Some(token(issued)));
        let first = if obeys { vec![] } else { vec![9] };
        assert_eq!(raises(&nodes), [first, vec![7], vec![]]);
    }
}

/// A node that does not answer within its budget does not count. The token grows if that makes a quorum (F2).
#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_a_raise_does_not_count() {
    let plans = vec![
        at_once(granted(7)),
        at_once(granted(3)),
        Plan::Answer(ms(10), granted(9)),
    ];
    let nodes = counting(plans, |node, token| match node {
        1 => Plan::Never,
        _ => Plan::Answer(ms(5), raised(token.get())),
    });
    let started = Instant::now();
    let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(9)));
    assert_eq!(started.elapsed(), BUDGET + ms(5));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_certified_gives_no_lease_and_is_cleaned_up() {
    let too_low = Ok(Reply::Raised { counter: token(6) });
    for (answer, held) in [
        (at_once(Ok(Reply::Missing)), true),
        (at_once(Ok(Reply::Foreign)), true),
        (at_once(gone()), false),
        (at_once(too_low), false),
        (Plan::Never, false),
    ] {
        let plans = vec![at_once(granted(7)), at_once(granted(3)), at_once(gone())];
        let plan = answer.clone();
        let nodes = counting(plans, move |_, _| plan.clone());
        let manager = redlock(&nodes, Redlock::builder());
        let error = attempt(&manager).await.unwrap_err();
        match &error {
            AcquireError::Held { .. } => assert!(held, "{answer:?}: {error}"),
            AcquireError::NoQuorum { .. } => assert!(!held, "{answer:?}: {error}"),
            other => panic!("{other}"),
        }
        let votes = error.votes().unwrap();
        let second = votes.iter().nth(1).unwrap().answer.clone().unwrap();
        assert!(
            !matches!(second, Ok(Reply::Granted { .. })),
            "not the node's last answer: {votes}"
        );
        manager.shutdown().await;
        for node in &nodes {
            assert!(node.calls().last().unwrap().is_release());
        }
    }
}

/// The deadline holds for the second round, too (A5).
#[tokio::test(start_paused = true)]
async fn a_token_that_comes_too_late_is_none() {
    let budget = ms(900);
    for (after, valid) in [(600, true), (900, false)] {
        let plans = vec![
            Plan::Answer(ms(300), granted(7)),
            Plan::Answer(ms(300), granted(3)),
            Plan::Never,
        ];
        let nodes = counting(plans, move |_, token| {
            Plan::Answer(ms(after), raised(token.get()))
        });
        let manager = redlock(&nodes, Redlock::builder());
        let started = Instant::now();
        let request = manager.lock("job").ttl(TTL).node_budget(budget).watchdog(false);
        match request.try_acquire().await {
            Ok(lease) => assert!(valid && lease.is_held()),
            Err(AcquireError::TooLate { .. }) => assert!(!valid),
            Err(other) => panic!("{other}"),
        }
        assert!(
            started.elapsed() <= ms(988),
            "the attempt went on beyond its deadline"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_without_a_counter_is_a_fault_of_the_node() {
    let plans = vec![at_once(Ok(Reply::Granted { counter: None })); 3];
    let nodes = counting(plans, |_, _| Plan::Never);
    let manager = redlock(&nodes, Redlock::builder());
    let error = attempt(&manager).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
    // The key may be set there all the same (A6).
    manager.shutdown().await;
    assert!(nodes.iter().all(|node| node.calls().last().unwrap().is_release()));
    // Without fencing, a counter in the grant is the fault.
    let nodes = counting(vec![at_once(granted(7)); 3], |_, _| Plan::Never);
    let manager = redlock(&nodes, Redlock::builder().fencing(false));
    let error = attempt(&manager).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
    let nodes = counting(vec![at_once(Ok(Reply::Granted { counter: None })); 3], |_, _| {
        Plan::Never
    });
    let manager = redlock(&nodes, Redlock::builder().fencing(false));
    assert_eq!(attempt(&manager).await.unwrap().fencing_token(), None);
}

/// If this counter counted, it would be passed on to all nodes and use up the tokens (F5).
#[tokio::test(start_paused = true)]
async fn an_impossible_counter_is_a_fault_of_its_node_alone() {
    let far = FencingToken::MAX.get() - 3;
    let plans = vec![at_once(granted(far)), at_once(granted(7)), at_once(granted(7))];
    let nodes = counting(plans, |_, _| panic!("raised"));
    let lease = attempt(&redlock(&nodes, Redlock::builder())).await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(7)));
    let first = lease.votes().iter().next().unwrap().answer.clone().unwrap();
    assert!(matches!(first, Err(Fault::Protocol { .. })), "{first:?}");
}

/// Late grants with smaller counters do not prolong the second round.
#[tokio::test(start_paused = true)]
async fn a_second_round_takes_a_budget_at_most() {
    let straggler = |after| Plan::Answer(ms(after), granted(3));
    let plans = vec![
        at_once(granted(7)),
        at_once(granted(3)),
        at_once(granted(3)),
        straggler(60),
        straggler(90),
    ];
    let nodes = counting(plans, |_, _| Plan::Never);
    let started = Instant::now();
    attempt(&redlock(&nodes, Redlock::builder())).await.unwrap_err();
    assert_eq!(started.elapsed(), BUDGET);
}

/// Returns servers with these counters. Each is `apart` milliseconds further away than the one before.
fn servers<const N: usize>(counters: [u64; N], apart: u64) -> Vec<Arc<Server>> {
    let server = |(number, counter)| {
        let server = Server::new(number, move || ms(1 + apart * number as u64));
        server.set_counter("quorlock:job", counter);
        server
    };
    counters.into_iter().enumerate().map(server).collect()
}

fn counters(servers: &[Arc<Server>]) -> Vec<FencingToken> {
    let counter = |server: &Arc<Server>| server.counter("quorlock:job").unwrap();
    servers.iter().map(counter).collect()
}

/// After a release, all nodes have the same counter, even if late grants were ahead (F4).
#[tokio::test(start_paused = true)]
async fn a_release_makes_all_counters_equal() {
    let servers = servers([7, 3, 9, 8, 1], 3);
    let manager = redlock(&servers, Redlock::builder());
    let lease = manager.lock("job").acquire().await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(10)), "9, counted once");
    sleep(ms(100)).await;
    lease.extend().await.unwrap();
    assert_eq!(
        lease.fencing_token(),
        Some(token(10)),
        "an extension changed the token"
    );
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    manager.shutdown().await;
    assert_eq!(counters(&servers), [token(10); 5]);

    let raised: usize = servers.iter().map(|server| server.raised()).sum();
    assert!(raised > 0);
    let lease = manager.lock("job").acquire().await;
    assert!(matches!(lease, Err(AcquireError::ShutDown)));
    let manager = redlock(&servers, Redlock::builder());
    let lease = manager.lock("job").acquire().await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(11)));
    let again: usize = servers.iter().map(|server| server.raised()).sum();
    assert_eq!(again, raised, "a second round was needed again");
}

/// A late grant is ahead of the issued token (F4).
#[tokio::test(start_paused = true)]
async fn a_straggler_that_is_ahead_is_caught_up_with_on_release() {
    let servers = servers([4, 4, 20], 10);
    let manager = redlock(&servers, Redlock::builder());
    let lease = manager.lock("job").acquire().await.unwrap();
    assert_eq!(lease.fencing_token(), Some(token(5)));
    sleep(ms(100)).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    manager.shutdown().await;
    assert_eq!(counters(&servers), [token(21); 3]);
}
