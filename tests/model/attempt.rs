//! A client's decisions in one attempt.

use crate::protocol::fencing::{Certification, Ruling};
use crate::protocol::token::FencingToken;
use crate::set::Set;

/// All rules, or one left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Complete,
    /// The largest counter of a quorum is the token at once (without F3).
    LargestIsIssued,
    /// A node raises its counter even if the attempt does not hold the key (without half of F3).
    RaisedForAnybody,
    /// A node that is ahead counts like any other (without half of F2).
    AheadCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt<const N: usize> {
    pub(crate) stage: Stage,
    /// Nodes that the acquire may still reach.
    pub(crate) acquires: Set,
    /// Raises in flight, by node.
    pub(crate) raises: [Set; N],
    /// Counters in flight from each node.
    pub(crate) answers: [Set; N],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Idle,
    Trying(Trying),
    /// `raised`: the last node that was needed had been raised. `ordered`: all tokens won before the attempt began are smaller.
    Won {
        token: u8,
        raised: bool,
        ordered: bool,
    },
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trying {
    pub(crate) certification: Certification,
    /// The largest token that was won before the attempt began.
    pub(crate) after: u8,
    pub(crate) silent: Set,
    pub(crate) out: Set,
    /// The token that nodes were last told to raise to; 0 for none.
    pub(crate) aim: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Hear {
        node: usize,
        counter: u8,
    },
    /// The client counts the node out.
    Miss {
        node: usize,
    },
}

pub(crate) fn token(value: u8) -> FencingToken {
    FencingToken::new(value.into()).unwrap()
}

pub(crate) fn value(token: FencingToken) -> u8 {
    token.get().try_into().unwrap()
}

impl Trying {
    /// Returns whether the attempt waits for the node: for the first answer, or for one to a raise.
    pub(crate) fn waits_for(&self, node: usize) -> bool {
        self.silent.contains(node) || self.aim > 0 && self.is_behind(node, self.aim)
    }

    pub(crate) fn is_behind(&self, node: usize, than: u8) -> bool {
        self.certification
            .behind(token(than))
            .any(|behind| behind == node)
    }

    /// Returns whether the answer could make a difference.
    pub(crate) fn cares_for(&self, node: usize, counter: u8) -> bool {
        self.silent.contains(node) || self.is_behind(node, counter)
    }

    /// Returns whether a counter above the aim was heard.
    pub(crate) fn sees_one_ahead(&self) -> bool {
        let below = |than| self.certification.behind(than).count();
        self.aim > 0 && below(FencingToken::MAX) > below(token(self.aim + 1))
    }
}

impl<const N: usize> Attempt<N> {
    pub(crate) fn idle() -> Self {
        Attempt {
            stage: Stage::Idle,
            acquires: Set::default(),
            raises: [Set::default(); N],
            answers: [Set::default(); N],
        }
    }

    pub(crate) fn begin(&mut self, after: u8) {
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

    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.stage, Stage::Trying(_))
    }

    /// Returns whether a raise is in flight to less than the present aim.
    pub(crate) fn has_raised_its_aim(&self) -> bool {
        let Stage::Trying(trying) = &self.stage else {
            return false;
        };
        let mut raises = self.raises.iter().flat_map(|to| to.iter());
        raises.any(|to| to < trying.aim.into())
    }

    /// Returns what the client may do by itself.
    pub(crate) fn work(&self) -> Vec<Work> {
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

    pub(crate) fn does(&mut self, work: Work, rules: Rules) {
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

    pub(crate) fn listens_to(&self, node: usize) -> bool {
        matches!(&self.stage, Stage::Trying(trying) if !trying.out.contains(node))
    }

    pub(crate) fn answer(&mut self, node: usize, counter: u8) {
        if self.listens_to(node) {
            self.answers[node].insert(counter.into());
        }
    }

    pub(crate) fn hear(&mut self, node: usize, counter: u8, rules: Rules) {
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

    pub(crate) fn miss(&mut self, node: usize, rules: Rules) {
        let Stage::Trying(trying) = &mut self.stage else {
            return;
        };
        trying.silent.remove(node);
        trying.out.insert(node);
        trying.certification.exclude(node);
        self.rule(None, false, rules);
    }

    pub(crate) fn rule(&mut self, new: Option<usize>, raised: bool, rules: Rules) {
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
                    // The other nodes have been sent this raise.
                    if grown || new == Some(node) {
                        self.raises[node].insert(value(to).into());
                    }
                }
            }
            Ruling::Issue(issued) => self.win(value(issued), raised),
            Ruling::Never => self.stage = Stage::Never,
        }
    }

    pub(crate) fn win(&mut self, token: u8, raised: bool) {
        if let Stage::Trying(trying) = &self.stage {
            self.stage = Stage::Won {
                token,
                raised,
                ordered: token > trying.after,
            };
        }
    }
}
