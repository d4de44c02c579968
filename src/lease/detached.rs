//! A lease without a process: another process may go on with it (H6).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::node::OwnerToken;
use crate::protocol::token::FencingToken;

/// A lease that was [detached](crate::Lease::detach): its lock stays held until its TTL is over. Any process may
/// [go on with it](crate::Redlock::attach), or [release](crate::Redlock::release_detached) it.
///
/// `Display` writes a handle of one word before the lock's name, and `FromStr` reads it:
/// `01a22951-9b43-788f-a88b-4954003a191e:1795989543746928:30000:nightly`. A process that knows it can release the lock.
///
/// ```
/// use quorlock::DetachedLease;
///
/// let handle = "01a22951-9b43-788f-a88b-4954003a191e:1795989543746928:30000:nightly";
/// let lease: DetachedLease = handle.parse()?;
/// assert_eq!((lease.resource(), lease.to_string().as_str()), ("nightly", handle));
/// # Ok::<(), quorlock::NotAHandle>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DetachedLease {
    pub(crate) resource: Arc<str>,
    pub(crate) owner: OwnerToken,
    pub(crate) token: Option<FencingToken>,
    pub(crate) ttl: Duration,
}

impl DetachedLease {
    /// Returns the locked resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Returns the value of the lock's keys on the nodes.
    pub fn owner(&self) -> OwnerToken {
        self.owner
    }

    /// Returns the fencing token. `None` if the lease has none.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Returns the TTL, for which an extension keeps the lock.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// A text that is no handle of a [`DetachedLease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a handle: give OWNER:TOKEN:TTL:NAME as it was printed")]
#[non_exhaustive]
pub struct NotAHandle;

impl fmt::Display for DetachedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.map_or(0, FencingToken::get);
        write!(
            f,
            "{}:{token}:{}:{}",
            self.owner.value(),
            self.ttl.as_millis(),
            self.resource
        )
    }
}

impl fmt::Debug for DetachedLease {
    /// Without the owner token, which would allow to release the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedLease")
            .field("resource", &self.resource)
            .field("fencing_token", &self.token)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl FromStr for DetachedLease {
    type Err = NotAHandle;

    fn from_str(text: &str) -> Result<Self, NotAHandle> {
        let mut parts = text.splitn(4, ':');
        let mut part = || parts.next().ok_or(NotAHandle);
        let (owner, token, ttl, resource) = (part()?, part()?, part()?, part()?);
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| NotAHandle);
        let token = match number(token)? {
            0 => None,
            token => Some(FencingToken::new(token).ok_or(NotAHandle)?),
        };
        Ok(DetachedLease {
            resource: resource.into(),
            owner: OwnerToken::from_value(owner).ok_or(NotAHandle)?,
            token,
            ttl: Duration::from_millis(number(ttl)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        for (resource, token) in [("nightly", 17), ("a:b:c", 0), ("with a blank", 1)] {
            let lease = DetachedLease {
                resource: resource.into(),
                owner: OwnerToken::from(7),
                token: FencingToken::new(token),
                ttl: Duration::from_millis(30_000),
            };
            assert_eq!(lease.to_string().parse(), Ok(lease.clone()));
            assert!(!format!("{lease:?}").contains(&OwnerToken::from(7).value()));
        }
        let owner = OwnerToken::from(7).value();
        for wrong in [
            String::new(),
            owner.clone(),
            format!("{owner}:1:r"),
            format!("{owner}:x:1:r"),
            format!("{owner}:1:-1:r"),
            format!("{owner}:99999999999999999999:1:r"),
            "me:1:1:r".to_owned(),
        ] {
            assert_eq!(wrong.parse::<DetachedLease>(), Err(NotAHandle), "{wrong}");
        }
    }
}
