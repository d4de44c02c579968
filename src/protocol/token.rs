//! The fencing token.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Tells a newer lease on a resource from an older one. It is larger than the token of every lease that was acquired before its
/// attempt began.
///
/// An integer from 1 to 2^53 - 1: it fits a signed 64-bit column (`BIGINT`), a double, and JSON. Send it to the store that the
/// lock protects, and have the store refuse smaller tokens than the largest it has seen, as [`FenceGate`](crate::FenceGate)
/// does.
///
/// Only the order has a meaning: tokens start at a time and skip values.
///
/// ```
/// use quorlock::FencingToken;
///
/// let token: FencingToken = "1795826400000000".parse()?;
/// assert_eq!(token.get(), 1_795_826_400_000_000);
/// assert!(token < FencingToken::new(1_795_826_400_000_001).unwrap());
/// assert!(FencingToken::new(0).is_none());
/// # Ok::<(), quorlock::NotAToken>(())
/// ```
///
/// With the feature `serde`, it is serialized as an integer. Integers out of range are refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "u64", try_from = "u64"))]
pub struct FencingToken(NonZeroU64);

/// The number or text is not a fencing token: an integer from 1 to 2^53 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fencing token: it must be an integer from 1 to {}", FencingToken::MAX)]
#[non_exhaustive]
pub struct NotAToken;

impl FencingToken {
    /// The largest token: 2^53 - 1.
    pub const MAX: FencingToken = match NonZeroU64::new((1 << 53) - 1) {
        Some(max) => FencingToken(max),
        None => unreachable!(),
    };

    /// Returns the token with this value, which a store has kept for instance; `None` if it is out of range.
    pub const fn new(value: u64) -> Option<FencingToken> {
        match NonZeroU64::new(value) {
            Some(value) if value.get() <= FencingToken::MAX.0.get() => Some(FencingToken(value)),
            _ => None,
        }
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the value for a signed column. Never negative.
    pub const fn as_i64(self) -> i64 {
        self.0.get().cast_signed()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl FromStr for FencingToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        text.parse().ok().and_then(FencingToken::new).ok_or(NotAToken)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.get()
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        token.as_i64()
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = NotAToken;

    fn try_from(value: u64) -> Result<Self, NotAToken> {
        FencingToken::new(value).ok_or(NotAToken)
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = NotAToken;

    fn try_from(value: i64) -> Result<Self, NotAToken> {
        u64::try_from(value).map_err(|_| NotAToken)?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_store_can_keep_is_a_token() {
        assert_eq!(FencingToken::MAX.get(), (1 << 53) - 1);
        for value in [0, 1 << 53, u64::MAX] {
            assert_eq!(FencingToken::new(value), None, "{value}");
            assert_eq!(value.to_string().parse::<FencingToken>(), Err(NotAToken));
            assert_eq!(FencingToken::try_from(value), Err(NotAToken));
        }
        for text in ["", "-1", "1.0", " 1", "x", "99999999999999999999"] {
            assert_eq!(text.parse::<FencingToken>(), Err(NotAToken), "{text:?}");
        }
        assert_eq!(FencingToken::try_from(-1i64), Err(NotAToken));
        for value in [1, 1_795_826_400_000_000, FencingToken::MAX.get()] {
            let token = FencingToken::new(value).unwrap();
            assert_eq!(token.to_string().parse(), Ok(token));
            assert_eq!(FencingToken::try_from(token.as_i64()), Ok(token));
            assert_eq!(token.get() as f64 as u64, value, "exact as a double");
        }
    }

    #[test]
    fn they_are_ordered_and_print_as_an_integer() {
        let (one, two) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
        assert!(one < two);
        assert_eq!(format!("{two} {two:?}"), "2 FencingToken(2)");
        assert_eq!(size_of::<Option<FencingToken>>(), 8);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_has_them_as_integers_in_range() {
        for token in [FencingToken::new(1).unwrap(), FencingToken::MAX] {
            let json = serde_json::to_string(&token).unwrap();
            assert_eq!(json, token.to_string());
            assert_eq!(serde_json::from_str::<FencingToken>(&json).unwrap(), token);
        }
        for json in ["0", "-1", "1.0", "9007199254740992", "null", "\"1\""] {
            assert!(serde_json::from_str::<FencingToken>(json).is_err(), "{json}");
        }
        let error = serde_json::from_str::<FencingToken>("0").unwrap_err();
        assert!(error.to_string().contains("not a fencing token"), "{error}");
    }
}
