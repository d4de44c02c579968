//! The protocol as a model: nodes, attempts, and the possible steps.
//!
//! There is no clock: keys may expire, and messages be late or lost, at any moment. Some events are not steps of their own:
//!
//! * A key expires when another attempt is granted it. An earlier expiry shows only in raises that do nothing, and a raise may be
//!   late for ever. An attempt's own deletions are expiries, too.
//! * "Held", "not yours", an error, a lost message and a timeout are all [`Work::Miss`]: the client counts the node out. The node
//!   may have acted, or may act later.
//! * A client that gives up or crashes does nothing more.
//! * An attempt begins with its first grant. If it began earlier, fewer attempts could have won before.

use crate::attempt::{Attempt, Rules, Stage, Work};
use crate::set::Set;

/// The world to check: `N` nodes, `A` attempts.
#[derive(Clone, Debug)]
pub(crate) struct World<const N: usize, const A: usize> {
    pub(crate) rules: Rules,
    /// Counters begin in all combinations of 0 up to this.
    pub(crate) spread: u8,
    /// Whether winners release, which raises counters even where another attempt holds the key (F4).
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
    /// The attempt that was granted last, as long as that matters.
    pub(crate) key: Option<usize>,
}

/// A possible step.
///
/// Three kinds of events are part of the step that first shows them. They are as possible then as before:
///
/// * A client's own decisions, [`Work`], show when a raise that they have sent takes effect, or when the attempt ends.
/// * A winner's release shows in the node's next answer (F4): `from` is the counter before that. It is any number from the
///   smallest issued token up to the largest counter, which is more than a release carries. So the model keeps only a winner's
///   token.
/// * A late grant that is not waited for shows in the next grant: `late` of them came before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An acquire reaches the node and finds the key free or expired.
    Grant {
        attempt: usize,
        node: usize,
        late: usize,
        from: u8,
    },
    /// A late grant by itself, where it may show in a release.
    Late { node: usize, from: u8 },
    /// A raise reaches the node and finds the key held by the attempt.
    Raise {
        work: Vec<Work>,
        attempt: usize,
        node: usize,
        to: u8,
        from: u8,
    },
    /// The attempt has won, or can no longer win.
    End { work: Vec<Work>, attempt: usize },
}

impl<const N: usize, const A: usize> State<N, A> {
    pub(crate) fn won(&self) -> impl Iterator<Item = u8> {
        self.attempts.iter().filter_map(Attempt::won)
    }

    /// Returns the attempts that do not wait for the node, and whose acquire may still reach it.
    pub(crate) fn late(&self, node: usize) -> impl Iterator<Item = usize> {
        let attempts = self.attempts.iter().enumerate();
        let late =
            attempts.filter(move |(_, attempt)| attempt.acquires.contains(node) && !attempt.listens_to(node));
        late.map(|(number, _)| number)
    }

    /// Returns whether an earlier node differs only in its number: no attempt has reached either of them.
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

    /// Removes what makes no difference any more, so that states become equal.
    fn forget(&mut self, rules: Rules) {
        for (number, attempt) in self.attempts.iter_mut().enumerate() {
            for (n, node) in self.nodes.iter_mut().enumerate() {
                // Answers that are not read, or change nothing.
                attempt.answers[n] = match &attempt.stage {
                    Stage::Trying(trying) => {
                        let news = |counter: &usize| trying.cares_for(n, *counter as u8);
                        attempt.answers[n].iter().filter(news).collect()
                    }
                    _ => Set::default(),
                };
                let is_heard = attempt.listens_to(n);
                if node.key != Some(number) && rules != Rules::RaisedForAnybody {
                    // The acquire has arrived already, so the key will not be the attempt's again.
                    attempt.raises[n] = Set::default();
                } else if !is_heard {
                    // The counter is that large already, and the answer is not read.
                    attempt.raises[n] = attempt.raises[n].above(node.counter.into());
                }
                // No later message depends on the key.
                if node.key == Some(number) && attempt.raises[n].is_empty() && !is_heard {
                    node.key = None;
                }
            }
        }
    }
}

impl<const N: usize, const A: usize> World<N, A> {
    /// Returns all starting counters that differ in more than the order of nodes or a number added to all.
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
        // Without an attempt that can still win, no property can fail. An attempt that cannot win acts as one that has crashed.
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
            // All attempts are alike, so they begin in order.
            if idle {
                break;
            }
            self.raises(state, number, attempt, &[], steps);
            self.works(state, number, steps);
        }
        // A late grant to a winner shows if it makes the released counter larger.
        for node in (0..N).filter(|_| self.releases && state.won().next().is_some()) {
            let late = state.late(node).count() as u8;
            let larger = |from: &u8| late > 0 && from + late > state.largest_counter();
            let grant = |from| Step::Late { node, from };
            steps.extend(self.counters(state, node).filter(larger).map(grant));
        }
    }

    /// Returns what the node's counter may be at the next request.
    fn counters(&self, state: &State<N, A>, node: usize) -> impl Iterator<Item = u8> + use<N, A> {
        let counter = state.nodes[node].counter;
        let least = state.won().min().filter(|_| self.releases).unwrap_or(u8::MAX);
        std::iter::once(counter).chain(least.max(counter + 1)..=state.largest_counter())
    }

    /// Adds the raises that may take effect after this work.
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
            // Raises that were in flight before need no work.
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

    /// Adds everything that the client may do by itself, as far as it shows.
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
