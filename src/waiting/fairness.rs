//! Which process is next: a process whose turn ends names its successor (`docs/design.md`, "Turns").
//!
//! A state machine without a clock: its callers say what happened, and when. A wrong guess costs only a slot.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::node::{LONGEST_SLOT, ReleaseKind, ReleaseNotice, Sender, Successor, Turn, WaitNotice, WaiterId};

/// Most hand-overs in a row while another process waits.
const MOST_IN_A_ROW: usize = 16;
/// A turn ends with the first release after this time.
const LONGEST_TURN: Duration = Duration::from_millis(500);
/// The slot of a process that is as near to the nodes as can be.
const SHORTEST_SLOT: Duration = Duration::from_millis(5);
/// How much later than all others a process asks after its turn.
const BEHIND_ALL: Duration = Duration::from_millis(2);
/// A process ignores roll calls for this time after it said that it waits: a process that cannot listen calls at each release.
const ROLL_CALL_PAUSE: Duration = Duration::from_millis(50);
/// A waiting process says so again after this time, which doubles each time up to the longest: another process may not have
/// listened yet, and calls no roll if it knows of others.
const FIRST_REPEAT: Duration = Duration::from_millis(100);
const LONGEST_REPEAT: Duration = Duration::from_millis(500);
/// The longest list, and the most processes whose last announcements are remembered.
const MOST_LISTED: usize = 256;

/// What this process knows of the processes that want one lock.
#[derive(Debug)]
pub(crate) struct Fairness {
    id: WaiterId,
    sent: u32,
    /// The processes that have said that they wait, in the order in which this one heard it.
    list: VecDeque<Successor>,
    /// The last announcements of each process, to tell late copies: each node sends one.
    heard: VecDeque<LastNumbers>,
    /// The process that is next, and the end of its slot.
    named: Option<(Successor, Instant)>,
    /// From when on this process may ask. `None`: at any time.
    gate: Option<Instant>,
    /// Whether this process has said that it waits and may be in the lists of others; and when it last said so.
    has_announced: bool,
    announced_at: Option<Instant>,
    /// The time until it says so again.
    repeat_after: Duration,
    /// This process's turn; `None` if it has none.
    turn: Option<OwnTurn>,
    round_trip: Duration,
}

/// The numbers of the last announcements of a process: that it waits, and that it has released the lock.
#[derive(Debug)]
struct LastNumbers {
    id: WaiterId,
    waits: u32,
    released: u32,
}

#[derive(Debug)]
struct OwnTurn {
    began: Instant,
    /// Hand-overs left, while another process waits.
    left: usize,
}

impl Fairness {
    pub(crate) fn new() -> Fairness {
        Fairness {
            id: WaiterId(fastrand::u64(..)),
            sent: 0,
            list: VecDeque::new(),
            heard: VecDeque::new(),
            named: None,
            gate: None,
            has_announced: false,
            announced_at: None,
            repeat_after: FIRST_REPEAT,
            turn: None,
            round_trip: Duration::ZERO,
        }
    }

    pub(crate) fn round_trip(&mut self, round_trip: Duration) {
        // Zero if no node has answered.
        if !round_trip.is_zero() {
            self.round_trip = round_trip;
        }
    }

    /// Records that this process has acquired the lock. `waiting` more of its tasks want it.
    pub(crate) fn got(&mut self, waiting: usize, now: Instant) {
        self.taken_by(self.id, now);
        (self.has_announced, self.gate) = (false, None);
        self.turn.get_or_insert(OwnTurn {
            began: now,
            left: waiting.min(MOST_IN_A_ROW),
        });
    }

    /// Ends this process's turn: another process has the lock.
    pub(crate) fn refused(&mut self) {
        self.turn = None;
    }

    /// Returns the announcement of a release: whether the lock stays in this process, and which process is next.
    pub(crate) fn given_up(&mut self, anybody_waits: bool, now: Instant) -> ReleaseNotice {
        let is_over = |turn: &OwnTurn| turn.left == 0 || now - turn.began >= LONGEST_TURN;
        let is_over = self.turn.as_ref().is_none_or(is_over);
        let stays = anybody_waits && (self.list.is_empty() || !is_over);
        let (kind, next) = if stays {
            let next = self.list.front().copied();
            if let Some(turn) = self.turn.as_mut().filter(|_| next.is_some()) {
                turn.left -= 1;
            }
            (ReleaseKind::HandedOver, next)
        } else {
            let next = self.list.pop_front();
            (self.turn, self.has_announced) = (None, false);
            self.name(next, self.round_trip + BEHIND_ALL, now);
            (ReleaseKind::Free, next)
        };
        let turn = Some(Turn {
            from: self.sender(),
            next,
        });
        ReleaseNotice { kind, turn }
    }

    /// Lists a process that has said that it waits.
    pub(crate) fn heard_waits(&mut self, notice: WaitNotice) {
        let WaitNotice { from, slot } = notice;
        if from.id == self.id {
            return self.change_id_if_forged(from);
        }
        let heard = self.heard_of(from.id);
        if from.count <= heard.waits.max(heard.released) {
            return;
        }
        heard.waits = from.count;
        let slot = slot.min(LONGEST_SLOT);
        let successor = Successor { id: from.id, slot };
        if let Some(listed) = self.list.iter_mut().find(|listed| listed.id == from.id) {
            *listed = successor;
        } else if self.list.len() < MOST_LISTED {
            self.list.push_back(successor);
        }
    }

    /// Takes in a release. Returns whether another process announced it.
    pub(crate) fn heard_release(&mut self, notice: ReleaseNotice, now: Instant) -> bool {
        let ReleaseNotice { kind, turn } = notice;
        let Some(Turn { from, next }) = turn else {
            // Abandoned, or announced by an earlier version, which does not name the next process.
            if kind != ReleaseKind::Abandoned {
                self.call_roll(now);
            }
            return true;
        };
        if from.id == self.id {
            self.change_id_if_forged(from);
            return false;
        }
        // A shorter slot is forged, and would only cause announcements.
        let next = next.filter(|next| next.slot >= SHORTEST_SLOT);
        let heard = self.heard_of(from.id);
        if from.count <= heard.released {
            return true;
        }
        heard.released = from.count;
        let waits_again = heard.waits > from.count;
        self.taken_by(from.id, now);
        if next.is_none() {
            self.call_roll(now);
        }
        if kind == ReleaseKind::Free {
            if !waits_again {
                self.unlist(from.id);
            }
            self.name(next, self.round_trip, now);
        }
        true
    }

    /// Returns from when on this process may ask; `None` if no other one goes first. `random` spreads processes that wait alike.
    pub(crate) fn gate(&self, random: u32) -> Option<Instant> {
        let spread = Duration::from_millis(1) + (self.round_trip / 4).min(LONGEST_SLOT);
        let share = f64::from(random) / f64::from(u32::MAX);
        self.gate.map(|gate| gate + spread.mul_f64(share))
    }

    /// Returns whether this process is next, and its slot has not passed.
    pub(crate) fn is_next(&self, now: Instant) -> bool {
        self.named
            .is_some_and(|(next, until)| next.id == self.id && now < until)
    }

    /// Returns the announcement that this process waits; `None` if it has just made it, or is next.
    pub(crate) fn next_wait_notice(&mut self, now: Instant) -> Option<WaitNotice> {
        let is_recent = self.announced_at.is_some_and(|at| now - at < self.repeat_after);
        if self.has_announced && is_recent || self.is_next(now) {
            return None;
        }
        self.repeat_after = match self.has_announced {
            true => (2 * self.repeat_after).min(LONGEST_REPEAT),
            false => FIRST_REPEAT,
        };
        (self.has_announced, self.announced_at) = (true, Some(now));
        Some(WaitNotice {
            from: self.sender(),
            slot: (self.round_trip.saturating_mul(3) / 2 + SHORTEST_SLOT).min(LONGEST_SLOT),
        })
    }

    /// Records which process is next. If it is another one, this process may ask `later` after that one's slot.
    fn name(&mut self, next: Option<Successor>, later: Duration, now: Instant) {
        if let Some(next) = next {
            self.unlist(next.id);
        }
        let is_ours = next.is_some_and(|next| next.id == self.id);
        self.has_announced &= !is_ours;
        self.named = next.map(|next| (next, now + next.slot.min(LONGEST_SLOT)));
        self.gate = self
            .named
            .filter(|_| !is_ours)
            .map(|(_, until)| until + later.min(LONGEST_SLOT));
    }

    /// Records which process has acquired the lock.
    fn taken_by(&mut self, id: WaiterId, now: Instant) {
        let Some((next, until)) = self.named.take().filter(|(next, _)| next.id != id) else {
            return;
        };
        if now < until {
            // Its request was in flight when the successor was named, so that one stays first.
            if next.id != self.id && self.list.len() < MOST_LISTED {
                self.list.push_front(next);
            }
        } else if next.slot > SHORTEST_SLOT {
            // The slot passed unused. Other far processes may be dead, too, until they say again that they wait.
            self.list
                .iter_mut()
                .for_each(|listed| listed.slot = SHORTEST_SLOT);
            self.has_announced = false;
        }
    }

    /// Makes this process say again that it waits. A release named no process, so its sender may not know of this one.
    fn call_roll(&mut self, now: Instant) {
        if self.announced_at.is_none_or(|at| now - at >= ROLL_CALL_PAUSE) {
            self.has_announced = false;
        }
    }

    fn unlist(&mut self, id: WaiterId) {
        self.list.retain(|listed| listed.id != id);
    }

    fn heard_of(&mut self, id: WaiterId) -> &mut LastNumbers {
        let at = self.heard.iter().position(|heard| heard.id == id);
        let at = at.unwrap_or_else(|| {
            if self.heard.len() == MOST_LISTED {
                self.heard.pop_front();
            }
            self.heard.push_back(LastNumbers {
                id,
                waits: 0,
                released: 0,
            });
            self.heard.len() - 1
        });
        &mut self.heard[at]
    }

    /// Takes a new id if another process uses this one with larger numbers: this process's announcements would be ignored as old.
    fn change_id_if_forged(&mut self, from: Sender) {
        if from.count > self.sent {
            (self.id, self.sent, self.has_announced) = (WaiterId(fastrand::u64(..)), 0, false);
        }
    }

    fn sender(&mut self) -> Sender {
        self.sent = self.sent.saturating_add(1);
        Sender {
            id: self.id,
            count: self.sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn waits(id: u64, count: u32, slot: u64) -> WaitNotice {
        let from = Sender {
            id: WaiterId(id),
            count,
        };
        let slot = MILLI * slot as u32;
        WaitNotice { from, slot }
    }

    fn free(id: u64, count: u32, next: Option<Successor>) -> ReleaseNotice {
        let from = Sender {
            id: WaiterId(id),
            count,
        };
        ReleaseNotice {
            kind: ReleaseKind::Free,
            turn: Some(Turn { from, next }),
        }
    }

    fn successor(id: u64, slot: u64) -> Option<Successor> {
        Some(Successor {
            id: WaiterId(id),
            slot: MILLI * slot as u32,
        })
    }

    fn next(notice: ReleaseNotice) -> Option<u64> {
        notice.turn?.next.map(|next| next.id.0)
    }

    fn listed(fairness: &Fairness) -> Vec<u64> {
        fairness.list.iter().map(|listed| listed.id.0).collect()
    }

    fn knowing(ids: &[u64]) -> Fairness {
        let mut fairness = Fairness::new();
        ids.iter().for_each(|id| fairness.heard_waits(waits(*id, 1, 20)));
        fairness
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_stays_where_nobody_else_waits() {
        let (mut fairness, start) = (Fairness::new(), Instant::now());
        fairness.got(0, start);
        for millis in 0..10_000 {
            let notice = fairness.given_up(true, start + MILLI * millis);
            assert_eq!((notice.kind, next(notice)), (ReleaseKind::HandedOver, None));
            fairness.got(3, start + MILLI * millis);
        }
        assert_eq!(fairness.given_up(false, start).kind, ReleaseKind::Free);
        assert_eq!(fairness.gate(0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_when_all_tasks_that_were_waiting_have_had_the_lock() {
        let start = Instant::now();
        for waiting in 0..40 {
            let mut fairness = knowing(&[1, 2, 3]);
            for named in 1..=3 {
                fairness.got(waiting, start);
                for _ in 0..waiting.min(MOST_IN_A_ROW) {
                    let notice = fairness.given_up(true, start);
                    assert_eq!(
                        (notice.kind, next(notice)),
                        (ReleaseKind::HandedOver, Some(named))
                    );
                    fairness.got(40, start);
                }
                let notice = fairness.given_up(true, start);
                assert_eq!(
                    (notice.kind, next(notice)),
                    (ReleaseKind::Free, Some(named)),
                    "{waiting}"
                );
                assert_eq!(fairness.gate(0), Some(start + 20 * MILLI + BEHIND_ALL));
                fairness.heard_release(free(named, 2, None), start);
            }
            fairness.got(0, start);
            assert_eq!(fairness.given_up(true, start).kind, ReleaseKind::HandedOver);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_after_half_a_second_or_when_another_process_has_had_the_lock() {
        let (mut fairness, start) = (knowing(&[1, 2]), Instant::now());
        fairness.got(10, start);
        let end = start + LONGEST_TURN - MILLI;
        assert_eq!(fairness.given_up(true, end).kind, ReleaseKind::HandedOver);
        fairness.got(10, end);
        assert_eq!(fairness.given_up(true, end + MILLI).kind, ReleaseKind::Free);
        fairness.got(10, start);
        fairness.refused();
        fairness.got(10, end);
        assert_eq!(
            fairness.given_up(true, end + LONGEST_TURN - MILLI).kind,
            ReleaseKind::HandedOver
        );
    }

    #[tokio::test(start_paused = true)]
    async fn processes_are_named_in_the_order_in_which_they_were_heard_and_once() {
        let (mut fairness, now) = (knowing(&[3, 1, 2]), Instant::now());
        // A copy, and a new announcement of a listed process.
        fairness.heard_waits(waits(3, 1, 20));
        fairness.heard_waits(waits(1, 2, 7));
        assert_eq!(listed(&fairness), [3, 1, 2]);
        assert_eq!(fairness.list[1].slot, 7 * MILLI);
        for named in [Some(3), Some(1), Some(2), None] {
            assert_eq!(next(fairness.given_up(false, now)), named);
        }
        // A late copy, from another node.
        fairness.heard_waits(waits(3, 1, 20));
        assert_eq!(next(fairness.given_up(false, now)), None);
        // Announcements may arrive in another order than they were sent.
        fairness.heard_waits(waits(3, 4, 20));
        fairness.heard_release(free(3, 3, None), now);
        fairness.heard_waits(waits(1, 3, 20));
        fairness.heard_release(free(1, 5, None), now);
        fairness.heard_waits(waits(1, 4, 20));
        for named in [Some(3), None] {
            assert_eq!(next(fairness.given_up(false, now)), named);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_named_process_asks_at_once_and_all_others_a_slot_later() {
        let (mut named, now) = (knowing(&[1, 2, 3]), Instant::now());
        let own = named.id.0;
        let notice = free(1, 2, successor(own, 20));
        assert!(named.next_wait_notice(now).is_some());
        assert!(named.heard_release(notice, now));
        assert_eq!((named.gate(0), listed(&named)), (None, vec![2, 3]));
        assert!(named.next_wait_notice(now).is_none(), "it is next");
        assert!(
            named.next_wait_notice(now + 20 * MILLI).is_some(),
            "it has missed its slot"
        );

        let mut other = knowing(&[1, 2, own]);
        other.round_trip(4 * MILLI);
        other.heard_release(notice, now);
        assert_eq!((other.gate(0), listed(&other)), (Some(now + 24 * MILLI), vec![2]));
        assert_eq!(other.gate(u32::MAX), Some(now + 26 * MILLI));
        // A late copy changes nothing.
        other.heard_release(free(2, 2, None), now + 20 * MILLI);
        other.heard_release(notice, now + 20 * MILLI);
        assert_eq!((other.gate(0), listed(&other)), (None, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_was_overtaken_is_first_again_and_one_that_missed_its_slot_is_not() {
        let (start, slot) = (Instant::now(), 20 * MILLI);
        let named = |fairness: &mut Fairness| {
            assert!(fairness.next_wait_notice(start).is_some());
            fairness.heard_release(free(1, 2, successor(2, 20)), start);
            assert_eq!(listed(fairness), [3]);
        };
        let mut fairness = knowing(&[1, 2, 3]);
        named(&mut fairness);
        fairness.heard_release(free(4, 1, successor(3, 20)), start + slot - MILLI);
        assert_eq!(listed(&fairness), [2]);

        let mut fairness = knowing(&[1, 2, 3]);
        named(&mut fairness);
        fairness.got(0, start + slot);
        assert_eq!(listed(&fairness), [3]);
        // It may be dead, and so may others that are as far away.
        assert_eq!(fairness.list[0].slot, SHORTEST_SLOT);
        assert!(fairness.next_wait_notice(start + slot).is_some());

        let mut fairness = knowing(&[1, 2, 3]);
        named(&mut fairness);
        fairness.heard_release(free(2, 2, None), start + slot);
        assert_eq!((listed(&fairness), fairness.list[0].slot), (vec![3], slot));
    }

    #[tokio::test(start_paused = true)]
    async fn a_roll_call_is_answered_unless_that_was_just_done() {
        let (mut fairness, start) = (Fairness::new(), Instant::now());
        assert!(fairness.next_wait_notice(start).is_some());
        assert!(fairness.next_wait_notice(start).is_none());
        fairness.heard_release(free(1, 1, None), start);
        assert!(fairness.next_wait_notice(start).is_none());
        let later = start + ROLL_CALL_PAUSE;
        fairness.heard_release(free(1, 2, successor(2, 5)), later);
        assert!(fairness.next_wait_notice(later).is_none());
        for (kind, is_answered) in [(ReleaseKind::Abandoned, false), (ReleaseKind::HandedOver, true)] {
            fairness.heard_release(ReleaseNotice { kind, turn: None }, later);
            assert_eq!(
                fairness.next_wait_notice(later).is_some(),
                is_answered,
                "{kind:?}"
            );
        }
        fairness.got(0, later);
        assert!(fairness.next_wait_notice(later).is_some());
        // Repeated for processes that have not listened yet.
        let mut announced = later;
        for millis in [100, 200, 400, 500, 500] {
            assert!(
                fairness
                    .next_wait_notice(announced + MILLI * (millis - 1))
                    .is_none(),
                "{millis}"
            );
            announced += MILLI * millis;
            assert!(fairness.next_wait_notice(announced).is_some(), "{millis}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_was_overtaken_is_handed_over_without_a_wait() {
        let (mut fairness, start) = (Fairness::new(), Instant::now());
        fairness.heard_release(free(1, 1, successor(2, 250)), start);
        assert!(fairness.gate(0).is_some());
        fairness.got(3, start);
        assert_eq!(fairness.given_up(true, start).kind, ReleaseKind::HandedOver);
        assert_eq!(fairness.gate(0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn forged_announcements_silence_no_process() {
        let (mut fairness, now) = (Fairness::new(), Instant::now());
        let own = fairness.next_wait_notice(now).unwrap().from;
        fairness.heard_waits(waits(own.id.0, own.count, 5));
        assert_eq!(fairness.id, own.id);
        fairness.heard_waits(waits(own.id.0, u32::MAX, 5));
        let again = fairness.next_wait_notice(now).unwrap().from;
        assert!(again.id != own.id && again.count == 1, "{again:?}");
        // Forged slots that are too short do not make it announce again and again.
        fairness.heard_release(
            free(
                1,
                1,
                Some(Successor {
                    id: again.id,
                    slot: MILLI,
                }),
            ),
            now,
        );
        assert!(fairness.next_wait_notice(now).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn dead_processes_cost_a_slot_once_and_soon_a_short_one() {
        let dead: Vec<u64> = (1..=200).collect();
        let mut fairness = Fairness::new();
        dead.iter()
            .for_each(|id| fairness.heard_waits(waits(*id, 1, 245)));
        let mut now = Instant::now();
        let start = now;
        while !fairness.list.is_empty() {
            fairness.got(5, now);
            while fairness.given_up(true, now).kind == ReleaseKind::HandedOver {
                fairness.got(5, now);
            }
            now = fairness.gate(0).unwrap();
        }
        let most = 245 * MILLI + 199 * SHORTEST_SLOT + 200 * BEHIND_ALL;
        assert_eq!(now - start, most);
    }

    #[tokio::test(start_paused = true)]
    async fn forged_announcements_neither_fill_the_lists_nor_delay_the_gate() {
        let (mut fairness, now) = (Fairness::new(), Instant::now());
        fairness.round_trip(Duration::MAX / 8);
        for id in 0..10_000 {
            fairness.heard_waits(waits(id, u32::MAX, u64::from(u32::MAX)));
            fairness.heard_release(free(id + 1, u32::MAX, successor(id, 60_000)), now);
        }
        assert!(fairness.list.len() <= MOST_LISTED && fairness.heard.len() <= MOST_LISTED);
        assert!(fairness.gate(0).unwrap() - now <= 2 * LONGEST_SLOT);
        for id in 0..300 {
            fairness.heard_waits(waits(20_000 + id, 1, 5));
        }
        assert_eq!(fairness.list.len(), MOST_LISTED);
        assert!(fairness.next_wait_notice(now).unwrap().slot <= LONGEST_SLOT);
    }
}
