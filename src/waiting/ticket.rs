//! A waiter's place in a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::{MutexGuard, OwnedMutexGuard};
use tokio::time::Instant;

use crate::node::WaitNotice;
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;

use super::registry::{QueueId, QueueRef, Queues};
use super::releases::ReleaseWatch;

/// A place in a queue. Dropping it leaves the queue.
pub(crate) struct Ticket<T: Send + 'static> {
    turn: Option<OwnedMutexGuard<()>>,
    queue_ref: QueueRef<T>,
}

impl<T: Send + 'static> Queues<T> {
    /// Takes the last place in a queue, which is made if there is none.
    pub(crate) fn enter(&self, id: QueueId) -> Ticket<T> {
        let queue_ref = self.queue(id);
        queue_ref.queue.waiting.fetch_add(1, SeqCst);
        Ticket {
            queue_ref,
            turn: None,
        }
    }
}

impl<T: Clone + Send + 'static> Ticket<T> {
    pub(super) fn key(&self) -> &Arc<str> {
        &self.queue_ref.id.key
    }

    /// Waits to be first in the queue, until `end` at most. Returns whether it is. Cancel safe.
    pub(crate) async fn wait_for_front(&mut self, end: Option<Instant>, runtime: &Runtime) -> bool {
        let queue = &self.queue_ref.queue;
        if let Ok(turn) = queue.turn.clone().try_lock_owned() {
            self.turn = Some(turn);
            return true;
        }
        let time_is_up = async {
            match end {
                Some(end) => sleep_until(runtime, end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            turn = queue.turn.clone().lock_owned() => self.turn = Some(turn),
            () = time_is_up => return false,
        }
        true
    }

    /// Waits until no other waiter makes a last attempt. While the guard lives, no other one begins. `None` after `limit`.
    pub(crate) async fn final_attempt(
        &self,
        limit: Duration,
        runtime: &Runtime,
    ) -> Option<MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            turn = self.queue_ref.queue.final_attempt.lock() => Some(turn),
            () = sleep_until(runtime, Instant::now() + limit) => None,
        }
    }

    /// Shares a failure with the other waiters. `None` clears it.
    pub(crate) fn share(&self, failure: Option<T>) {
        *lock(&self.queue_ref.queue.shared_failure) = failure;
    }

    /// Returns the failure that was shared last; `None` if there is none, or if the lock was granted since.
    pub(crate) fn shared_failure(&self) -> Option<T> {
        lock(&self.queue_ref.queue.shared_failure).clone()
    }

    /// Waits until this process releases the lock. Returns at once if it has just done so.
    pub(super) async fn freed(&self) {
        self.queue_ref.queue.freed.notified().await;
    }

    /// Returns until when a task of this process holds the lock; `None` if none does.
    pub(crate) fn held_here(&self) -> Option<Instant> {
        let now = Instant::now();
        let leases: Vec<_> = lock(&self.queue_ref.queue.state)
            .leases
            .iter()
            .filter_map(|(_, lease)| lease.upgrade())
            .collect();
        // Not under the lock: dropping the last reference to a lease needs it.
        let untils = leases.iter().map(|lease| lease.until());
        untils.filter(|until| *until > now).max()
    }

    /// Records a refusal by the nodes. Unless a task of this process holds the lock, another process does.
    pub(super) fn refused(&self, round_trip: Duration) {
        let queue = &self.queue_ref.queue;
        let is_held_here = {
            let mut state = lock(&queue.state);
            state.waited = Some(Instant::now());
            state.leases.iter().any(|(_, lease)| lease.strong_count() > 0)
        };
        let mut fairness = lock(&queue.fairness);
        fairness.round_trip(round_trip);
        if !is_held_here {
            fairness.refused();
        }
    }

    /// Returns from when on this process may ask; `None` if no other process goes first.
    pub(super) fn gate(&self, random: u32) -> Option<Instant> {
        lock(&self.queue_ref.queue.fairness).gate(random)
    }

    pub(super) fn is_next(&self) -> bool {
        lock(&self.queue_ref.queue.fairness).is_next(Instant::now())
    }

    /// Returns the announcement that this process waits; `None` if the others know.
    pub(super) fn next_wait_notice(&self) -> Option<WaitNotice> {
        lock(&self.queue_ref.queue.fairness).next_wait_notice(Instant::now())
    }

    pub(super) fn releases(&self) -> Option<Arc<ReleaseWatch>> {
        lock(&self.queue_ref.queue.state).releases.clone()
    }

    pub(super) fn listen(&self) {
        self.queue_ref.listen();
    }
}

impl<T: Send + 'static> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.queue_ref.queue.waiting.fetch_sub(1, SeqCst);
        self.queue_ref.linger();
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::keys::claim::ReleaseObserver;
    use crate::node::{Nodes, ReleaseKind, Sender, WaiterId};
    use crate::options::LockOptions;
    use crate::waiting::queue::REMEMBERED;
    use std::sync::Mutex;
    use tokio::time::timeout;

    const MOMENT: Duration = Duration::from_millis(1);

    fn queues() -> Queues<u32> {
        Queues::new(
            &Nodes::from([]),
            &Runtime::current().unwrap(),
            CancellationToken::new(),
        )
    }

    fn id(key: &Arc<str>) -> QueueId {
        QueueId::new(key, &LockOptions::default().settings().unwrap())
    }

    fn enter(queues: &Queues<u32>, key: &Arc<str>) -> Ticket<u32> {
        queues.enter(id(key))
    }

    async fn is_in_front(place: &mut Ticket<u32>) -> bool {
        let soon = Some(Instant::now() + MOMENT);
        place.wait_for_front(soon, &Runtime::current().unwrap()).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_come_is_the_first_in_front_and_leavers_are_skipped() {
        let queues = queues();
        let key: Arc<str> = "job".into();
        let mut first = enter(&queues, &key);
        assert!(is_in_front(&mut first).await);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (mut place, order) = (enter(&queues, &key), order.clone());
            tasks.push(tokio::spawn(async move {
                assert!(place.wait_for_front(None, &Runtime::current().unwrap()).await);
                lock(&order).push(number);
                tokio::task::yield_now().await;
            }));
            tokio::task::yield_now().await;
        }
        for leaver in [0, 3, 9] {
            tasks[leaver].abort();
        }
        tokio::task::yield_now().await;
        drop(first);
        for task in tasks {
            let _ = task.await;
        }
        assert_eq!(*lock(&order), [1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_are_independent_and_end_with_their_last_place() {
        let queues = queues();
        let mut places: Vec<_> = ["a", "b"].map(|key| enter(&queues, &key.into())).into();
        for place in &mut places {
            assert!(is_in_front(place).await);
        }
        let mut second = enter(&queues, &"a".into());
        assert!(!is_in_front(&mut second).await);
        assert_eq!(queues.len(), 2);
        places.clear();
        assert_eq!(queues.len(), 1);
        assert!(is_in_front(&mut second).await);
        drop(second);
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_reaches_the_first_waiter_even_if_it_comes_first() {
        let queues = queues();
        let key: Arc<str> = "job".into();
        let (early, late) = (queues.got(id(&key), MOMENT).0, queues.got(id(&key), MOMENT).0);
        early.freed();
        let ticket = enter(&queues, &key);
        timeout(MOMENT, ticket.freed())
            .await
            .expect_err("nobody was waiting");
        late.freed();
        timeout(MOMENT, ticket.freed()).await.unwrap();
        timeout(MOMENT, ticket.freed()).await.expect_err("heard once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_of_another_process_is_remembered_while_it_lasts_and_not_when_all_is_over() {
        let queues = queues();
        let open = queues.until_closed();
        let key: Arc<str> = "job".into();
        let slot = Duration::from_millis(400);
        let named = |count| {
            let holder = queues.got(id(&key), MOMENT).0;
            lock(&queues.queue(id(&key)).queue.fairness).heard_waits(WaitNotice {
                from: Sender {
                    id: WaiterId(7),
                    count,
                },
                slot,
            });
            assert_eq!(holder.notice().kind, ReleaseKind::Free, "no task waits here");
            holder.freed();
        };
        for count in 1..3 {
            named(count);
            assert_eq!(queues.len(), 1);
            let ticket = enter(&queues, &key);
            assert!(ticket.gate(0).unwrap() >= Instant::now() + slot);
            drop(ticket);
            tokio::time::sleep(slot + REMEMBERED + 5 * MOMENT).await;
            assert_eq!(queues.len(), 0);
        }
        named(1);
        assert_eq!(queues.len(), 1);
        drop(open);
        tokio::time::sleep(MOMENT).await;
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_failure_of_the_waiter_in_front_is_shared() {
        let queues = queues();
        let (first, second) = (enter(&queues, &"job".into()), enter(&queues, &"job".into()));
        assert_eq!(second.shared_failure(), None);
        first.share(Some(7));
        drop(first);
        assert_eq!(second.shared_failure(), Some(7));
    }

    #[test]
    fn a_queue_that_two_leave_at_the_same_time_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let queues = queues();
        let key: Arc<str> = "job".into();
        let barrier = std::sync::Barrier::new(2);
        for _ in 0..2_000 {
            std::thread::scope(|threads| {
                for place in [enter(&queues, &key), enter(&queues, &key)] {
                    let barrier = &barrier;
                    threads.spawn(move || {
                        barrier.wait();
                        drop(place);
                    });
                }
            });
            assert_eq!(queues.len(), 0);
        }
    }
}
