//! Searches all interleavings, breadth first: the first way to two holders is a shortest one.

use crate::state::State;
use crate::step::Step;
use crate::world::World;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

pub(crate) enum Outcome {
    NeverTwoHolders {
        states: usize,
    },
    TwoHolders {
        states: usize,
        trace: Vec<(Step, State)>,
    },
    /// The limit was reached before two holders were found.
    TooLarge {
        states: usize,
    },
}

impl World {
    fn successors(&self, state: &State) -> Vec<(Step, State)> {
        let mut steps = Vec::new();
        for number in 0..state.clients.len() {
            self.lock_steps(state, number, &mut steps);
            self.knowledge_steps(state, number, &mut steps);
        }
        self.time_steps(state, &mut steps);
        self.fault_steps(state, &mut steps);
        steps.iter_mut().for_each(|(_, next)| next.tidy());
        steps
    }

    /// Searches the states that can be reached, up to `limit`.
    pub(crate) fn search(&self, limit: usize) -> Outcome {
        let start = self.start();
        let mut seen: HashMap<u64, u64, BuildHasherDefault<Mix>> = HashMap::default();
        seen.insert(fingerprint(&start), 0);
        let mut queue = VecDeque::from([start]);
        while let Some(state) = queue.pop_front() {
            let parent = fingerprint(&state);
            for (_, next) in self.successors(&state) {
                let print = fingerprint(&next);
                if seen.contains_key(&print) {
                    continue;
                }
                seen.insert(print, parent);
                if next.holders() > 1 {
                    let trace = self.trace(&seen, print);
                    return Outcome::TwoHolders {
                        states: seen.len(),
                        trace,
                    };
                }
                queue.push_back(next);
            }
            if seen.len() > limit {
                return Outcome::TooLarge { states: seen.len() };
            }
        }
        Outcome::NeverTwoHolders { states: seen.len() }
    }

    /// Returns the steps from the start to a state that was seen.
    fn trace<S>(&self, seen: &HashMap<u64, u64, S>, last: u64) -> Vec<(Step, State)>
    where
        S: std::hash::BuildHasher,
    {
        let mut prints = vec![last];
        while let Some(parent) = seen.get(&prints[prints.len() - 1]).filter(|parent| **parent != 0) {
            prints.push(*parent);
        }
        let mut state = self.start();
        let mut trace = Vec::new();
        for print in prints.iter().rev().skip(1) {
            let mut steps = self.successors(&state).into_iter();
            let (step, next) = steps.find(|(_, next)| fingerprint(next) == *print).unwrap();
            state = next.clone();
            trace.push((step, next));
        }
        trace
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = Mix::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// A hash that is fast without compiler optimisations.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Mix {
    fn add(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add((*byte).into()));
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}
