//! Those in this process who wait for the same lock: first come, first served (W1).
//!
//! Only the one in front talks to the nodes, so that a thousand who wait cost the nodes no more than one does.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turn, Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::timer::sleep_until;

/// The queues of one manager. `T` is what whoever is in front was told last.
#[derive(Clone)]
pub(crate) struct Queues<T>(Arc<Mutex<ByKey<T>>>);

type ByKey<T> = HashMap<Arc<str>, Arc<Queue<T>>>;

struct Queue<T> {
    /// Held by who is in front. Fair: it goes to who has waited longest.
    turn: Arc<Turn<()>>,
    freed: Arc<Notify>,
    told: Mutex<Option<T>>,
}

impl<T: Clone> Queues<T> {
    /// Takes the last place in the queue for a key, which is made if there is none.
    pub(crate) fn enter(&self, key: &Arc<str>) -> Place<T> {
        let queue = lock(&self.0)
            .entry(key.clone())
            .or_insert_with(|| {
                Arc::new(Queue {
                    turn: Arc::default(),
                    freed: Arc::default(),
                    told: Mutex::default(),
                })
            })
            .clone();
        Place {
            queues: self.clone(),
            key: key.clone(),
            queue,
            turn: None,
        }
    }

    /// This process has just given the lock up: it can be had behind what deletes it. Nobody need be waiting.
    pub(crate) fn freed(&self, key: &str) {
        if let Some(queue) = lock(&self.0).get(key) {
            queue.freed.notify_one();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Queues(Arc::default())
    }
}

impl<T> fmt::Debug for Queues<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

/// A place in a queue. Dropping it leaves the queue.
pub(crate) struct Place<T> {
    queues: Queues<T>,
    key: Arc<str>,
    queue: Arc<Queue<T>>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl<T: Clone> Place<T> {
    /// Waits to be in front, until `end` at most; whether it is. Cancel safe.
    pub(crate) async fn reach_the_front(&mut self, end: Option<Instant>, home: &Handle) -> bool {
        if let Ok(turn) = self.queue.turn.clone().try_lock_owned() {
            self.turn = Some(turn);
            return true;
        }
        let turn = self.queue.turn.clone().lock_owned();
        let turn = match end {
            None => turn.await,
            Some(end) => tokio::select! {
                biased;
                turn = turn => turn,
                () = sleep_until(home, end) => return false,
            },
        };
        self.turn = Some(turn);
        true
    }

    /// Who is in front tells the others what it was told.
    pub(crate) fn tell(&self, told: T) {
        *lock(&self.queue.told) = Some(told);
    }

    /// What whoever is in front was told last.
    pub(crate) fn told(&self) -> Option<T> {
        lock(&self.queue.told).clone()
    }

    /// Waits until this process gives the lock up. It may have done so just before.
    pub(crate) async fn freed(&self) {
        self.queue.freed.notified().await;
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        self.turn = None;
        let mut queues = lock(&self.queues.0);
        // Counted under the lock that it takes to enter: the map's own, and this one.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const MOMENT: Duration = Duration::from_millis(1);

    async fn is_in_front(place: &mut Place<u32>) -> bool {
        let soon = Some(Instant::now() + MOMENT);
        place.reach_the_front(soon, &Handle::current()).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_come_is_the_first_in_front_and_leavers_are_skipped() {
        let queues = Queues::<u32>::default();
        let key: Arc<str> = "job".into();
        let mut first = queues.enter(&key);
        assert!(is_in_front(&mut first).await);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (mut place, order) = (queues.enter(&key), order.clone());
            tasks.push(tokio::spawn(async move {
                assert!(place.reach_the_front(None, &Handle::current()).await);
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
        let queues = Queues::<u32>::default();
        let mut places: Vec<_> = ["a", "b"].map(|key| queues.enter(&key.into())).into();
        for place in &mut places {
            assert!(is_in_front(place).await);
        }
        let mut second = queues.enter(&"a".into());
        assert!(!is_in_front(&mut second).await);
        assert_eq!(queues.len(), 2);
        places.clear();
        assert_eq!(queues.len(), 1);
        assert!(is_in_front(&mut second).await);
        drop(second);
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn news_reach_who_is_in_front_even_if_they_come_first() {
        let queues = Queues::<u32>::default();
        queues.freed("job");
        let place = queues.enter(&"job".into());
        timeout(MOMENT, place.freed())
            .await
            .expect_err("nobody was waiting");
        queues.freed("job");
        timeout(MOMENT, place.freed()).await.unwrap();
        timeout(MOMENT, place.freed()).await.expect_err("heard once");
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_was_told_the_others_know() {
        let queues = Queues::<u32>::default();
        let (first, second) = (queues.enter(&"job".into()), queues.enter(&"job".into()));
        assert_eq!(second.told(), None);
        first.tell(7);
        drop(first);
        assert_eq!(second.told(), Some(7));
    }
}
