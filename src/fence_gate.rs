//! The check of fencing tokens, for whoever keeps data in the process.

use crate::protocol::token::FencingToken;

/// Lets writes to one resource through unless a newer holder has written: the check of [`FencingToken`]s for data that
/// a process keeps itself, in memory or in a file of its own.
///
/// It lives *with the data it protects, under the same lock*. Checking and writing have to be one step: if a holder could be
/// admitted, then pause while the next one is admitted and writes, and then write, the check would have been
/// for nothing. For the same reason the gate is kept wherever the data is kept: written to the same file in
/// the same go (feature `serde`), and not started afresh over data that outlived the process.
///
/// A gate is for one resource: the tokens of different ones have nothing to do with each other. For data in a database, let the
/// database check; `docs/stores.md` shows how.
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
/// let older = FencingToken::new(33).unwrap(); // as leases have them
/// let newer = FencingToken::new(34).unwrap();
///
/// write(&report, newer, "draft")?;
/// write(&report, newer, "final")?; // one hold, several writes
/// let refused = write(&report, older, "from a holder that was paused").unwrap_err();
/// assert_eq!(refused.seen, newer);
/// assert_eq!(report.lock().unwrap().text, "final");
/// # Ok::<(), StaleToken>(())
/// ```
///
/// The token of a lease is `lease.fencing_token().ok_or("taken without fencing")?`: `None` only with
/// [`fencing(false)`](crate::LockRequest::fencing), and then nothing is to be admitted.
///
/// With the feature `serde` it is kept as the largest token, an integer, or as nothing (`null`) while nobody has been admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct FenceGate {
    highest: Option<FencingToken>,
}

/// A newer holder of the lock has written, so this one must not: its lease is over, whether it has noticed or not.
///
/// Not to be tried again with the same token. Who still has work to do takes the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a newer holder of the lock has written, with fencing token {seen}: the write with {token} is refused"
)]
pub struct StaleToken {
    /// The token that was refused.
    pub token: FencingToken,
    /// The newest one that was admitted before.
    pub seen: FencingToken,
}

impl FenceGate {
    /// A gate that has seen nobody, and lets the first one through. For data that nobody has written under the lock yet.
    pub const fn new() -> FenceGate {
        FenceGate { highest: None }
    }

    /// Lets the token through if it is at least as large as every one before. Equal ones are of the same hold, which may write
    /// as often as it likes.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if a larger one was admitted before. The gate is as it was.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        match self.highest {
            Some(seen) if token < seen => Err(StaleToken { token, seen }),
            _ => {
                self.highest = Some(token);
                Ok(())
            }
        }
    }

    /// The largest token that was admitted; `None` before the first.
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
            "a newer holder of the lock has written, with fencing token 9: the write with 7 is refused"
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
        // What is no gate does not become an open one.
        for json in ["0", "-1", "1.5", "9007199254740992", "\"7\"", "{}", "[]"] {
            assert!(serde_json::from_str::<FenceGate>(json).is_err(), "{json}");
        }
    }
}
