//! The check of fencing tokens, for data in the process.

use crate::protocol::token::FencingToken;
use crate::sys::metrics;

/// Refuses writes to one resource once a newer holder has written. It checks [`FencingToken`]s for data that a process keeps
/// itself, in memory or in a file.
///
/// Keep the gate *with the data it protects, under the same lock*. The check and the write must be one step: otherwise a holder
/// could be admitted, pause while the next one writes, and then write. If the data is in a file, write the gate to that file
/// in the same step (feature `serde`).
///
/// A gate is for one resource: tokens of different resources cannot be compared. If the data is in a database, let the database
/// check; `docs/stores.md` shows how.
///
/// ```
/// use std::sync::Mutex;
///
/// use quorlock::{FenceGate, FencingToken, StaleToken};
///
/// #[derive(Default)]
/// struct Report {
///     gate: FenceGate,
///     text: String,
/// }
///
/// fn write(report: &Mutex<Report>, token: FencingToken, text: &str) -> Result<(), StaleToken> {
///     let mut report = report.lock().unwrap(); // held from the check to the end of the write
///     report.gate.admit(token)?;
///     report.text = text.to_owned();
///     Ok(())
/// }
///
/// let report = Mutex::default();
/// let older = FencingToken::new(33).unwrap(); // from two leases
/// let newer = FencingToken::new(34).unwrap();
///
/// write(&report, newer, "draft")?;
/// write(&report, newer, "final")?; // one lease, several writes
/// let refused = write(&report, older, "from a holder that was paused").unwrap_err();
/// assert_eq!(refused.seen, newer);
/// assert_eq!(report.lock().unwrap().text, "final");
/// # Ok::<(), StaleToken>(())
/// ```
///
/// The token of a lease is `lease.fencing_token().ok_or("taken without fencing")?`: `None` only with
/// [`fencing(false)`](crate::LockRequest::fencing), and then no write may be admitted.
///
/// With the feature `serde`, a gate is serialized as the largest admitted token, or as `null` before the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct FenceGate {
    highest: Option<FencingToken>,
}

/// A newer holder of the lock has written, so this write is refused: its lease has ended.
///
/// Do not try again with this token. If there is work left, acquire the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the write with fencing token {token} is refused, because a newer holder has written with {seen}: acquire the lock again"
)]
#[non_exhaustive]
pub struct StaleToken {
    /// The refused token.
    pub token: FencingToken,
    /// The largest token that was admitted before.
    pub seen: FencingToken,
}

impl FenceGate {
    /// Returns a gate that admits any first token: for data that was never written under the lock.
    pub const fn new() -> FenceGate {
        FenceGate { highest: None }
    }

    /// Admits a token that is at least as large as every one before. Equal tokens belong to one lease, which may write often.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if a larger token was admitted before. The gate stays as it was.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        match self.highest {
            Some(seen) if token < seen => {
                metrics::count_stale_write();
                Err(StaleToken { token, seen })
            }
            _ => {
                self.highest = Some(token);
                Ok(())
            }
        }
    }

    /// Returns the largest token that was admitted; `None` before the first.
    pub const fn highest(&self) -> Option<FencingToken> {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: u64) -> FencingToken {
        FencingToken::new(value).unwrap()
    }

    #[test]
    fn admits_what_is_not_older() {
        let mut gate = FenceGate::new();
        assert_eq!(gate.highest(), None);
        assert_eq!(gate, FenceGate::default());
        let (first, second) = (token(7), token(9));
        gate.admit(first).unwrap();
        gate.admit(first).unwrap();
        assert_eq!(gate.highest(), Some(first));
        gate.admit(second).unwrap();

        let stale = StaleToken {
            token: first,
            seen: second,
        };
        for _ in 0..2 {
            assert_eq!(gate.admit(first), Err(stale));
            assert_eq!(gate.highest(), Some(second), "a refusal changes nothing");
        }
        gate.admit(second).unwrap();
        assert_eq!(
            stale.to_string(),
            "the write with fencing token 7 is refused, because a newer holder has written with 9: acquire the lock again"
        );
    }

    #[test]
    fn in_any_order_exactly_those_below_the_largest_before_are_refused() {
        // Every sequence of five tokens out of four.
        for number in 0..4usize.pow(5) {
            let mut gate = FenceGate::new();
            let mut highest = 0;
            for place in 0..5 {
                let value = 1 + (number / 4usize.pow(place) % 4) as u64;
                assert_eq!(gate.admit(token(value)).is_ok(), value >= highest);
                highest = highest.max(value);
                assert_eq!(gate.highest(), Some(token(highest)));
            }
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn is_kept_as_the_largest_token() {
        for (json, highest) in [
            ("null", None),
            ("7", Some(token(7))),
            ("9007199254740991", Some(FencingToken::MAX)),
        ] {
            let mut gate: FenceGate = serde_json::from_str(json).unwrap();
            assert_eq!(gate.highest(), highest);
            assert_eq!(serde_json::to_string(&gate).unwrap(), json);
            if let Some(highest) = highest {
                gate.admit(highest).unwrap();
                gate.admit(token(6)).unwrap_err();
            }
        }
        // Damaged text does not become a gate that admits every token.
        for json in ["0", "-1", "1.5", "9007199254740992", "\"7\"", "{}", "[]"] {
            assert!(serde_json::from_str::<FenceGate>(json).is_err(), "{json}");
        }
    }
}
