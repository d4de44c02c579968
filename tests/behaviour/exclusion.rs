//! One holder at a time.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use quorlock::node::Reply;
use quorlock::{AcquireError, ReleaseOutcome};

use crate::world::{Behaviour, SHORT, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    let mut all = behaviours![false;
        one_token_stands_on_every_node_and_release_leaves_no_key,
        the_second_client_is_refused_with_what_every_node_said,
        settings_of_a_call_override_those_of_the_manager,
        clients_that_collide_never_both_win,
    ];
    all.extend(behaviours![true;
        trying_is_one_call_to_each_node,
    ]);
    all
}

const TTL: Duration = Duration::from_secs(30);

async fn one_token_stands_on_every_node_and_release_leaves_no_key(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let before = Instant::now();
    let lease = redlock.lock(resource.as_str()).ttl(TTL).acquire().await.unwrap();
    assert_eq!(lease.resource(), resource);
    assert!(lease.is_held());
    assert!(lease.deadline() > before && lease.deadline() < Instant::now() + TTL);
    assert!(lease.remaining() < TTL);
    assert!(lease.votes().yes() >= world.quorum());

    world.spread(&resource).await;
    let tokens: HashSet<_> = world.values(&resource).await.into_iter().flatten().collect();
    assert_eq!(tokens.len(), 1);
    assert!(tokens.iter().all(|token| token.len() == 36));
    for pttl in world.pttls(&resource).await {
        assert!(pttl > 0 && pttl <= TTL.as_millis() as i64, "{pttl} ms left");
    }

    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}

async fn the_second_client_is_refused_with_what_every_node_said(world: &World) {
    let (first, second) = (world.redlock().await, world.redlock().await);
    let resource = world.resource("job");
    let lease = first.lock(resource.as_str()).acquire().await.unwrap();
    world.spread(&resource).await;

    let trying = second.lock(resource.as_str()).forever().try_acquire();
    let error = trying.await.unwrap_err();
    let AcquireError::Held {
        resource: named,
        attempts: 1,
        votes,
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(**named, *resource);
    assert_eq!((votes.iter().count(), votes.yes()), (world.nodes(), 0));
    assert_eq!(votes.quorum(), world.quorum());
    assert!(votes.no() >= 1);
    assert!(votes.iter().any(|vote| matches!(
        vote.answer,
        Some(Ok(Reply::Held {
            remaining: Some(_),
            ..
        }))
    )));
    assert!(votes.longest_remaining().unwrap() <= lease.ttl());
    let text = error.to_string();
    assert!(
        text.contains(&resource) && text.contains("already held"),
        "{text}"
    );

    // The lock is not re-entrant: the holder's own client is refused, too.
    let again = first.lock(resource.as_str()).try_acquire().await;
    assert!(matches!(again, Err(AcquireError::Held { .. })), "{again:?}");
    assert!(lease.is_held());
    assert_eq!(world.copies(&resource).await, world.live().len());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn settings_of_a_call_override_those_of_the_manager(world: &World) {
    let redlock = world
        .builder()
        .ttl(Duration::from_secs(50))
        .within(Duration::ZERO)
        .max_hold(Duration::from_secs(40))
        .watchdog(false)
        .connect()
        .await
        .unwrap();
    let resource = world.resource("job");
    let hour = Duration::from_secs(3_600);

    let lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
    assert_eq!(lease.ttl(), Duration::from_secs(50));
    assert!(lease.remaining() <= Duration::from_secs(40), "max_hold");
    let waiting = redlock.lock(resource.as_str()).within(SHORT).acquire();
    match waiting.await {
        Err(AcquireError::Held { attempts, waited, .. }) => assert!(attempts > 1 && waited >= SHORT),
        other => panic!("{other:?}"),
    }
    match redlock.lock(resource.as_str()).acquire().await {
        Err(AcquireError::Held { attempts, .. }) => assert_eq!(attempts, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);

    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .ttl(hour)
        .max_hold(hour)
        .within(Duration::from_secs(10))
        .acquire()
        .await
        .unwrap();
    assert_eq!(lease.ttl(), hour);
    assert!(lease.remaining() > Duration::from_secs(50));
    world.spread(&resource).await;
    assert!(world.pttls(&resource).await.iter().all(|pttl| *pttl > 50_000));
    let _ = lease.release().await;
}

async fn clients_that_collide_never_both_win(world: &World) {
    let resource = world.resource("job");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(world.redlock().await);
    }
    for _ in 0..5 {
        let tries = clients
            .iter()
            .map(|client| client.lock(resource.as_str()).try_acquire());
        let outcomes = futures_util::future::join_all(tries).await;
        let won: Vec<_> = outcomes
            .into_iter()
            .filter_map(|outcome| match outcome {
                Ok(lease) => Some(lease),
                Err(AcquireError::Held { .. }) => None,
                Err(other) => panic!("{other}"),
            })
            .collect();
        assert!(won.len() <= 1, "{won:?}");
        for lease in won {
            assert_eq!(lease.release().await, ReleaseOutcome::Released);
        }
        world.gone(&resource).await;
    }
    // Split votes settle: every client gets the lock in the end.
    let waits = clients.iter().map(|client| async {
        let lease = client.lock(resource.as_str()).forever().acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    });
    futures_util::future::join_all(waits).await;
}

/// Returns how often each live server has executed `command`.
pub(crate) async fn calls(world: &World, command: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    for node in &world.servers()[..world.live().len()] {
        counts.push(crate::common::calls(node, command).await);
    }
    counts
}

pub(crate) fn difference(after: &[u64], before: &[u64]) -> Vec<u64> {
    after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

async fn trying_is_one_call_to_each_node(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let stranger = world.tell::<String>("SET", &resource, &["stranger"]).await;
    assert_eq!(stranger.len(), world.live().len());

    let before = calls(world, "evalsha").await;
    let error = redlock.lock(resource.as_str()).try_acquire().await.unwrap_err();
    assert!(
        matches!(error, AcquireError::Held { attempts: 1, .. }),
        "{error:?}"
    );
    redlock.shutdown().await;
    // One request to each node, and a deletion if the verdict fell before its answer.
    for (calls, vote) in difference(&calls(world, "evalsha").await, &before)
        .iter()
        .zip(error.votes().unwrap().iter())
    {
        let most = if vote.answer.is_some() { 1 } else { 2 };
        assert!((1..=most).contains(calls), "{calls} calls for {vote:?}");
    }
}
