//! Owner tokens: the values of lock keys. They tell when an attempt began, and which client made it (H1).

use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::{Uuid, Variant};

use super::client::ClientId;
use crate::period;

/// The value of a lock key: a UUID of version 7, one per attempt. It proves ownership.
///
/// It is a capability, so `Debug` does not show it. [`value`](Self::value) and the tool's `show` do.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerToken(Uuid);

// The parts of a token after its time: 74 bits, around version and variant.
const CLIENT_BITS: u32 = 40;
const COUNT_BITS: u32 = 12;
const RANDOM_BITS: u32 = 22;

impl OwnerToken {
    /// Returns a token of an unknown client, for tests.
    #[cfg(any(test, feature = "simulation"))]
    pub fn random() -> Self {
        OwnerToken(Uuid::new_v4())
    }

    /// Returns the value as it stands on the nodes: 36 characters.
    pub fn value(&self) -> String {
        self.0.hyphenated().to_string()
    }

    /// Returns the token with this value; `None` if it is no token.
    pub fn from_value(value: &str) -> Option<Self> {
        // In lower case only, so that `value` returns the same text.
        let is_written_so = value.len() == 36 && !value.bytes().any(|byte| byte.is_ascii_uppercase());
        let token = is_written_so.then(|| Uuid::try_parse(value).ok())??;
        Some(OwnerToken(token))
    }

    /// Returns when the attempt began, by its client's clock. `None` if the token is no UUID of version 7: it is of quorlock 0.1, or of
    /// another library. Of another library's UUID of version 7, the result means nothing.
    pub fn began(&self) -> Option<SystemTime> {
        let millis = (self.0.as_u128() >> 80) as u64;
        // Later times are not of this library.
        self.is_ours().then(|| period::moment(millis))?
    }

    /// Returns the client that made the attempt. `None`, or without meaning, as for [`began`](Self::began).
    pub fn client(&self) -> Option<ClientId> {
        let bits = self.0.as_u128();
        let high = (bits >> 64) as u64 & 0xfff;
        let low = (bits as u64 & (u64::MAX >> 2)) >> (COUNT_BITS + RANDOM_BITS);
        self.is_ours()
            .then(|| ClientId::new(high << (CLIENT_BITS - 12) | low))
    }

    fn is_ours(&self) -> bool {
        self.0.get_version_num() == 7 && self.0.get_variant() == Variant::RFC4122
    }

    /// Returns the token in hyphenated form.
    pub(crate) fn text(&self) -> [u8; 36] {
        let mut buffer = [0; 36];
        self.0.hyphenated().encode_lower(&mut buffer);
        buffer
    }
}

/// Compares the random bits first. Otherwise a client whose clock is behind would win all split votes (W3).
impl Ord for OwnerToken {
    fn cmp(&self, other: &Self) -> Ordering {
        let spread = |token: &Self| token.0.as_u128().rotate_right(RANDOM_BITS);
        spread(self).cmp(&spread(other))
    }
}

impl PartialOrd for OwnerToken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<u128> for OwnerToken {
    /// Returns a token of your choice, for tests. Any client that knows it can delete the lock.
    fn from(number: u128) -> Self {
        OwnerToken(Uuid::from_u128(number))
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// Makes the owner tokens of one client. No two are equal.
pub(crate) struct OwnerTokens {
    client: ClientId,
    /// Distinguishes attempts of the same millisecond.
    count: AtomicU64,
}

impl OwnerTokens {
    pub(crate) fn new(client: ClientId) -> OwnerTokens {
        OwnerTokens {
            client,
            count: AtomicU64::new(0),
        }
    }

    pub(crate) fn next(&self) -> OwnerToken {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // From the system for each token: if a snapshot of a running machine is resumed twice, all else may be equal.
        let random = Uuid::new_v4().as_u128() as u64;
        self.token(now.as_millis() as u64, random)
    }

    fn token(&self, millis: u64, random: u64) -> OwnerToken {
        let count = self.count.fetch_add(1, Relaxed) & ((1 << COUNT_BITS) - 1);
        let rest = self.client.number() << (COUNT_BITS + RANDOM_BITS)
            | count << RANDOM_BITS
            | random & ((1 << RANDOM_BITS) - 1);
        let high = millis << 16 | 7 << 12 | self.client.number() >> (CLIENT_BITS - 12);
        let low = rest & (u64::MAX >> 2) | 1 << 63;
        OwnerToken(Uuid::from_u64_pair(high, low))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::period::LATEST_MILLIS;

    #[test]
    fn a_token_tells_when_its_attempt_began_and_whose_it_is() {
        for client in [0, 1, 0xff_ffff_ffff, 0xfe_dcba_9876] {
            let client = ClientId::new(client);
            let tokens = OwnerTokens::new(client);
            for millis in [0, 1, 1_700_000_000_123, LATEST_MILLIS] {
                let token = tokens.token(millis, u64::MAX);
                assert_eq!(token.began(), Some(UNIX_EPOCH + Duration::from_millis(millis)));
                assert_eq!(token.client(), Some(client));
                assert_eq!(OwnerToken::from_value(&token.value()), Some(token));
                assert_eq!(&token.value()[14..15], "7");
            }
        }
        assert_eq!(
            (OwnerToken::random().began(), OwnerToken::random().client()),
            (None, None)
        );
    }

    #[test]
    fn texts_of_others_are_read_without_harm() {
        let far = OwnerToken::from_value("ffffffff-ffff-7fff-bfff-ffffffffffff").unwrap();
        assert_eq!(far.began(), None);
        let shouted = OwnerTokens::new(ClientId::new(1)).next().value().to_uppercase();
        assert_eq!(OwnerToken::from_value(&shouted), None);
    }

    #[test]
    fn no_order_of_tokens_favours_a_clock_that_is_behind() {
        let tokens = OwnerTokens::new(ClientId::new(7));
        let (early, late) = (tokens.token(1, 9), tokens.token(2, 8));
        assert!(late < early);
        assert!(tokens.token(1, 9) != early);
    }

    #[test]
    fn tokens_of_one_millisecond_differ_although_the_random_bits_are_equal() {
        let tokens = OwnerTokens::new(ClientId::new(7));
        let made: std::collections::HashSet<_> = (0..1 << COUNT_BITS).map(|_| tokens.token(1, 2)).collect();
        assert_eq!(made.len(), 1 << COUNT_BITS);
        assert!(made.iter().all(|token| token.client() == Some(ClientId::new(7))));
    }
}
