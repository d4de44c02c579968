//! Split votes: several clients contend, and none has a quorum (W3).

use std::time::Duration;

use futures_util::future::join_all;
use quorlock::simulation::{Action, OwnerToken, Reply};
use quorlock::{AcquireError, Redlock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::crowd::{manager, scattered};
use crate::nodes::{Plan, ms, redlock, scripted_nodes, yes};

/// Two contenders have two votes each. The fifth node could decide, but it is silent and not waited for.
#[tokio::test(start_paused = true)]
async fn a_hung_node_does_not_delay_attempts_that_split_the_votes() {
    let mut won = 0;
    for seed in 0..50 {
        fastrand::seed(seed);
        let servers = scattered(seed, 9_000..=11_000, Some(4));
        let managers: Vec<Redlock> = (0..3).map(|_| manager(&servers)).collect();
        let started = Instant::now();
        let tries = managers.iter().map(|manager| manager.lock("job").try_acquire());
        let outcomes = join_all(tries).await;
        // A node's budget is three seconds.
        assert!(
            started.elapsed() < ms(500),
            "seed {seed}: {:?}",
            started.elapsed()
        );
        won += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    }
    println!("{won} of 50");
    assert!((40..=50).contains(&won), "{won} of 50");
}

/// The votes are split repeatedly. Each time, the elected contender needs nodes that other contenders have acquired meanwhile.
#[tokio::test(start_paused = true)]
async fn a_hung_node_does_not_keep_the_lock_from_its_contenders() {
    let (mut longest, mut together) = (Duration::ZERO, Duration::ZERO);
    for seed in 0..200 {
        fastrand::seed(seed);
        let servers = scattered(seed, 4_000..=6_000, Some(4));
        let started = Instant::now();
        let mut contenders = JoinSet::new();
        for number in 0..4 {
            let manager = manager(&servers);
            contenders.spawn(async move {
                for _ in 0..5 {
                    let lease = manager
                        .lock("job")
                        .ttl(ms(10_000))
                        .forever()
                        .acquire()
                        .await
                        .unwrap();
                    sleep(ms(1)).await;
                    let _ = lease.release().await;
                }
                number
            });
        }
        contenders.join_all().await;
        longest = longest.max(started.elapsed());
        together += started.elapsed();
    }
    println!("20 grants: {:?}, {longest:?} at most", together / 200);
    // Without the silent node, it takes half a second at most.
    assert!(longest < ms(1_500), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_split_vote_is_settled_in_the_same_attempt() {
    let mut settled = 0;
    for seed in 0..200 {
        fastrand::seed(seed);
        let servers = scattered(seed, 9_000..=11_000, None);
        let managers: Vec<Redlock> = (0..3).map(|_| manager(&servers)).collect();
        let tries = managers.iter().map(|manager| manager.lock("job").try_acquire());
        let outcomes = join_all(tries).await;
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(won <= 1, "seed {seed}");
        settled += won;
        for outcome in outcomes {
            match outcome {
                Ok(lease) => drop(lease.release().await),
                Err(error) => assert!(matches!(error, AcquireError::Held { .. }), "{error}"),
            }
        }
    }
    println!("{settled} of 200");
    assert!(settled > 180, "{settled} of 200");
}

/// The first request may have set a key, so the validity starts before it (A5).
#[tokio::test(start_paused = true)]
async fn the_lease_of_an_elected_contender_counts_from_its_first_request() {
    // Two contenders with larger tokens have one node each, and give it back.
    let mut is_given_back = false;
    let nodes = scripted_nodes(3, move |node, action| {
        let reply = match action {
            Action::Acquire { .. } if node > 0 && !is_given_back => {
                is_given_back = true;
                Reply::Held {
                    remaining: None,
                    holder: Some(OwnerToken::from(node as u128 + 1)),
                }
            }
            action => yes(action),
        };
        Plan::Answer(ms(100), Ok(reply))
    });
    let manager = redlock(&nodes, Redlock::builder().simulated_owner_tokens(|| 1));
    let started = Instant::now();
    let lease = manager.lock("job").ttl(ms(10_000)).try_acquire().await.unwrap();
    let acquires = nodes.iter().map(|node| node.calls().len());
    assert_eq!(
        acquires.collect::<Vec<_>>(),
        [1, 2, 2],
        "the votes were not split"
    );
    // The TTL less 1 % and 2 ms for clock drift.
    assert_eq!(lease.deadline(), (started + ms(9_898)).into_std());
}
