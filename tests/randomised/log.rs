//! The log of a run: a hash of all events, and their text on request.

use std::collections::VecDeque;
use std::fmt;

const MOST: usize = 200_000;

#[derive(Debug)]
pub(crate) struct Log {
    hash: u64,
    lines: Option<VecDeque<String>>,
}

impl Log {
    pub(crate) fn new(with_text: bool) -> Self {
        Log {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: with_text.then(VecDeque::new),
        }
    }

    /// `numbers` must not contain owner tokens: they are random.
    pub(crate) fn note(&mut self, now: u64, numbers: &[u64], text: impl FnOnce() -> String) {
        for number in [now].iter().chain(numbers) {
            self.hash = (self.hash ^ number)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
        if let Some(lines) = &mut self.lines {
            if lines.len() == MOST {
                lines.pop_front();
            }
            lines.push_back(format!("{now:>6} {}", text()));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines
            .iter()
            .flatten()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
