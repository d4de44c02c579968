//! Whose turn it is: how long a lock stays among those of one process, and who goes first of several (W1, W2).
//!
//! In one process, the lock passes from one to the next behind its deletion, faster than any other could ask for it. So that
//! this does not go on for ever, a process whose turn is over lets the others go first, as it knows from the nodes how many
//! there are. How long it has to wait for them, it learns: they may be farther away from the nodes than it is itself, or dead.

use std::time::Duration;

use tokio::time::Instant;

/// Most hand-overs in a row while others wait.
const MOST_IN_A_ROW: usize = 16;
/// The turn is over at the first release after this long.
const LONGEST: Duration = Duration::from_millis(500);
/// Who goes next but does not, is waited for this long at least, and at most.
const SHORTEST_SLOT: Duration = Duration::from_millis(5);
const LONGEST_SLOT: Duration = Duration::from_millis(500);
/// The same where it is not for this process's own distance from the nodes.
const LONGEST_LEARNT: Duration = Duration::from_millis(250);
/// From the shortest to more than the longest.
const MOST_DOUBLED: u32 = 6;
/// After this many turns that others took in time, it is tried whether a shorter slot would do.
const MANY_TURNS: u32 = 8;
/// Who was waited for in vain for the longest slot is not, for so long, and for twice as long each time it happens again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);
/// All those who are said to go first are waited for this long at most: they may be dead, or none of ours.
const LONGEST_COURTESY: Duration = Duration::from_secs(10);
/// A process that let the others go first may have been forgotten after this long.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// The turns of one process at one lock.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// So many processes wait elsewhere, as far as is known.
    others: u32,
    told: Option<Instant>,
    began: Option<Instant>,
    /// Hand-overs left in this turn.
    left: usize,
    /// The turn is over since then.
    over: Option<Instant>,
    /// How long the nodes took last.
    round_trip: Duration,
    patience: Patience,
}

/// What waiting for others has come to.
#[derive(Debug, Default)]
struct Patience {
    /// How often the slot was doubled because they did not take their turn in it.
    doubled: u32,
    /// They did not the last time.
    missed: bool,
    /// How many turns in a row they have taken since.
    taken: u32,
    /// How long they are not waited for any more than for those who are as near as this process, if that was in vain; and until when.
    pause: Duration,
    until: Option<Instant>,
}

impl Turns {
    /// The lock was got, and `waiting` more of this process want it.
    pub(crate) fn got(&mut self, waiting: usize, now: Instant) {
        if self.over.take().is_some() || self.began.is_none() {
            self.began = Some(now);
            self.left = waiting.min(MOST_IN_A_ROW);
        }
    }

    /// The lock is being given up. Whether it stays in the process.
    pub(crate) fn given_up(&mut self, anybody_waits: bool, now: Instant) -> bool {
        let is_long = self.began.is_none_or(|began| now - began >= LONGEST);
        let stays = anybody_waits && (self.others == 0 || self.left > 0 && !is_long);
        if !stays {
            self.over = Some(now);
            self.began = None;
        } else if self.others > 0 {
            self.left -= 1;
        }
        stays
    }

    /// Somebody elsewhere has it.
    pub(crate) fn refused(&mut self) {
        self.began = None;
    }

    /// So many wait elsewhere.
    ///
    /// That there are fewer is believed after a while only, or when they do not come: connections for announcements break, and are
    /// made again.
    pub(crate) fn told(&mut self, others: u32, now: Instant) {
        let is_old = self.told.is_none_or(|told| now - told >= FORGOTTEN);
        if others >= self.others || is_old || self.patience.missed {
            self.others = others;
            self.told = Some(now);
        }
    }

    /// The nodes took so long.
    pub(crate) fn round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Behind so many of the others.
    pub(crate) fn behind(&self, in_front: u32, now: Instant) -> Position {
        Position {
            in_front,
            slot: self.slot(now),
        }
    }

    fn slot(&self, now: Instant) -> Duration {
        let near = self
            .round_trip
            .saturating_mul(2)
            .clamp(SHORTEST_SLOT, LONGEST_SLOT);
        match self.patience.until {
            Some(until) if now < until => near,
            _ => near
                .saturating_mul(1 << self.patience.doubled)
                .min(LONGEST_LEARNT.max(near)),
        }
    }

    /// The lock was got because others, who were waited for like that, did not take it.
    pub(crate) fn overtook(&mut self, position: Position, now: Instant) {
        let patience = &mut self.patience;
        (patience.missed, patience.taken) = (true, 0);
        if position.slot < LONGEST_LEARNT {
            // What they do not take while they are hardly waited for says nothing.
            let is_paused = patience.until.is_some();
            patience.doubled = (patience.doubled + u32::from(!is_paused)).min(MOST_DOUBLED);
        } else {
            patience.pause = (2 * patience.pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            patience.until = Some(now + patience.pause);
        }
    }

    /// The lock was got after all others who go first had had it.
    pub(crate) fn had_their_turn(&mut self) {
        let patience = &mut self.patience;
        patience.missed = false;
        patience.taken += 1;
        if patience.taken == MANY_TURNS {
            patience.taken = 0;
            patience.doubled = patience.doubled.saturating_sub(1);
            (patience.pause, patience.until) = (Duration::ZERO, None);
        }
    }

    /// How many go first, if the turn is over, and since when it is.
    pub(crate) fn others_first(&self, now: Instant) -> Option<(u32, Instant)> {
        self.over
            .filter(|over| self.others > 0 && now - *over < FORGOTTEN)
            .map(|over| (self.others, over))
    }
}

/// The position of a process among those who wait for one lock. Each release that is announced brings it one forward; it has its
/// turn when it is in front, or when all those in front of it have let theirs pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) in_front: u32,
    /// How long the others are waited for, each.
    slot: Duration,
}

impl Position {
    /// How long the others are waited for when the lock is free.
    pub(crate) fn courtesy(&self) -> Duration {
        self.slot.saturating_mul(self.in_front).min(LONGEST_COURTESY)
    }

    /// The same when somebody is said to take it.
    pub(crate) fn patience(&self) -> Duration {
        self.courtesy() + 2 * self.slot
    }

    /// Somebody's turn begins.
    pub(crate) fn one_forward(&mut self) {
        self.in_front = self.in_front.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn where_nobody_else_waits_it_stays_for_as_long_as_somebody_wants_it() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.got(0, start);
        for millis in 0..10_000 {
            assert!(turns.given_up(true, start + MILLI * millis));
            turns.got(3, start + MILLI * millis);
        }
        assert!(!turns.given_up(false, start));
        assert_eq!(turns.others_first(start), None);
    }

    #[tokio::test(start_paused = true)]
    async fn where_others_wait_all_who_were_there_have_it_once() {
        for waiting in 0..40 {
            let (mut turns, start) = (Turns::default(), Instant::now());
            turns.told(2, start);
            for _ in 0..3 {
                turns.got(waiting, start);
                for _ in 0..waiting.min(MOST_IN_A_ROW) {
                    assert!(turns.given_up(true, start), "{waiting}");
                    turns.got(40, start);
                }
                assert!(!turns.given_up(true, start), "{waiting}");
                assert_eq!(turns.others_first(start), Some((2, start)));
            }
            turns.told(0, start);
            assert!(turns.others_first(start).is_some());
            turns.told(0, start + FORGOTTEN);
            assert_eq!(turns.others_first(start), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_turns_end_and_are_forgotten() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.told(1, start);
        turns.got(10, start);
        let end = start + LONGEST - MILLI;
        assert!(turns.given_up(true, end));
        assert!(!turns.given_up(true, end + MILLI));
        assert!(turns.others_first(end + FORGOTTEN).is_some());
        assert!(turns.others_first(end + MILLI + FORGOTTEN).is_none());
        // Lost to somebody elsewhere, who has had a turn since.
        turns.got(10, start);
        turns.refused();
        turns.got(10, end);
        assert!(turns.given_up(true, end + LONGEST - MILLI));
    }

    #[test]
    fn the_first_does_not_wait_and_nobody_waits_for_ever() {
        let turns = |round_trip| Turns {
            round_trip,
            ..Turns::default()
        };
        let now = Instant::now();
        let mut position = turns(MILLI).behind(3, now);
        let mut earlier = position.courtesy() + MILLI;
        for _ in 0..3 {
            assert!(position.courtesy() < earlier && position.patience() > position.courtesy());
            earlier = position.courtesy();
            position.one_forward();
        }
        assert_eq!(position.courtesy(), Duration::ZERO);
        position.one_forward();
        assert_eq!(position.in_front, 0);
        for round_trip in [Duration::ZERO, MILLI, Duration::MAX / 8] {
            let position = turns(round_trip).behind(u32::MAX, now);
            assert_eq!(position.courtesy(), LONGEST_COURTESY);
            assert!(position.patience() <= LONGEST_COURTESY + 2 * LONGEST_SLOT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_waited_for_longer_until_they_take_their_turn() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.told(1, now);
        turns.round_trip(MILLI);
        let slots = [5, 10, 20, 40].map(|millis| {
            let position = turns.behind(1, now);
            turns.overtook(position, now);
            (position.slot, millis * MILLI)
        });
        assert!(slots.iter().all(|(slot, expected)| slot == expected), "{slots:?}");
        for _ in 0..MANY_TURNS {
            assert_eq!(turns.slot(now), 80 * MILLI);
            turns.had_their_turn();
        }
        assert_eq!(turns.slot(now), 40 * MILLI);
    }

    #[tokio::test(start_paused = true)]
    async fn the_dead_are_waited_for_ever_more_rarely() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.told(1, start);
        let mut now = start;
        let mut waited = Duration::ZERO;
        while now - start < Duration::from_secs(600) {
            let position = turns.behind(1, now);
            waited += position.slot.saturating_sub(SHORTEST_SLOT);
            now += position.slot + MILLI;
            turns.overtook(position, now);
        }
        assert!(SHORTEST_SLOT * (1 << MOST_DOUBLED) >= LONGEST_LEARNT);
        assert!(waited > 5 * LONGEST_LEARNT, "given up for good: {waited:?}");
        assert!(waited < Duration::from_secs(12), "{waited:?} of 600 s");
    }
}
