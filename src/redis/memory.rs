//! Since when a server remembers whatever it was told (R2).
//!
//! A server that writes everything to disk before it answers (`appendonly yes`, `appendfsync always`) remembers across
//! restarts, unless its disk went with it: a container without a volume, a wiped folder. Settings do not tell. So the
//! server is given something to remember, a key that says since when its memory is complete. If the key is still there
//! after a restart, so is the rest. Of any other server, memory begins with its start.

use std::sync::Arc;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::Value;
use tokio::time::{Duration, Instant};

use super::link::command;
use super::probe::Facts;
use crate::options::MEMORY_MARK;

/// What a start that is told by an uptime in whole seconds may be off by.
const SECOND: Duration = Duration::from_secs(1);

/// Less than the guard's window, unless somebody has set that.
const YOUNG: Duration = Duration::from_secs(30);

/// What is known of a server's memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// What it was told before this, it may have forgotten. `None` if that is longer ago than this machine can tell.
    since: Option<Instant>,
    /// How it keeps what it is told, where that is not as it should be.
    pub(super) shortcoming: Option<String>,
}

/// The server behind a node, when last heard from: another one in its place does not remember what this was told.
#[derive(Debug, Default)]
pub(super) struct Predecessor {
    pub(super) last: Option<(Arc<str>, Instant)>,
    /// It was a replica. Those miss what their masters had not passed on.
    pub(super) was_replica: bool,
}

impl Memory {
    /// Asks a server that was just probed, whose clock shows `node_time` at `now`.
    pub(super) async fn of(
        client: &Client,
        facts: &Facts,
        prefix: &str,
        node_time: i64,
        now: Instant,
        before: &Predecessor,
    ) -> Memory {
        let started = now.checked_sub(facts.uptime().saturating_sub(SECOND));
        let (since, shortcoming) = match persistence(client, facts).await {
            Ok(()) => match mark(client, prefix, node_time.saturating_sub(facts.uptime_micros())).await {
                Ok(mark) => (ago(now, node_time, mark), None),
                Err(why) => (started, Some(why)),
            },
            Err(why) => (started, Some(why)),
        };
        let other = before.was_replica
            || before.last.as_ref().is_some_and(|(run_id, heard)| {
                *run_id != facts.run_id && started.is_none_or(|started| started + 2 * SECOND < *heard)
            });
        Memory {
            since: if other { Some(now) } else { since },
            shortcoming,
        }
    }

    /// R2: whether the server may have forgotten something that it was told within the last `guard`: how long ago its memory
    /// begins, and for how much longer that is so.
    pub(super) fn gap(&self, guard: Duration, now: Instant) -> Option<(Duration, Duration)> {
        let ago = now.saturating_duration_since(self.since?);
        let remaining = guard.checked_sub(ago).filter(|left| !left.is_zero())?;
        Some((ago, remaining))
    }

    /// What there is to say of a server whose memory has just begun.
    pub(super) fn youth(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.since?);
        (age < YOUNG).then(|| {
            format!(
                "started, or lost its data, {} s ago: gives no locks before the restart guard's time has passed",
                age.as_secs()
            )
        })
    }
}

/// Whether the server keeps everything that it acknowledges; if not, what is to be done about it.
async fn persistence(client: &Client, facts: &Facts) -> Result<(), String> {
    const ADVICE: &str = "use appendonly yes and appendfsync always";
    if facts.forgets {
        return Err(format!(
            "appendonly is off: locks are forgotten in a restart; {ADVICE}"
        ));
    }
    let args = vec![
        Value::from_static_str("GET"),
        Value::from_static_str("appendfsync"),
    ];
    let answer: Result<Value, _> = client.custom(command("CONFIG"), args).await;
    // Two entries of a list, or one of a map.
    match answer.ok().and_then(|answer| answer.convert::<Vec<String>>().ok()) {
        Some(pair) if pair.get(1).is_some_and(|policy| policy == "always") => Ok(()),
        Some(pair) if pair.len() == 2 => Err(format!(
            "appendfsync is {}: the latest locks may be forgotten in a crash; {ADVICE}",
            pair[1]
        )),
        _ => Err(
            "whether appendfsync is always cannot be told (the user needs +config|get), so it is taken not to be"
                .to_owned(),
        ),
    }
}

/// The moment that the mark says. A server that has none is given one: its memory begins with its start.
async fn mark(client: &Client, prefix: &str, started: i64) -> Result<i64, String> {
    let key = || Value::from(format!("{prefix}{MEMORY_MARK}"));
    let fault = |error: fred::error::Error| {
        format!(
            "whether it remembers across restarts cannot be told ({}), so it is taken not to",
            super::fault::from_error(&error)
        )
    };
    for _ in 0..2 {
        let found: Option<String> = client.custom(command("GET"), vec![key()]).await.map_err(fault)?;
        if let Some(text) = found {
            return text
                .parse()
                .map_err(|_| format!("{prefix}{MEMORY_MARK} holds other data than a time"));
        }
        let args = vec![
            key(),
            Value::from(started.to_string()),
            Value::from_static_str("NX"),
        ];
        let _: Value = client.custom(command("SET"), args).await.map_err(fault)?;
    }
    Err("what it is given to remember does not stay".to_owned())
}

/// When the node's clock showed `then`, seen from `now`. A moment that is still to come is now.
fn ago(now: Instant, node_time: i64, then: i64) -> Option<Instant> {
    let micros = u64::try_from(node_time.saturating_sub(then)).unwrap_or(0);
    now.checked_sub(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_may_be_forgotten_is_so_until_the_guard_has_passed() {
        let start = Instant::now();
        let memory = Memory {
            since: Some(start),
            shortcoming: None,
        };
        assert_eq!(memory.gap(secs(30), start), Some((secs(0), secs(30))));
        assert_eq!(memory.gap(secs(30), start + secs(29)), Some((secs(29), secs(1))));
        assert_eq!(memory.gap(secs(30), start + secs(30)), None);
        assert_eq!(memory.gap(secs(0), start), None);
        let complete = Memory {
            since: None,
            shortcoming: None,
        };
        assert_eq!(complete.gap(secs(3_600), start), None);
    }

    #[test]
    fn moments_of_the_nodes_clock_are_told_by_their_distance() {
        let now = Instant::now() + secs(3_600);
        assert_eq!(ago(now, 10_000_000, 4_000_000), Some(now - secs(6)));
        // The clock was put back since: as if it had begun just now.
        assert_eq!(ago(now, 4_000_000, 10_000_000), Some(now));
        // Longer ago than there are clocks.
        assert!(ago(now, i64::MAX, i64::MIN).is_none_or(|then| then < now - secs(3_600)));
    }
}
