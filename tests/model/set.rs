//! A small set of small numbers: nodes, or counters.

use std::fmt;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(u16);

impl Set {
    /// Returns the numbers from 0 up to `end`, without it.
    pub(crate) fn below(end: usize) -> Self {
        Set((1 << end) - 1)
    }

    pub(crate) fn insert(&mut self, number: usize) {
        assert!(number < 16, "the model has become too large: {number}");
        self.0 |= 1 << number;
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.0 &= !(1 << number);
    }

    pub(crate) fn contains(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn above(self, number: usize) -> Set {
        Set(self.0 & !((2 << number) - 1))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (number < 16).then_some(number)
        })
    }
}

impl FromIterator<usize> for Set {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Set::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
