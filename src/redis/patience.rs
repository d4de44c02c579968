//! How long a node may take to open a connection.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::fault;
use crate::node::Fault;
use crate::sys::mutex::lock;

/// A server that has answered at once may still need this long the next time. Longer than the grace in `reconnect.rs`, which would
/// otherwise end in the same moment.
const SHORTEST: Duration = Duration::from_millis(600);
/// The limit is so many times what the last opening took. After an opening that took too long, so many times the last limit.
const SLOWER: u32 = 4;

/// A connection can die while it is being opened. So one that takes much longer than the last one did is given up, and another one
/// is opened in its place (T4).
pub(super) struct Patience {
    limit: Mutex<Duration>,
    longest: Duration,
}

impl Patience {
    /// Waits for `longest` until the node has been connected to once.
    pub(super) fn new(longest: Duration) -> Patience {
        Patience {
            limit: Mutex::new(longest),
            longest,
        }
    }

    /// Waits for a connection to open, for a limited time. Each time that is too short, the next one is four times as long.
    pub(super) async fn wait_for<T>(
        &self,
        opening: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let limit = *lock(&self.limit);
        let since = Instant::now();
        let late = |_| match limit == self.longest {
            true => Err(too_late(limit)),
            false => Err(fault::disconnected(
                "the new connection took much longer to answer its first commands than earlier ones".into(),
            )),
        };
        let opened = timeout(limit, opening).await.unwrap_or_else(late);
        // A fault says nothing about how long an opened connection takes.
        match &opened {
            Ok(_) => self.set((since.elapsed() * SLOWER).max(SHORTEST)),
            Err(_) if since.elapsed() >= limit => self.set(limit * SLOWER),
            Err(_) => {}
        }
        opened
    }

    fn set(&self, limit: Duration) {
        *lock(&self.limit) = limit.min(self.longest);
    }
}

/// The fault of a server that has not let a connection open in time.
pub(super) fn too_late(limit: Duration) -> Fault {
    let limit = humantime::format_duration(limit);
    fault::disconnected(format!("no answer to the first commands within {limit}").into())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(5);

    async fn opens_after(patience: &Patience, time: Duration) -> bool {
        let opening = async {
            sleep(time).await;
            Ok(())
        };
        patience.wait_for(opening).await.is_ok()
    }

    /// Returns for how long a connection that never opens is waited for.
    async fn given_up_after(patience: &Patience) -> Duration {
        let since = Instant::now();
        patience
            .wait_for(pending::<Result<(), Fault>>())
            .await
            .unwrap_err();
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_fast_is_waited_for_for_longer_each_time() {
        let patience = Patience::new(LONGEST);
        assert_eq!(given_up_after(&patience).await, LONGEST);
        assert!(opens_after(&patience, Duration::from_millis(1)).await);
        let mut waited = Vec::new();
        for _ in 0..4 {
            waited.push(given_up_after(&patience).await.as_millis());
        }
        assert_eq!(waited, [600, 2_400, 5_000, 5_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_server_is_waited_for_as_long_as_it_may_need() {
        let patience = Patience::new(LONGEST);
        assert!(opens_after(&patience, Duration::from_secs(1)).await);
        assert!(opens_after(&patience, Duration::from_secs(3)).await);
        assert_eq!(given_up_after(&patience).await, LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn faults_change_nothing() {
        let patience = Patience::new(LONGEST);
        assert!(opens_after(&patience, Duration::ZERO).await);
        let refused = async { Err::<(), _>(Fault::Loading) };
        assert_eq!(patience.wait_for(refused).await, Err(Fault::Loading));
        assert_eq!(given_up_after(&patience).await, SHORTEST);
    }

    /// A time that no option sets would mislead, and change with each attempt: the same fault is logged once.
    #[tokio::test(start_paused = true)]
    async fn only_the_connect_timeout_is_named() {
        let patience = Patience::new(LONGEST);
        assert!(opens_after(&patience, Duration::from_millis(223)).await);
        let mut faults = Vec::new();
        for _ in 0..3 {
            let never = pending::<Result<(), Fault>>();
            faults.push(patience.wait_for(never).await.unwrap_err().to_string());
        }
        let usual = "not connected: the new connection took much longer to answer its first commands than earlier ones";
        assert_eq!(
            faults,
            [
                usual,
                usual,
                "not connected: no answer to the first commands within 5s"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_connect_timeout_is_never_exceeded() {
        let patience = Patience::new(Duration::from_millis(100));
        assert!(opens_after(&patience, Duration::ZERO).await);
        assert_eq!(given_up_after(&patience).await, Duration::from_millis(100));
    }
}
