//! Reads bytes as a target's input. At the end, zeros follow.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(self.take(8)) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    }

    /// Reads a number, usually one at a bound.
    pub(crate) fn number(&mut self) -> i64 {
        const EDGES: [i64; 16] = [
            0,
            1,
            -1,
            -2,
            -3,
            -4,
            2,
            i64::MAX,
            i64::MIN,
            1 << 53,
            (1 << 53) - 1,
            i32::MAX as i64,
            i32::MIN as i64,
            9_999_999_999_999_999,
            // Ten years after a day in 2026, from which counters are not believed; and that day.
            2_110_000_000_000_000,
            1_790_000_000_000_000,
        ];
        match self.byte() {
            edge @ 0..=127 => EDGES[usize::from(edge) % EDGES.len()],
            near @ 128..=191 => {
                EDGES[usize::from(near) % EDGES.len()].wrapping_add(i64::from(self.byte()) - 128)
            }
            _ => self.u64().cast_signed(),
        }
    }

    /// Reads a text. The first byte is its length; the second says how often it is repeated.
    pub(crate) fn text(&mut self) -> String {
        let (length, times) = (usize::from(self.byte()), usize::from(self.byte() % 64).max(1));
        String::from_utf8_lossy(self.take(length)).repeat(times)
    }

    /// Reads a duration, usually one near a bound.
    pub(crate) fn duration(&mut self, bounds: &[Duration]) -> Duration {
        let kind = self.byte();
        let bound = bounds[usize::from(kind / 8) % bounds.len()];
        match kind % 8 {
            0 | 1 => bound,
            2 => bound.saturating_add(Duration::from_nanos(1)),
            3 => bound.saturating_sub(Duration::from_nanos(1)),
            4 => bound / 10,
            5 => bound.saturating_mul(10),
            6 => Duration::from_micros(self.u64() % 100_000_000),
            _ => Duration::new(self.u64(), (self.u64() % 1_000_000_000) as u32),
        }
    }
}
