//! Work is done once in a period, whichever process comes first.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use quorlock::{Period, PeriodError, RunError};

use crate::common::ask;
use crate::world::{Behaviour, World, behaviours};

/// The test is over well before the next period.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        work_is_done_by_the_first_that_succeeds,
        a_mark_on_one_node_counts_and_is_set_on_the_others,
        marks_of_other_periods_do_not_count,
        a_late_process_neither_repeats_work_nor_undoes_a_mark,
        without_the_lock_nothing_is_known_and_nothing_is_marked,
    ]
}

fn this_year() -> Period {
    Period::containing(SystemTime::now(), YEAR).unwrap()
}

async fn marks(world: &World, resource: &str) -> Vec<Option<String>> {
    world.tell("GET", &format!("{resource}#done"), &[]).await
}

async fn work_is_done_by_the_first_that_succeeds(world: &World) {
    let resource = world.resource("report");
    let mut runs = Vec::new();
    for (process, succeeds) in [(0, false), (1, true), (2, true), (1, true)] {
        let lock = world.redlock().await.lock(&resource).ttl(world.ttl());
        let work = |_| async move {
            match succeeds {
                true => Ok::<_, Box<dyn std::error::Error>>(process),
                false => Err("no disk".into()),
            }
        };
        let lock = lock.node_budget(world.generous_budget());
        runs.push(lock.run_once_per(YEAR, work).await.ok());
        world.gone(&resource).await;
    }
    assert_eq!(runs, [None, Some(Some(1)), Some(None), Some(None)]);
    let end = this_year().end().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mark = format!("{}:{}", end.as_millis(), YEAR.as_millis());
    let all = vec![Some(mark); world.live().len()];
    assert_eq!(marks(world, &resource).await, all);
    for ms in world.pttls(&format!("{resource}#done")).await {
        let left = Duration::from_millis(ms.try_into().unwrap());
        assert!(left > YEAR && left <= 2 * YEAR, "{left:?}");
    }
    let lock = world.redlock().await.lock(&resource);
    let refused = lock
        .run_once_per::<_, _, (), RunError>(Duration::ZERO, |_| async { Ok(()) })
        .await;
    assert!(refused.unwrap_err().to_string().contains("a period of 0ns"));
}

async fn a_mark_on_one_node_counts_and_is_set_on_the_others(world: &World) {
    let resource = world.resource("report");
    let lease = world.hold(&resource, world.ttl()).await;
    let period = this_year();
    assert_eq!(lease.is_done(period).await, Ok(false));
    assert_eq!(lease.mark_done(period).await, Ok(()));
    let all = marks(world, &resource).await;
    assert_eq!(all, vec![all[0].clone(); world.live().len()]);
    for kept in world.live() {
        let others = world.live().iter().filter(|url| *url != kept);
        let key = format!("quorlock:{resource}#done");
        let deletions = others.map(|url| async { ask::<i64>(url, &[b"DEL", key.as_bytes()]).await.unwrap() });
        join_all(deletions).await;
        assert_eq!(lease.is_done(period).await, Ok(true), "{kept}");
        assert_eq!(marks(world, &resource).await, all, "{kept}");
    }
}

/// The next period counts, because a clock may be ahead. A clock that is off by more must not stop the work for years.
async fn marks_of_other_periods_do_not_count(world: &World) {
    let resource = world.resource("report");
    let lease = world.hold(&resource, world.ttl()).await;
    let year = |ahead: i32| {
        let by = YEAR * ahead.unsigned_abs();
        let moment = match ahead < 0 {
            true => SystemTime::now() - by,
            false => SystemTime::now() + by,
        };
        Period::containing(moment, YEAR).unwrap()
    };
    for (ahead, is_done) in [(-1, false), (0, true), (3, false), (1, true)] {
        assert_eq!(lease.mark_done(year(ahead)).await, Ok(()));
        assert_eq!(lease.is_done(this_year()).await, Ok(is_done), "{ahead}");
    }
    // The later mark stays, so who comes for next year finds it done.
    let all = marks(world, &resource).await;
    for earlier in [-1, 0] {
        assert_eq!(lease.mark_done(year(earlier)).await, Ok(()));
        assert_eq!(lease.is_done(year(earlier)).await, Ok(true));
    }
    assert_eq!(marks(world, &resource).await, all);
    let day = Period::containing(SystemTime::now(), YEAR / 365).unwrap();
    assert_eq!(lease.is_done(day).await, Ok(false), "a period of another length");
}

/// A process that waited from last year finds what was done meanwhile.
async fn a_late_process_neither_repeats_work_nor_undoes_a_mark(world: &World) {
    let resource = world.resource("report");
    let lease = world.hold(&resource, world.ttl()).await;
    let now = this_year();
    assert_eq!(lease.mark_done(now).await, Ok(()));
    let all = marks(world, &resource).await;
    let key = format!("quorlock:{resource}#done");
    if let Some(url) = world.live().get(1) {
        let _: i64 = ask(url, &[b"DEL", key.as_bytes()]).await.unwrap();
    }
    for ago in [1, 2] {
        let earlier = Period::containing(SystemTime::now() - YEAR * ago, YEAR).unwrap();
        assert_eq!(lease.is_done(earlier).await, Ok(true));
        assert_eq!(marks(world, &resource).await, all);
    }
}

async fn without_the_lock_nothing_is_known_and_nothing_is_marked(world: &World) {
    let resource = world.resource("report");
    let lease = world.hold(&resource, world.ttl()).await;
    world.delete(&resource).await;
    let other = world.hold(&resource, world.ttl()).await;
    for answer in [
        lease.is_done(this_year()).await.map(drop),
        lease.mark_done(this_year()).await,
    ] {
        let Err(PeriodError::NoQuorum { votes }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(votes.no(), world.live().len(), "{votes}");
    }
    assert_eq!(marks(world, &resource).await, vec![None; world.live().len()]);
    let _ = other.release().await;
}
