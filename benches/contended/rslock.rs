//! `rslock` as in its README, and with shorter delays.

use std::time::Duration;

use rslock::{Lock, LockManager};

use crate::contender::{Contender, ContenderKind, Failure, TTL};
use crate::servers::Addresses;

/// The longest delay between two tries. It is drawn evenly, in whole milliseconds.
const DELAY: Duration = Duration::from_millis(10);
const TRIES: u32 = 10_000;

pub(crate) struct Rslock(LockManager);

impl Contender for Rslock {
    type Held = Lock;

    async fn connect(
        who: ContenderKind,
        addresses: &Addresses,
        waiters: usize,
    ) -> Result<Vec<Self>, Failure> {
        let mut manager = LockManager::new(addresses.redis.clone());
        if who == ContenderKind::RslockTuned {
            manager.set_retry(TRIES, DELAY);
        }
        Ok((0..waiters).map(|_| Rslock(manager.clone())).collect())
    }

    async fn acquire(&self, key: &str) -> Result<Lock, Failure> {
        self.0.lock(key, TTL).await.map_err(|error| error.to_string())
    }

    /// Its unlock returns no result.
    async fn release(&self, lock: Lock) -> Result<(), Failure> {
        self.0.unlock(&lock).await;
        Ok(())
    }
}
