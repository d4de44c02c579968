//! Who is compared.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::servers::{Addresses, Server};

/// For those whose locks expire. Nothing does here.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// What went wrong, in words.
pub(crate) type Failure = String;

/// One who wants the lock.
pub(crate) trait Contender: Send + Sync + Sized + 'static {
    type Held: Send;

    /// As many as want it in one process. They share what they would share there.
    fn connect(
        who: Who,
        addresses: &Addresses,
        waiters: usize,
    ) -> impl Future<Output = Result<Vec<Self>, Failure>> + Send;

    /// Waits for the lock, for as long as this contender does at the settings that it has. Dropping the future must not keep
    /// others from using the waiter again with another key, if [`may_be_dropped`](Who::may_be_dropped).
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Who {
    Quorlock,
    QuorlockPlain,
    Rslock,
    RslockTuned,
    PostgresBlocking,
    PostgresPolling,
    Etcd,
}

impl Who {
    pub(crate) const ALL: [Who; 7] = [
        Who::Quorlock,
        Who::QuorlockPlain,
        Who::Rslock,
        Who::RslockTuned,
        Who::PostgresBlocking,
        Who::PostgresPolling,
        Who::Etcd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Quorlock => "quorlock",
            Who::QuorlockPlain => "quorlock, fencing off",
            Who::Rslock => "rslock",
            Who::RslockTuned => "rslock, tuned",
            Who::PostgresBlocking => "PostgreSQL, blocking",
            Who::PostgresPolling => "PostgreSQL, polling",
            Who::Etcd => "etcd",
        }
    }

    /// Everybody whose name contains the word.
    pub(crate) fn matching(word: &str) -> Vec<Who> {
        let word = word.to_lowercase();
        let mut all = Who::ALL.to_vec();
        all.retain(|who| who.name().to_lowercase().contains(&word));
        all
    }

    pub(crate) fn server(self) -> Server {
        match self {
            Who::Quorlock | Who::QuorlockPlain | Who::Rslock | Who::RslockTuned => Server::Redis,
            Who::PostgresBlocking | Who::PostgresPolling => Server::Postgres,
            Who::Etcd => Server::Etcd,
        }
    }

    pub(crate) fn is_redis(self) -> bool {
        self.server() == Server::Redis
    }

    /// A wait in a PostgreSQL session would go on, and win. After many that were cancelled, etcd 3.4 was seen to wake nobody any
    /// more.
    pub(crate) fn may_be_dropped(self) -> bool {
        self.is_redis()
    }

    /// Whether the lock is taken with a command of its own, and not in a script.
    pub(crate) fn sends_set(self) -> bool {
        matches!(self, Who::Rslock | Who::RslockTuned)
    }
}
