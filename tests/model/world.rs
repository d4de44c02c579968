//! The protocol as a model: nodes, attempts, and what may happen next.
//!
//! There is no clock: keys expire, messages are late or lost, whenever that hurts most. What the model does not spell
//! out is in it all the same:
//!
//! * A key expires when somebody else is granted it. That it is gone earlier shows only in raises that do nothing, and
//!   a raise may be late for ever. Deletions by the attempt itself are expiries, too.
//! * "Held", "not yours", an error, a lost message and a timeout are one thing, [`Work::Miss`]: the client counts the node
//!   out. The node may have acted, or may do so later.
//! * Giving up, and crashing, is saying nothing any more.
//! * An attempt begins with its first grant: beginning earlier could only find fewer that had won before.

use crate::protocol::fencing::{Certification, Ruling};
use crate::protocol::token::FencingToken;
use crate::set::Set;

/// The rules as they are, or with one left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Complete,
    /// Without F3: the largest counter of a quorum is the token at once.
    LargestIsIssued,
    /// Without the half of F3 that the key must be held: a node raises its counter for anybody.
    RaisedForAnybody,
    /// Without F2's "a node that is ahead never counts": it counts like any other.
    AheadCounts,
}

/// What is checked: `N` nodes, `A` attempts.
#[derive(Clone, Debug)]
pub(crate) struct World<const N: usize, const A: usize> {
    pub(crate) rules: Rules,
    /// Counters begin at 0 up to this, in all combinations.
    pub(crate) spread: u8,
    /// F4: whether winners release, which raises counters whoever holds the key.
    pub(crate) releases: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<const N: usize, const A: usize> {
    pub(crate) nodes: [Node; N],
    pub(crate) attempts: [Attempt<N>; A],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) counter: u8,
    /// The attempt that was granted last, as long as that can still matter.
    pub(crate) key: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt<const N: usize> {
    pub(crate) stage: Stage,
    /// Nodes that the acquire may still reach.
    acquires: Set,
    /// By node: raises on their way to it.
    raises: [Set; N],
    /// By node: counters on their way from it.
    answers: [Set; N],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Idle,
    Trying(Trying),
    /// `raised`: the last node that it needed had been raised. `ordered`: larger than what had been won before it began.
    Won {
        token: u8,
        raised: bool,
        ordered: bool,
    },
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trying {
    certification: Certification,
    /// The largest token that had been won when it began.
    pub(crate) after: u8,
    silent: Set,
    out: Set,
    /// The last raise that was ruled; 0 for none.
    aim: u8,
}

/// What may happen.
///
/// Three kinds of steps are put off until they show, and are part of the step that shows them. Nobody can tell before, and
/// they are as possible later:
///
/// * What a client does by itself, [`Work`], shows when a raise that it has sent takes effect, or when the attempt ends.
/// * F4: a winner's release, which raises the counter whoever holds the key, shows in the node's next answer: `from` is what
///   the counter has become before it. That may be any number from the smallest token issued up to the largest counter.
///   It is more than a release carries, so nothing of a winner has to be remembered but its token.
/// * A grant that nobody waits for any more shows in the next grant, too: `late` of them have come before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The acquire reaches the node and finds the key free, or expired.
    Grant {
        attempt: usize,
        node: usize,
        late: usize,
        from: u8,
    },
    /// As a step by itself where it may show in a release.
    Late { node: usize, from: u8 },
    /// A raise reaches the node and finds the key held by the attempt.
    Raise {
        work: Vec<Work>,
        attempt: usize,
        node: usize,
        to: u8,
        from: u8,
    },
    /// The attempt has won, or cannot win any more.
    End { work: Vec<Work>, attempt: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The client reads an answer.
    Hear { node: usize, counter: u8 },
    /// The client counts the node out.
    Miss { node: usize },
}

fn token(value: u8) -> FencingToken {
    FencingToken::new(value.into()).unwrap()
}

fn value(token: FencingToken) -> u8 {
    token.get().try_into().unwrap()
}

impl Trying {
    /// Whether it waits for the node: for the first answer, or for one to a raise.
    fn waits_for(&self, node: usize) -> bool {
        self.silent.contains(node) || self.aim > 0 && self.is_behind(node, self.aim)
    }

    fn is_behind(&self, node: usize, than: u8) -> bool {
        self.certification
            .behind(token(than))
            .any(|behind| behind == node)
    }

    /// Whether the answer could make a difference.
    fn cares_for(&self, node: usize, counter: u8) -> bool {
        self.silent.contains(node) || self.is_behind(node, counter)
    }

    /// Whether it has heard of a counter above the token it aims at.
    pub(crate) fn sees_one_ahead(&self) -> bool {
        let below = |than| self.certification.behind(than).count();
        self.aim > 0 && below(FencingToken::MAX) > below(token(self.aim + 1))
    }
}

impl<const N: usize> Attempt<N> {
    fn idle() -> Self {
        Attempt {
            stage: Stage::Idle,
            acquires: Set::default(),
            raises: [Set::default(); N],
            answers: [Set::default(); N],
        }
    }

    fn begin(&mut self, after: u8) {
        self.acquires = Set::below(N);
        self.stage = Stage::Trying(Trying {
            certification: Certification::new(N),
            after,
            silent: Set::below(N),
            out: Set::default(),
            aim: 0,
        });
    }

    pub(crate) fn won(&self) -> Option<u8> {
        match self.stage {
            Stage::Won { token, .. } => Some(token),
            _ => None,
        }
    }

    fn is_trying(&self) -> bool {
        matches!(self.stage, Stage::Trying(_))
    }

    /// Whether a raise is on its way to less than it aims at by now.
    pub(crate) fn has_raised_its_aim(&self) -> bool {
        let Stage::Trying(trying) = &self.stage else {
            return false;
        };
        let mut raises = self.raises.iter().flat_map(|to| to.iter());
        raises.any(|to| to < trying.aim.into())
    }

    /// What the client may do by itself.
    fn work(&self) -> Vec<Work> {
        let Stage::Trying(trying) = &self.stage else {
            return Vec::new();
        };
        let mut work = Vec::new();
        for node in 0..N {
            let counters = self.answers[node].iter().map(|counter| counter as u8);
            let news = counters.filter(|counter| trying.cares_for(node, *counter));
            work.extend(news.map(|counter| Work::Hear { node, counter }));
            if trying.waits_for(node) {
                work.push(Work::Miss { node });
            }
        }
        work
    }

    fn does(&mut self, work: Work, rules: Rules) {
        match work {
            Work::Hear { node, counter } => {
                self.answers[node].remove(counter.into());
                self.hear(node, counter, rules);
            }
            Work::Miss { node } => {
                self.answers[node] = Set::default();
                self.miss(node, rules);
            }
        }
    }

    fn listens_to(&self, node: usize) -> bool {
        matches!(&self.stage, Stage::Trying(trying) if !trying.out.contains(node))
    }

    /// The node answers with its counter.
    fn answer(&mut self, node: usize, counter: u8) {
        if self.listens_to(node) {
            self.answers[node].insert(counter.into());
        }
    }

    fn hear(&mut self, node: usize, counter: u8, rules: Rules) {
        let Stage::Trying(trying) = &mut self.stage else {
            return;
        };
        let raised = trying.aim > 0 && trying.is_behind(node, trying.aim);
        let first = trying.silent.contains(node);
        trying.silent.remove(node);
        let counter = match rules {
            Rules::AheadCounts if trying.aim > 0 => counter.min(trying.aim),
            _ => counter,
        };
        trying.certification.counted(node, token(counter));
        self.rule(first.then_some(node), raised, rules);
    }

    fn miss(&mut self, node: usize, rules: Rules) {
        let Stage::Trying(trying) = &mut self.stage else {
            return;
        };
        trying.silent.remove(node);
        trying.out.insert(node);
        trying.certification.out(node);
        self.rule(None, false, rules);
    }

    fn rule(&mut self, new: Option<usize>, raised: bool, rules: Rules) {
        let Stage::Trying(trying) = &mut self.stage else {
            return;
        };
        match trying.certification.rule() {
            Ruling::Wait => {}
            Ruling::Raise(to) if rules == Rules::LargestIsIssued => {
                self.win(value(to), false);
            }
            Ruling::Raise(to) => {
                let grown = value(to) > trying.aim;
                trying.aim = value(to);
                for node in trying.certification.behind(to) {
                    // The others have been sent it.
                    if grown || new == Some(node) {
                        self.raises[node].insert(value(to).into());
                    }
                }
            }
            Ruling::Issue(issued) => self.win(value(issued), raised),
            Ruling::Never => self.stage = Stage::Never,
        }
    }

    fn win(&mut self, token: u8, raised: bool) {
        if let Stage::Trying(trying) = &self.stage {
            self.stage = Stage::Won {
                token,
                raised,
                ordered: token > trying.after,
            };
        }
    }
}

impl<const N: usize, const A: usize> State<N, A> {
    /// The tokens that were issued.
    pub(crate) fn won(&self) -> impl Iterator<Item = u8> {
        self.attempts.iter().filter_map(Attempt::won)
    }

    /// The attempts that do not wait for the node, and whose acquire may still reach it.
    pub(crate) fn late(&self, node: usize) -> impl Iterator<Item = usize> {
        let attempts = self.attempts.iter().enumerate();
        let late =
            attempts.filter(move |(_, attempt)| attempt.acquires.contains(node) && !attempt.listens_to(node));
        late.map(|(number, _)| number)
    }

    /// Whether a node before it differs in nothing but its number, as nobody has come to either of them.
    fn is_like_one_before(&self, node: usize) -> bool {
        let is_new = |node: usize| {
            self.attempts.iter().all(|attempt| match &attempt.stage {
                Stage::Idle => true,
                Stage::Trying(trying) => trying.silent.contains(node) && attempt.acquires.contains(node),
                Stage::Won { .. } | Stage::Never => attempt.acquires.contains(node),
            })
        };
        let counter = self.nodes[node].counter;
        is_new(node) && (0..node).any(|earlier| self.nodes[earlier].counter == counter && is_new(earlier))
    }

    fn largest_counter(&self) -> u8 {
        self.nodes.iter().map(|node| node.counter).max().unwrap()
    }

    /// Forgets what can make no difference any more, so that states which differ only in that are one.
    fn forget(&mut self, rules: Rules) {
        for (number, attempt) in self.attempts.iter_mut().enumerate() {
            for (n, node) in self.nodes.iter_mut().enumerate() {
                // Answers that nobody reads, or that say nothing new.
                attempt.answers[n] = match &attempt.stage {
                    Stage::Trying(trying) => {
                        let news = |counter: &usize| trying.cares_for(n, *counter as u8);
                        attempt.answers[n].iter().filter(news).collect()
                    }
                    _ => Set::default(),
                };
                let is_heard = attempt.listens_to(n);
                if node.key != Some(number) && rules != Rules::RaisedForAnybody {
                    // The acquire has arrived before: the key will not be the attempt's again.
                    attempt.raises[n] = Set::default();
                } else if !is_heard {
                    // The counter is that large already, and nobody reads that it is.
                    attempt.raises[n] = attempt.raises[n].above(node.counter.into());
                }
                // Nothing will come that asks whose the key is.
                if node.key == Some(number) && attempt.raises[n].is_empty() && !is_heard {
                    node.key = None;
                }
            }
        }
    }
}

impl<const N: usize, const A: usize> World<N, A> {
    /// All starting counters, up to what makes no difference: the order of the nodes, and a number added to all.
    pub(crate) fn starts(&self) -> Vec<State<N, A>> {
        let mut starts = vec![vec![0]];
        for _ in 1..N {
            let longer = starts.iter().flat_map(|start| {
                let last = start[start.len() - 1];
                (last..=self.spread).map(|next| [start.as_slice(), &[next]].concat())
            });
            starts = longer.collect();
        }
        let state = |start: Vec<u8>| State {
            nodes: std::array::from_fn(|node| Node {
                counter: start[node],
                key: None,
            }),
            attempts: std::array::from_fn(|_| Attempt::idle()),
        };
        starts.into_iter().map(state).collect()
    }

    pub(crate) fn steps(&self, state: &State<N, A>, steps: &mut Vec<Step>) {
        // Properties are about winners: once nobody is left that could win, nothing can go wrong any more.
        // An attempt that knows that it cannot win does nothing that one could not do which says nothing any more.
        let is_open = |attempt: &Attempt<N>| attempt.is_trying() || attempt.stage == Stage::Idle;
        let has_ended = |attempt: &Attempt<N>| attempt.stage == Stage::Never;
        if !state.attempts.iter().any(is_open) || state.attempts.iter().any(has_ended) {
            return;
        }
        for (number, attempt) in state.attempts.iter().enumerate() {
            let idle = attempt.stage == Stage::Idle;
            let reaches =
                |node: &usize| idle || attempt.acquires.contains(*node) && attempt.listens_to(*node);
            for node in (0..N).filter(|node| reaches(node) && !state.is_like_one_before(*node)) {
                for late in 0..=state.late(node).count() {
                    let grant = |from| Step::Grant {
                        attempt: number,
                        node,
                        late,
                        from: from + late as u8,
                    };
                    steps.extend(self.counters(state, node).map(grant));
                }
            }
            // Attempts are alike: they begin in order.
            if idle {
                break;
            }
            self.raises(state, number, attempt, &[], steps);
            self.works(state, number, steps);
        }
        // A late grant to a winner shows in what it releases, if that becomes larger by it.
        for node in (0..N).filter(|_| self.releases && state.won().next().is_some()) {
            let late = state.late(node).count() as u8;
            let larger = |from: &u8| late > 0 && from + late > state.largest_counter();
            let grant = |from| Step::Late { node, from };
            steps.extend(self.counters(state, node).filter(larger).map(grant));
        }
    }

    /// What the node's counter may be when it is asked next.
    fn counters(&self, state: &State<N, A>, node: usize) -> impl Iterator<Item = u8> + use<N, A> {
        let counter = state.nodes[node].counter;
        let least = state.won().min().filter(|_| self.releases).unwrap_or(u8::MAX);
        std::iter::once(counter).chain(least.max(counter + 1)..=state.largest_counter())
    }

    /// The raises that may take effect after this work.
    fn raises(
        &self,
        state: &State<N, A>,
        number: usize,
        now: &Attempt<N>,
        work: &[Work],
        steps: &mut Vec<Step>,
    ) {
        for node in 0..N {
            let heard = state.nodes[node].key == Some(number) || self.rules == Rules::RaisedForAnybody;
            let before = state.attempts[number].raises[node];
            // Those that were on their way before need no work.
            for to in now.raises[node]
                .iter()
                .filter(|to| heard && work.is_empty() == before.contains(*to))
            {
                let raise = |from| Step::Raise {
                    work: work.to_vec(),
                    attempt: number,
                    node,
                    to: to as u8,
                    from,
                };
                steps.extend(self.counters(state, node).map(raise));
            }
        }
    }

    /// Everything that the client may do by itself, as far as it shows.
    fn works(&self, state: &State<N, A>, attempt: usize, steps: &mut Vec<Step>) {
        let mut reached = vec![(state.attempts[attempt].clone(), Vec::new())];
        let mut looked_at = 0;
        while let Some((now, done)) = reached.get(looked_at).cloned() {
            looked_at += 1;
            for work in now.work() {
                let (mut next, mut done) = (now.clone(), done.clone());
                next.does(work, self.rules);
                done.push(work);
                if reached.iter().any(|(known, _)| *known == next) {
                    continue;
                }
                if next.is_trying() {
                    self.raises(state, attempt, &next, &done, steps);
                } else {
                    steps.push(Step::End {
                        work: done.clone(),
                        attempt,
                    });
                }
                reached.push((next, done));
            }
        }
    }

    pub(crate) fn after(&self, before: &State<N, A>, step: Step) -> State<N, A> {
        let mut state = before.clone();
        match step {
            Step::Grant {
                attempt,
                node,
                late,
                from,
            } => {
                for gone in before.late(node).take(late) {
                    state.attempts[gone].acquires.remove(node);
                }
                let last_won = state.won().max().unwrap_or(0);
                let (number, attempt) = (attempt, &mut state.attempts[attempt]);
                if attempt.stage == Stage::Idle {
                    attempt.begin(last_won);
                }
                attempt.acquires.remove(node);
                let counter = from + 1;
                state.nodes[node] = Node {
                    counter,
                    key: Some(number),
                };
                attempt.answer(node, counter);
            }
            Step::Late { node, from } => {
                for gone in before.late(node).take(1) {
                    state.attempts[gone].acquires.remove(node);
                }
                let counter = from + 1;
                state.nodes[node] = Node { counter, key: None };
            }
            Step::Raise {
                work,
                attempt,
                node,
                to,
                from,
            } => {
                let attempt = &mut state.attempts[attempt];
                work.into_iter().for_each(|work| attempt.does(work, self.rules));
                attempt.raises[node].remove(to.into());
                let counter = from.max(to);
                state.nodes[node].counter = counter;
                attempt.answer(node, counter);
            }
            Step::End { work, attempt } => {
                let attempt = &mut state.attempts[attempt];
                work.into_iter().for_each(|work| attempt.does(work, self.rules));
            }
        }
        state.forget(self.rules);
        state
    }
}
