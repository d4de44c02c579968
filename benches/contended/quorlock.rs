//! quorlock with its defaults, and without fencing tokens.

use std::time::Duration;

use quorlock::{Lease, Redlock};

use crate::common::release;
use crate::contender::{Contender, ContenderKind, Failure, TTL};
use crate::servers::Addresses;

pub(crate) struct Quorlock(Redlock);

impl Contender for Quorlock {
    type Held = Lease;

    /// One manager for all waiters. Without the restart guard, because the servers have just started.
    async fn connect(
        who: ContenderKind,
        addresses: &Addresses,
        waiters: usize,
    ) -> Result<Vec<Self>, Failure> {
        let builder = Redlock::builder()
            .urls(&addresses.redis)
            .ttl(TTL)
            .fencing(who != ContenderKind::QuorlockPlain)
            .restart_guard(false)
            .connect_timeout(Duration::from_secs(30));
        let redlock = builder.connect().await.map_err(|error| error.to_string())?;
        Ok((0..waiters).map(|_| Quorlock(redlock.clone())).collect())
    }

    async fn acquire(&self, key: &str) -> Result<Lease, Failure> {
        self.0
            .lock(key)
            .acquire()
            .await
            .map_err(|error| error.to_string())
    }

    async fn release(&self, lease: Lease) -> Result<(), Failure> {
        release(lease).await
    }
}
