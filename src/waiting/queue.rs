//! Those in this process who wait for the same lock: first come, first served (W1).
//!
//! Only the one in front talks to the nodes, so that a thousand who wait cost the nodes no more than one does. While somebody
//! of this process holds it, not even that one has to.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, MutexGuard, Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::context::Context;
use crate::options::RequestParams;
use crate::round::Nodes;
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;

use super::fairness::{Position, Turns};
use super::local_holder::Held;
use super::registry::{Queues, Stay};
use super::releases::Announcements;

/// How long a queue is remembered after the last one has left it: its subscriptions, and whose turn it is elsewhere. Others take
/// whoever listens for one who waits.
pub(super) const REMEMBERED: Duration = Duration::from_millis(300);

/// Those who wait for one key. `T` is what whoever is in front was told last.
pub(super) struct Queue<T> {
    /// Held by who is in front. Fair: it goes to who has waited longest.
    pub(super) turn: Arc<Turn<()>>,
    pub(super) freed: Notify,
    pub(super) told: Mutex<Option<T>>,
    /// One of those whose time is up asks for all of them.
    pub(super) last_question: Turn<()>,
    /// How many wait, the one in front included.
    pub(super) waiting: AtomicUsize,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// What the first one of those who wait asks, and whether others ask something else.
    pub(super) question: Option<RequestParams>,
    pub(super) is_mixed: bool,
    pub(super) turns: Turns,
    /// Opened by the first who waits for somebody elsewhere, closed when nobody has waited for a while.
    pub(super) announcements: Option<Arc<Announcements>>,
    /// When somebody last waited for somebody elsewhere, as far as is known.
    pub(super) waited: Option<Instant>,
    /// Whether a [`Trace`] of those who have left is kept.
    pub(super) has_trace: bool,
    /// The leases of this process, and until when each is held.
    pub(super) leases: Vec<(u64, Weak<dyn Held>)>,
    pub(super) next: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Queue {
            turn: Arc::default(),
            freed: Notify::new(),
            told: Mutex::new(None),
            last_question: Turn::default(),
            waiting: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    /// Those that nobody has needed for a while.
    pub(super) fn unused_announcements(&self) -> Option<Arc<Announcements>> {
        let mut state = lock(&self.state);
        // Whoever waits now is counted before it begins to listen.
        let is_used =
            self.waiting.load(SeqCst) > 0 || state.waited.is_some_and(|waited| waited.elapsed() < REMEMBERED);
        if is_used { None } else { state.announcements.take() }
    }
}

/// A place in a queue. Dropping it leaves the queue.
pub(crate) struct Place<T: Send + 'static> {
    turn: Option<OwnedMutexGuard<()>>,
    stay: Stay<T>,
}

impl<T: Send + 'static> Queues<T> {
    /// Takes the last place in the queue for a key, which is made if there is none.
    pub(crate) fn enter(&self, key: &Arc<str>, question: RequestParams) -> Place<T> {
        let stay = self.stay(key);
        {
            let mut state = lock(&stay.queue.state);
            if stay.queue.waiting.fetch_add(1, SeqCst) == 0 {
                (state.question, state.is_mixed) = (Some(question), false);
            }
            state.is_mixed |= state.question != Some(question);
        }
        Place { stay, turn: None }
    }
}

impl<T: Clone + Send + 'static> Place<T> {
    /// Waits to be in front, until `end` at most; whether it is. Cancel safe.
    pub(crate) async fn reach_the_front(&mut self, end: Option<Instant>, context: &Runtime) -> bool {
        let queue = &self.stay.queue;
        if let Ok(turn) = queue.turn.clone().try_lock_owned() {
            self.turn = Some(turn);
            return true;
        }
        let time_is_up = async {
            match end {
                Some(end) => sleep_until(context, end).await,
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

    /// Whether some of those who wait ask something else than others.
    pub(crate) fn is_mixed(&self) -> bool {
        lock(&self.stay.queue.state).is_mixed
    }

    /// No longer in front: all others come first.
    pub(crate) fn give_way(&mut self) {
        self.turn = None;
    }

    /// When time is up: waits until nobody else asks for the last time, up to `limit`. For as long as what is returned lives, none
    /// does.
    pub(crate) async fn last_question(
        &self,
        limit: Duration,
        context: &Runtime,
    ) -> Option<MutexGuard<'_, ()>> {
        tokio::select! {
            biased;
            turn = self.stay.queue.last_question.lock() => Some(turn),
            () = sleep_until(context, Instant::now() + limit) => None,
        }
    }

    /// Who is in front tells the others what it was told.
    pub(crate) fn tell(&self, told: Option<T>) {
        *lock(&self.stay.queue.told) = told;
    }

    /// What whoever is in front was told last.
    pub(crate) fn told(&self) -> Option<T> {
        lock(&self.stay.queue.told).clone()
    }

    /// Waits until this process gives the lock up. It may have done so just before.
    pub(crate) async fn freed(&self) {
        self.stay.queue.freed.notified().await;
    }

    /// Until when somebody of this process holds the lock.
    pub(crate) fn held_here(&self) -> Option<Instant> {
        let now = Instant::now();
        let leases: Vec<_> = lock(&self.stay.queue.state)
            .leases
            .iter()
            .filter_map(|(_, lease)| lease.upgrade())
            .collect();
        // Not under the lock: it may be the last to let one of them go.
        let untils = leases.iter().map(|lease| lease.until());
        untils.filter(|until| *until > now).max()
    }

    /// Asked for in vain: unless somebody of this process has it, somebody elsewhere does.
    pub(crate) fn refused(&self, round_trip: Duration) {
        let mut state = lock(&self.stay.queue.state);
        state.waited = Some(Instant::now());
        state.turns.round_trip(round_trip);
        if state.leases.iter().all(|(_, lease)| lease.strong_count() == 0) {
            state.turns.refused();
        }
    }

    /// How many processes go first, and since when, if this one has just had its turn.
    pub(crate) fn others_first(&self) -> Option<(u32, Instant)> {
        lock(&self.stay.queue.state).turns.others_first(Instant::now())
    }

    /// Among the processes that wait, behind so many.
    pub(crate) fn behind(&self, in_front: u32) -> Position {
        lock(&self.stay.queue.state)
            .turns
            .behind(in_front, Instant::now())
    }

    /// Got after others: because they did not take their turn, or after they had.
    pub(crate) fn got(&self, position: Position, overtook: bool) {
        let mut state = lock(&self.stay.queue.state);
        state.waited = Some(Instant::now());
        match overtook {
            true => state.turns.overtook(position, Instant::now()),
            false => state.turns.had_their_turn(),
        }
    }

    /// What nodes announce, if this queue listens to them.
    pub(crate) fn announcements(&self) -> Option<Arc<Announcements>> {
        lock(&self.stay.queue.state).announcements.clone()
    }

    /// Listens to the nodes from now on, if it did not before.
    pub(crate) fn listen(&self, nodes: &Nodes, context: &Context) {
        let mut state = lock(&self.stay.queue.state);
        if state.announcements.is_none() {
            let announcements = Announcements::of(&self.stay.key, nodes, &context.runtime);
            state.announcements = Some(Arc::new(announcements));
        }
    }
}

impl<T: Send + 'static> Drop for Place<T> {
    fn drop(&mut self) {
        self.stay.queue.waiting.fetch_sub(1, SeqCst);
        self.stay.leave_trace();
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::keys::claim::Heirs;
    use crate::news::News;
    use crate::options::LockOptions;
    use tokio::time::timeout;

    const MOMENT: Duration = Duration::from_millis(1);

    fn enter(queues: &Queues<u32>, key: &Arc<str>) -> Place<u32> {
        queues.enter(key, LockOptions::default().settings().unwrap().request_params())
    }

    async fn is_in_front(place: &mut Place<u32>) -> bool {
        let soon = Some(Instant::now() + MOMENT);
        place.reach_the_front(soon, &Runtime::current().unwrap()).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_come_is_the_first_in_front_and_leavers_are_skipped() {
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
        let key: Arc<str> = "job".into();
        let mut first = enter(&queues, &key);
        assert!(is_in_front(&mut first).await);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (mut place, order) = (enter(&queues, &key), order.clone());
            tasks.push(tokio::spawn(async move {
                assert!(place.reach_the_front(None, &Runtime::current().unwrap()).await);
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
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
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
    async fn news_reach_who_is_in_front_even_if_they_come_first() {
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
        let key: Arc<str> = "job".into();
        let (early, late) = (queues.got(&key, 3, MOMENT).0, queues.got(&key, 3, MOMENT).0);
        early.freed();
        let place = enter(&queues, &key);
        timeout(MOMENT, place.freed())
            .await
            .expect_err("nobody was waiting");
        late.freed();
        timeout(MOMENT, place.freed()).await.unwrap();
        timeout(MOMENT, place.freed()).await.expect_err("heard once");
    }

    #[tokio::test(start_paused = true)]
    async fn whose_turn_it_is_is_remembered_for_a_moment_and_not_when_all_is_over() {
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
        let open = queues.until_closed();
        let key: Arc<str> = "job".into();
        for _ in 0..2 {
            let (holding, _) = queues.got(&key, 1, MOMENT);
            assert_eq!(holding.news(), News::Free, "nobody waits here");
            holding.freed();
            holding.told(0, 3);
            drop(holding);
            assert_eq!(queues.len(), 1);
            let place = enter(&queues, &key);
            assert_eq!(place.others_first().map(|(others, _)| others), Some(3));
            drop(place);
            // Whose turn it is, for a second.
            tokio::time::sleep(Duration::from_secs(1) + REMEMBERED + 2 * MOMENT).await;
            assert_eq!(queues.len(), 0);
        }
        let (holding, _) = queues.got(&key, 1, MOMENT);
        holding.news();
        holding.told(0, 3);
        drop(holding);
        assert_eq!(queues.len(), 1);
        drop(open);
        tokio::time::sleep(MOMENT).await;
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_was_told_the_others_know() {
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
        let (first, second) = (enter(&queues, &"job".into()), enter(&queues, &"job".into()));
        assert_eq!(second.told(), None);
        first.tell(Some(7));
        drop(first);
        assert_eq!(second.told(), Some(7));
    }

    #[test]
    fn a_queue_that_two_leave_at_the_same_time_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let queues = Queues::<u32>::new(&Runtime::current().unwrap(), CancellationToken::new());
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
