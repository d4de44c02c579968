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

use crate::attempt::{Attempt, Rules, Stage, Work};
use crate::set::Set;

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
