//! Owner tokens: the values of lock keys.

use std::fmt;

use uuid::Uuid;

/// The random value of a lock key: one per attempt, proves ownership.
///
/// It is a capability, so `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    /// Returns a new token (UUID v4) from the system's random source.
    pub fn random() -> Self {
        OwnerToken(Uuid::new_v4())
    }

    /// Returns the value as it stands on the nodes: 36 characters.
    pub fn value(&self) -> String {
        self.0.hyphenated().to_string()
    }

    /// Returns the token with this value; `None` if it is no token.
    pub fn from_value(value: &str) -> Option<Self> {
        // As it stands on the nodes, and in no other of the ways to write it.
        let token = (value.len() == 36).then(|| Uuid::try_parse(value).ok())??;
        Some(OwnerToken(token))
    }

    /// Returns the token in hyphenated form.
    pub(crate) fn text(&self) -> [u8; 36] {
        let mut buffer = [0; 36];
        self.0.hyphenated().encode_lower(&mut buffer);
        buffer
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
