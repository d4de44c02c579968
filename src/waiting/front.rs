//! Who is in front of a queue: when the nodes are asked again (W1, W2).
//!
//! Asked too early, they say no. So it waits for a reason: that the lock is given up in this process, that a quorum of nodes
//! announces its release, or that a quorum of keys has expired. Where nobody would tell, it asks again and again, less and less
//! often.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::context::Context;
use crate::news::News;
use crate::node::{OwnerToken, Reply};
use crate::options::MAX_TTL;
use crate::protocol::election;
use crate::protocol::quorum::{quorum, vouched_for};
use crate::round::Nodes;
use crate::sys::timer::sleep_until;
use crate::votes::Votes;

use super::fairness::Position;
use super::queue::Place;
use super::releases::{Announcements, Hearing};
use super::retry::Waiting;

/// Timers and expiries have the resolution of a millisecond.
const TICK: Duration = Duration::from_millis(1);

pub(crate) struct Head<'a, T: Clone + Send + 'static> {
    place: &'a Place<T>,
    nodes: &'a Nodes,
    context: &'a Context,
    /// How long nodes take to answer.
    round_trip: Duration,
    /// Which nodes it was listening to when it last asked.
    hearing: Hearing,
    /// What each said.
    seen: Vec<Seen>,
    /// Among the processes that wait.
    position: Option<Position>,
    /// The end of this process's last turn that it has taken notice of, and until when it lets others go first.
    let_go_first: Option<(Instant, Instant)>,
    /// It asks when others whose turn it is have been waited for.
    waits_for_others: bool,
}

/// What the one in front goes by while it waits.
struct Outlook {
    /// When to ask without a reason, and after what delay once nobody would tell any more.
    poll: Instant,
    delay: Duration,
    /// The same for who would be told, and whether it has relied on that.
    patient: Instant,
    relied: bool,
    /// When there is a chance, and it is ours.
    chance: Option<Instant>,
    /// That is, if whoever it was passed on to does not take it.
    passed_on: bool,
    announcements: Option<Arc<Announcements>>,
}

impl Outlook {
    async fn heard(&self) {
        match &self.announcements {
            Some(announcements) => announcements.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// A node as it was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It had nobody's key but ours, which is being deleted.
    Free,
    Held {
        /// `None` if it is no lock of this library's.
        by: Option<OwnerToken>,
        /// `None` if it does not expire.
        until: Option<Instant>,
    },
    /// The others had settled the attempt before it answered.
    Unheard,
    Unknown,
}

impl<'a, T: Clone + Send + 'static> Head<'a, T> {
    pub(crate) fn new(place: &'a Place<T>, nodes: &'a Nodes, context: &'a Context) -> Self {
        Head {
            place,
            nodes,
            context,
            round_trip: Duration::ZERO,
            hearing: Hearing::none(nodes.len()),
            seen: vec![Seen::Unknown; nodes.len()],
            position: None,
            let_go_first: None,
            waits_for_others: false,
        }
    }

    /// It asks now.
    pub(crate) fn asks(&mut self) {
        self.hearing = match self.place.announcements() {
            Some(announcements) => {
                announcements.forget();
                announcements.hearing()
            }
            None => Hearing::none(self.nodes.len()),
        };
    }

    /// It was told this: somebody else has it. Those who answered took so long.
    pub(crate) fn was_told(&mut self, votes: &Votes, round_trip: Duration) {
        let now = Instant::now();
        self.round_trip = round_trip;
        let mut listeners = vec![0; self.nodes.len()];
        for ((seen, listeners), vote) in self.seen.iter_mut().zip(&mut listeners).zip(votes.iter()) {
            *seen = match vote.answer {
                Some(Ok(Reply::Granted { .. })) => Seen::Free,
                Some(Ok(Reply::Held {
                    remaining,
                    holder,
                    listeners: others,
                })) => {
                    *listeners = others;
                    Seen::Held {
                        by: holder,
                        until: remaining.map(|left| now + left.min(MAX_TTL) + TICK),
                    }
                }
                None => Seen::Unheard,
                Some(_) => Seen::Unknown,
            };
        }
        self.place.refused(round_trip);
        self.waits_for_others = false;
        if let Some((_, until)) = &mut self.let_go_first {
            // They have gone.
            *until = now;
        }
        // The holder's process most often listens, too, for others of its own; it goes last.
        let own = self.hearing.of_any();
        let in_front = vouched_for(listeners).saturating_sub(1 + u32::from(own));
        let in_front = self.position.map_or(in_front, |position| position.in_front);
        self.position = Some(self.place.behind(in_front));
        if self.holder().is_some() && self.place.held_here().is_none() {
            self.place.listen(self.nodes, self.context);
        }
    }

    /// It has got the lock.
    pub(crate) fn got(&self) {
        if let Some(position) = self.position {
            let announcements = self.place.announcements();
            // They may have had it, and have released it just before it was asked for.
            let took_it = announcements.is_some_and(|announcements| announcements.is_there_news());
            self.place.got(position, self.waits_for_others && !took_it);
        }
    }

    /// NodeBaseline it has asked for the first time: waits while others have their turn; and, if it is known what nodes say, while
    /// somebody of this process has it.
    pub(crate) async fn wait_for_the_others(&mut self, is_known: bool, waiting: &mut Waiting) {
        if self.place.others_first().is_some() || is_known && self.place.held_here().is_some() {
            self.wait(Instant::now(), waiting).await;
        }
    }

    /// Waits for a reason to ask; without one, until `poll`. Cancel safe.
    pub(crate) async fn wait(&mut self, poll: Instant, waiting: &mut Waiting) {
        let delay = waiting.delay(fastrand::u32(..));
        let mut outlook = Outlook {
            poll,
            delay,
            patient: Instant::now() + waiting.if_told(delay),
            relied: false,
            chance: self.let_others_go_first(),
            passed_on: false,
            announcements: self.place.announcements(),
        };
        loop {
            let now = Instant::now();
            let next = self.next(&mut outlook, waiting, now);
            let wake = waiting.end().map_or(next, |end| next.min(end));
            if wake <= now {
                return;
            }
            tokio::select! {
                biased;
                () = self.place.freed() => {
                    waiting.has_reason();
                    outlook.chance = self.let_others_go_first();
                    outlook.passed_on = false;
                    outlook.announcements = self.place.announcements();
                    if outlook.chance.is_none() {
                        return;
                    }
                }
                () = outlook.heard() => {}
                () = sleep_until(&self.context.runtime, wake) => {}
            }
        }
    }

    /// When to ask, as it looks `now`.
    fn next(&mut self, outlook: &mut Outlook, waiting: &mut Waiting, now: Instant) -> Instant {
        if let Some(until) = self.place.held_here() {
            return until;
        }
        let announcements = outlook.announcements.as_deref();
        if let Some(news) = announcements.and_then(|announcements| self.news(announcements)) {
            if news == News::GivenBack {
                // Where attempts come to nothing because there are too many, this would bring about the next ones at once.
                let chance = now + self.turn(news).max(outlook.delay);
                outlook.chance = Some(outlook.chance.map_or(chance, |earlier| earlier.min(chance)));
            } else {
                waiting.has_reason();
                outlook.chance = Some(now + self.turn(news));
                outlook.passed_on = news == News::PassedOn;
            }
        }
        let asks = match outlook.chance {
            // However often that is said, it is not relied upon for longer than anything else.
            Some(chance) if outlook.passed_on => chance.min(outlook.patient),
            Some(chance) => chance,
            None => self.without_news(outlook, now),
        };
        self.expiry().map_or(asks, |expiry| expiry.min(asks))
    }

    /// When to ask if nothing is announced and nothing expires.
    fn without_news(&self, outlook: &mut Outlook, now: Instant) -> Instant {
        let would_be_told = |announcements: &Arc<Announcements>| self.would_be_told(announcements);
        match outlook.announcements.as_ref().map_or(Some(false), would_be_told) {
            // Whatever was announced before it listened, it has to ask about.
            None => now,
            Some(true) => {
                outlook.relied = true;
                outlook.patient
            }
            Some(false) => {
                if std::mem::take(&mut outlook.relied) {
                    // Longer than the others take to announce the same.
                    outlook.poll = now + outlook.delay.max(2 * self.round_trip);
                }
                outlook.poll
            }
        }
    }

    /// If this process has just had its turn: when those elsewhere have had theirs, or let it pass.
    fn let_others_go_first(&mut self) -> Option<Instant> {
        let (others, since) = self.place.others_first()?;
        // Once is enough.
        if let Some((turn, until)) = self.let_go_first
            && turn == since
        {
            return (until > Instant::now()).then_some(until);
        }
        self.place.listen(self.nodes, self.context);
        let position = self.place.behind(others);
        self.position = Some(position);
        // Everybody has been seen to be about to get it.
        self.seen.fill(Seen::Unknown);
        let until = since + position.courtesy();
        self.waits_for_others = until > Instant::now();
        self.let_go_first = Some((since, until));
        Some(until)
    }

    fn news(&self, announcements: &Announcements) -> Option<News> {
        let now = Instant::now();
        let is_free = |node: usize| match self.seen[node] {
            Seen::Free => true,
            Seen::Held { until, .. } => until.is_some_and(|until| until <= now),
            Seen::Unheard | Seen::Unknown => false,
        };
        announcements.news(is_free, |node, owner| self.holds(node, owner))
    }

    /// How long after these news it may ask.
    fn turn(&mut self, news: News) -> Duration {
        let position = self.position.get_or_insert_with(|| self.place.behind(0));
        match news {
            News::Free => {
                let courtesy = position.courtesy();
                self.waits_for_others = !courtesy.is_zero();
                position.one_forward();
                courtesy
            }
            News::PassedOn => position.patience(),
            News::GivenBack => position.courtesy(),
        }
    }

    /// Who has a quorum of nodes, and so the lock, if it is one of this library's.
    fn holder(&self) -> Option<OwnerToken> {
        let by = |seen: &Seen| match seen {
            Seen::Held { by, .. } => *by,
            Seen::Free | Seen::Unheard | Seen::Unknown => None,
        };
        election::holder(self.seen.iter().filter_map(by).collect(), self.seen.len())
    }

    fn holds(&self, node: usize, owner: OwnerToken) -> bool {
        matches!(self.seen[node], Seen::Held { by: Some(by), .. } if by == owner)
    }

    /// Whether a quorum of nodes would tell of the release: those that have the holder's key and were listened to when they said
    /// so. `None` if they would only now. Once some have told, the others may have nothing to tell: they may have lost the key, or
    /// be out of the holder's reach.
    fn would_be_told(&self, announcements: &Announcements) -> Option<bool> {
        let holder = self.holder().filter(|holder| !announcements.is_released(*holder));
        let Some(holder) = holder else {
            return Some(false);
        };
        let hearing = announcements.hearing();
        let held = || (0..self.seen.len()).filter(|node| self.holds(*node, holder));
        let need = quorum(self.seen.len());
        let now = held().filter(|node| hearing.of(*node)).count();
        let since = held().filter(|node| hearing.since(&self.hearing, *node)).count();
        match (since >= need, now >= need) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    /// When a quorum of nodes is free because keys have expired. `None` if nothing is known to expire.
    ///
    /// Where nobody has the lock, a node that was not heard may be free. The holder of a lock has most likely got such a node, too.
    fn expiry(&self) -> Option<Instant> {
        let mut untils: Vec<Instant> = Vec::new();
        let mut free = 0;
        let is_held = self.holder().is_some();
        for seen in &self.seen {
            match seen {
                Seen::Free => free += 1,
                Seen::Held {
                    until: Some(until), ..
                } => untils.push(*until),
                Seen::Unheard if !is_held => free += 1,
                Seen::Held { until: None, .. } | Seen::Unheard | Seen::Unknown => {}
            }
        }
        untils.sort_unstable();
        let last = quorum(self.seen.len()).checked_sub(free + 1)?;
        let courtesy = self
            .position
            .map(|position| position.courtesy())
            .unwrap_or_default();
        untils.get(last).map(|until| *until + courtesy)
    }
}
