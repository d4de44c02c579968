//! An operator breaks a lock: its holder learns of it at once.

use quorlock::LossReason;
use quorlock::simulation::{Announcement, ReleaseKind, ReleaseNotice};
use tokio::time::{Instant, sleep, sleep_until};

use crate::crowd::{ONE_WAY, manager, servers};
use crate::nodes::ms;

/// The deletion, its announcement, a request, its answer.
const BOTH_WAYS: u64 = 4 * ONE_WAY + 8;

#[tokio::test(start_paused = true)]
async fn the_holder_of_a_broken_lock_and_the_next_waiter_learn_of_it_at_once() {
    for nodes in [1, 3, 5] {
        let servers = servers(nodes);
        let (holder, waiter, operator) = (manager(&servers), manager(&servers), manager(&servers));
        let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
        // It subscribes after a second, and renews then. Announcements cause a renewal a second at most.
        sleep(ms(2_500)).await;
        let broken = Instant::now();
        let votes = operator.break_lock("job", lease.owner()).await.unwrap();
        assert_eq!(votes.yes(), nodes);
        let lost = lease.lost().await;
        assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}");
        assert!(broken.elapsed() <= ms(BOTH_WAYS), "{:?}", broken.elapsed());
        let next = waiting.await.unwrap().unwrap();
        assert!(broken.elapsed() <= ms(BOTH_WAYS), "{:?}", broken.elapsed());
        assert!(next.fencing_token() > lease.fencing_token());
    }
}

/// The deadline of such a lease cannot move, so it is not renewed any more. It asks the nodes all the same.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_longer_learns_of_a_break() {
    for (max_hold, at) in [(35_000, 25_000), (20_000, 2_500)] {
        let servers = servers(3);
        let (holder, operator) = (manager(&servers), manager(&servers));
        let lock = holder.lock("job").ttl(ms(30_000)).max_hold(ms(max_hold));
        let lease = lock.acquire().await.unwrap();
        sleep(ms(at)).await;
        let broken = Instant::now();
        operator.break_lock("job", lease.owner()).await.unwrap();
        assert!(matches!(lease.lost().await.reason, LossReason::Gone(_)));
        assert!(broken.elapsed() <= ms(BOTH_WAYS), "{:?}", broken.elapsed());
    }
}

/// The keys are deleted just before the holder listens, so that it hears nothing of it: it asks once it listens.
#[tokio::test(start_paused = true)]
async fn a_break_before_the_holder_listens_is_noticed_when_it_does() {
    let servers = servers(3);
    let (holder, operator) = (manager(&servers), manager(&servers));
    let begun = Instant::now();
    let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
    sleep_until(begun + ms(1_000 - ONE_WAY - 5)).await;
    operator.break_lock("job", lease.owner()).await.unwrap();
    assert!(matches!(lease.lost().await.reason, LossReason::Gone(_)));
    assert!(
        begun.elapsed() <= ms(1_000 + 2 * BOTH_WAYS),
        "{:?}",
        begun.elapsed()
    );
}

/// A lease that is held for a moment only keeps no connections.
#[tokio::test(start_paused = true)]
async fn a_holder_subscribes_after_a_second() {
    let servers = servers(3);
    let holder = manager(&servers);
    let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
    sleep(ms(900)).await;
    assert!(servers.iter().all(|server| server.listeners() == 0));
    sleep(ms(200)).await;
    assert!(servers.iter().all(|server| server.listeners() == 1));
    let _ = lease.release().await;
    sleep(ms(100)).await;
    assert!(servers.iter().all(|server| server.listeners() == 0));
}

/// If fewer than a quorum of nodes has deleted the key, the lease goes on, and the nodes get the key again.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_broken_on_too_few_nodes_stays_held() {
    let servers = servers(5);
    let holder = manager(&servers);
    let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
    sleep(ms(2_500)).await;
    let few = manager(&servers[..2]);
    assert_eq!(few.break_lock("job", lease.owner()).await.unwrap().yes(), 2);
    sleep(ms(1_000)).await;
    assert!(lease.is_held());
    assert_eq!(
        few.break_lock("job", lease.owner()).await.unwrap().yes(),
        2,
        "healed at once"
    );
}

/// Any client that may publish can announce that the key was deleted. That causes no more renewals than failures do.
#[tokio::test(start_paused = true)]
async fn forged_deletions_neither_end_a_lease_nor_flood_the_nodes() {
    let servers = servers(3);
    let holder = manager(&servers);
    let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
    sleep(ms(11_000)).await;
    let before = servers[0].executed();
    let notice = ReleaseNotice {
        kind: ReleaseKind::Free,
        turn: None,
    };
    let forged = Announcement::Release(lease.owner(), notice);
    for _ in 0..1_000 {
        servers[0].say("quorlock:job", forged);
        sleep(ms(10)).await;
    }
    assert!(lease.is_held());
    let renewals = servers[0].executed() - before;
    // One a second, for 10 s.
    assert!((5..=12).contains(&renewals), "{renewals}");
}
