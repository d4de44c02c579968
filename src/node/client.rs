//! Clients: their numbers and descriptions (H1, H2).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

/// The number of a client: of one [`Redlock`](crate::Redlock) and its clones. It is random, and part of each of its owner tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// Returns a client's number from its 40 low bits.
    pub(crate) fn new(number: u64) -> ClientId {
        ClientId(number & 0xff_ffff_ffff)
    }

    pub(crate) fn random() -> ClientId {
        ClientId::new(Uuid::new_v4().as_u128() as u64)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Writes 10 hexadecimal digits.
impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010x}", self.0)
    }
}

/// How a client describes itself on the nodes.
///
/// `Display` writes one line: `billing on db1 (pid 77)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The name that was given to it ([`RedlockBuilder::name`](crate::RedlockBuilder::name)), or its executable's.
    pub name: String,
    /// The name of its machine.
    pub host: String,
    /// Its process id on that machine, or in its container.
    pub pid: u32,
    /// Its version of quorlock.
    pub version: String,
    /// How many leases it held when it last registered, normally some seconds ago.
    pub locks: usize,
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} (pid {})", self.name, self.host, self.pid)
    }
}

/// The holder of a lock, as far as its keys and the nodes tell.
///
/// `Display` writes one line: `billing on db1 (pid 77), since 2026-11-29T21:40:03Z`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The client's number.
    pub client: ClientId,
    /// When its attempt for the lock began, by its own clock.
    pub since: SystemTime,
    /// Whether it is the client that asks: the same [`Redlock`](crate::Redlock), or a clone.
    pub is_this_client: bool,
    /// Its description. `None` if no node has told it yet, or the client is anonymous.
    pub info: Option<Arc<ClientInfo>>,
}

impl Holder {
    /// Returns the client in words: `billing on db1 (pid 77)`, `client 00000000ab` if no description is known, or `this process`.
    pub fn name(&self) -> String {
        match &self.info {
            _ if self.is_this_client => "this process".to_owned(),
            Some(info) => info.to_string(),
            None => format!("client {}", self.client),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, since {}",
            self.name(),
            humantime::format_rfc3339_seconds(self.since)
        )
    }
}

/// This client, as other clients see it.
#[derive(Clone, Debug)]
pub(crate) struct LocalClient {
    pub(crate) id: ClientId,
    /// `None` if it is anonymous.
    pub(crate) info: Option<ClientInfo>,
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_holder_is_named_as_well_as_it_is_known() {
        let info = ClientInfo {
            name: "billing".into(),
            host: "db1".into(),
            pid: 77,
            ..ClientInfo::default()
        };
        let mut holder = Holder {
            client: ClientId::new(0xab),
            since: UNIX_EPOCH + Duration::from_secs(1),
            is_this_client: false,
            info: None,
        };
        assert_eq!(
            holder.to_string(),
            "client 00000000ab, since 1970-01-01T00:00:01Z"
        );
        holder.info = Some(info.into());
        assert_eq!(
            holder.to_string(),
            "billing on db1 (pid 77), since 1970-01-01T00:00:01Z"
        );
        holder.is_this_client = true;
        assert_eq!(holder.to_string(), "this process, since 1970-01-01T00:00:01Z");
    }
}
