use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::servers::{Addresses, Server};

/// The TTL of contenders whose locks expire. None does during the benchmark.
pub(crate) const TTL: Duration = Duration::from_secs(10);

pub(crate) type Failure = String;

/// One waiter.
pub(crate) trait Contender: Send + Sync + Sized + 'static {
    type Held: Send;

    /// Connects the waiters of one process. They share what they usually share.
    fn connect(
        who: ContenderKind,
        addresses: &Addresses,
        waiters: usize,
    ) -> impl Future<Output = Result<Vec<Self>, Failure>> + Send;

    /// Waits for the lock, as long as this contender does with its settings. The future may be dropped, and the waiter used with
    /// another key, if [`may_be_dropped`](Who::may_be_dropped).
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ContenderKind {
    Quorlock,
    QuorlockPlain,
    Rslock,
    RslockTuned,
    PostgresBlocking,
    PostgresPolling,
    Etcd,
}

impl ContenderKind {
    pub(crate) const ALL: [ContenderKind; 7] = [
        ContenderKind::Quorlock,
        ContenderKind::QuorlockPlain,
        ContenderKind::Rslock,
        ContenderKind::RslockTuned,
        ContenderKind::PostgresBlocking,
        ContenderKind::PostgresPolling,
        ContenderKind::Etcd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ContenderKind::Quorlock => "quorlock",
            ContenderKind::QuorlockPlain => "quorlock, fencing off",
            ContenderKind::Rslock => "rslock",
            ContenderKind::RslockTuned => "rslock, tuned",
            ContenderKind::PostgresBlocking => "PostgreSQL, blocking",
            ContenderKind::PostgresPolling => "PostgreSQL, polling",
            ContenderKind::Etcd => "etcd",
        }
    }

    /// Returns all contenders whose names contain the word.
    pub(crate) fn matching(word: &str) -> Vec<ContenderKind> {
        let word = word.to_lowercase();
        let mut all = ContenderKind::ALL.to_vec();
        all.retain(|who| who.name().to_lowercase().contains(&word));
        all
    }

    pub(crate) fn server(self) -> Server {
        match self {
            ContenderKind::Quorlock
            | ContenderKind::QuorlockPlain
            | ContenderKind::Rslock
            | ContenderKind::RslockTuned => Server::Redis,
            ContenderKind::PostgresBlocking | ContenderKind::PostgresPolling => Server::Postgres,
            ContenderKind::Etcd => Server::Etcd,
        }
    }

    pub(crate) fn is_redis(self) -> bool {
        self.server() == Server::Redis
    }

    /// Returns whether a wait may be dropped. In PostgreSQL, it would continue and win; etcd 3.4 was seen to wake no waiter after
    /// many cancelled ones.
    pub(crate) fn may_be_dropped(self) -> bool {
        self.is_redis()
    }

    /// Returns whether the lock is acquired with a `SET` command, and not in a script.
    pub(crate) fn sends_set(self) -> bool {
        matches!(self, ContenderKind::Rslock | ContenderKind::RslockTuned)
    }
}
