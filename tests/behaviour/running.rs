//! `LockRequest::run`: work under a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorlock::{AcquireError, LossReason, RunError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::common::PATIENCE;
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        it_gives_the_output_and_releases,
        it_does_not_start_without_the_lock,
        it_renews_while_the_work_runs,
        it_cancels_the_work_before_the_deadline_when_the_keys_vanish,
        dropping_the_run_drops_the_work_and_releases,
        work_that_panics_leaves_no_key,
        work_that_may_fail_gives_one_result,
    ]
}

async fn it_gives_the_output_and_releases(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let seen = redlock
        .lock(resource.as_str())
        .run(|lease| async move {
            assert!(lease.is_held());
            lease.resource().to_owned()
        })
        .await
        .unwrap();
    assert_eq!(seen, resource);
    world.gone(&resource).await;
}

async fn work_that_may_fail_gives_one_result(world: &World) {
    type Outcome = Result<u8, Box<dyn std::error::Error + Send + Sync>>;
    let resource = &world.resource("job");
    let redlock = world.redlock().await;
    let done: Outcome = redlock.lock(resource).try_run(|_| async { Ok(7) }).await;
    assert_eq!(done.unwrap(), 7);
    let failed: Outcome = redlock
        .lock(resource)
        .try_run(|_| async { Err("no paper".into()) })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "no paper");
    let _lease = redlock.lock(resource).acquire().await.unwrap();
    let refused: Outcome = redlock
        .lock(resource)
        .within(Duration::ZERO)
        .try_run(|_| async { Ok(7) })
        .await;
    assert!(refused.unwrap_err().is::<RunError>());
}

async fn it_does_not_start_without_the_lock(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let _lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
    let started = AtomicBool::new(false);
    let outcome = world
        .redlock()
        .await
        .lock(resource.as_str())
        .within(Duration::ZERO)
        .run(|_| async { started.store(true, Ordering::Relaxed) })
        .await;
    assert!(
        matches!(outcome, Err(RunError::Acquire(AcquireError::Held { .. }))),
        "{outcome:?}"
    );
    assert!(!started.load(Ordering::Relaxed));
}

async fn it_renews_while_the_work_runs(world: &World) {
    let ttl = Duration::from_secs(3);
    let redlock = world.redlock().await;
    let outcome = redlock
        .lock(world.resource("job"))
        .ttl(ttl)
        .node_budget(ttl / 2)
        .run(|lease| async move {
            tokio::time::sleep(ttl * 3 / 2).await;
            lease.is_held()
        })
        .await;
    assert!(outcome.unwrap());
}

struct Dropped(Option<oneshot::Sender<Instant>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().unwrap().send(Instant::now());
    }
}

async fn it_cancels_the_work_before_the_deadline_when_the_keys_vanish(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let (dropped, when) = oneshot::channel();
    let (started, handle) = oneshot::channel();
    let running = redlock
        .lock(resource.as_str())
        .ttl(Duration::from_secs(6))
        .node_budget(Duration::from_secs(3))
        .run(|lease| async move {
            let _dropped = Dropped(Some(dropped));
            let _ = started.send(lease);
            std::future::pending::<()>().await;
        });
    let vanishing = async {
        let lease = handle.await.unwrap();
        world.spread(&resource).await;
        world.delete(&resource).await;
        lease
    };
    let (outcome, lease) = tokio::join!(running, vanishing);
    match outcome {
        Err(RunError::Lost(lost)) => assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}"),
        other => panic!("{other:?}"),
    }
    assert!(when.await.unwrap() < lease.deadline());
    assert_eq!(world.copies(&resource).await, 0);
}

async fn dropping_the_run_drops_the_work_and_releases(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let (dropped, when) = oneshot::channel();
    let (started, handle) = oneshot::channel();
    let running = redlock.lock(resource.as_str()).run(|lease| async move {
        let _dropped = Dropped(Some(dropped));
        let _ = started.send(lease);
        std::future::pending::<()>().await;
    });
    let lease = tokio::select! {
        outcome = running => panic!("{outcome:?}"),
        lease = handle => lease.unwrap(),
    };
    assert!(!lease.is_held());
    timeout(PATIENCE, when).await.unwrap().unwrap();
    world.gone(&resource).await;
}

async fn work_that_panics_leaves_no_key(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let reached = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let (resource, reached) = (resource.clone(), reached.clone());
        async move {
            redlock
                .lock(resource)
                .run(|_| async move {
                    reached.store(true, Ordering::Relaxed);
                    // Does not call the panic hook, which would print a message.
                    std::panic::resume_unwind(Box::new("work"));
                })
                .await
        }
    });
    assert!(task.await.unwrap_err().is_panic());
    assert!(reached.load(Ordering::Relaxed));
    world.gone(&resource).await;
}
