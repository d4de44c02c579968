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
    /// Before this, the node was another server, or a replica; `None` if it is not known to have been.
    pub(super) seen_since: Option<Instant>,
    /// How it keeps what it is told, where that is not as it should be.
    pub(super) shortcoming: Option<String>,
}

/// The server behind a node, when last heard from: another one in its place does not remember what this was told.
#[derive(Debug, Default)]
pub(super) struct Predecessor {
    pub(super) last: Option<(Arc<str>, Instant)>,
    /// It was a replica. Those miss what their masters had not passed on.
    pub(super) was_replica: bool,
    /// Since when it has been the server that it is, if it is known to have been another. Stays, for it may be connected to
    /// again, and even restarted, before that is long ago.
    pub(super) seen_since: Option<Instant>,
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
            Ok(()) => match mark(client, prefix, start_of(node_time, facts)).await {
                // Since it was started, it has forgotten nothing, whatever the mark says.
                Ok(mark) => (earlier(ago(now, node_time, mark), started), None),
                Err(why) => (started, Some(why)),
            },
            Err(Doubt { why, sure }) => {
                if sure {
                    unmark(client, prefix).await;
                }
                (started, Some(why))
            }
        };
        let other = before.was_replica
            || before.last.as_ref().is_some_and(|(run_id, heard)| {
                *run_id != facts.run_id && started.is_none_or(|started| started + 2 * SECOND < *heard)
            });
        let seen_since = if other { Some(now) } else { before.seen_since };
        Memory {
            // The later of them; `None` is the earliest.
            since: since.max(seen_since),
            seen_since,
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
                "started, or came back without its data, {} s ago: the restart guard leaves it out of new locks for the TTL, and for its window",
                age.as_secs()
            )
        })
    }
}

/// Why a server is not taken to keep everything that it acknowledges, and what is to be done about it.
struct Doubt {
    why: String,
    /// It is known not to. Otherwise it may, but nothing tells.
    sure: bool,
}

/// Whether the server keeps everything that it acknowledges.
async fn persistence(client: &Client, facts: &Facts) -> Result<(), Doubt> {
    const ADVICE: &str = "use appendonly yes and appendfsync always";
    let known = |why| Err(Doubt { why, sure: true });
    if facts.forgets {
        return known(format!(
            "appendonly is off: locks are forgotten in a restart; {ADVICE}"
        ));
    }
    let args = vec![
        Value::from_static_str("GET"),
        // And `no-appendfsync-on-rewrite`.
        Value::from_static_str("*appendfsync*"),
    ];
    let answer: Result<Value, _> = client.custom(command("CONFIG"), args).await;
    // Names and values in turns, from a list or a map.
    let settings = answer.and_then(|answer| answer.convert::<Vec<String>>());
    let settings = settings.unwrap_or_default();
    let setting = |name| {
        settings
            .chunks_exact(2)
            .find(|pair| pair[0] == name)
            .map(|pair| &*pair[1])
    };
    match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
        (Some("always"), Some("yes")) => known(format!(
            "no-appendfsync-on-rewrite is yes: the latest locks may be forgotten in a crash; {ADVICE}, without it"
        )),
        (Some("always"), _) => Ok(()),
        (Some(policy), _) => known(format!(
            "appendfsync is {policy}: the latest locks may be forgotten in a crash; {ADVICE}"
        )),
        (None, _) => Err(Doubt {
            why: "whether appendfsync is always cannot be told (the user needs +config|get), so it is taken not to be"
                .to_owned(),
            sure: false,
        }),
    }
}

/// Takes the mark from a server that may be forgetting. After a restart with better settings, it would be believed.
async fn unmark(client: &Client, prefix: &str) {
    let key = Value::from(format!("{prefix}{MEMORY_MARK}"));
    let _: Result<Value, _> = client.custom(command("DEL"), vec![key]).await;
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

/// When a server whose clock shows `node_time` was started, by that clock: not before it was.
fn start_of(node_time: i64, facts: &Facts) -> i64 {
    const SECOND: i64 = 1_000_000;
    node_time.saturating_sub(facts.uptime_micros().saturating_sub(SECOND).max(0))
}

/// `None` is longer ago than can be told.
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.zip(b).map(|(a, b)| a.min(b))
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
            seen_since: None,
            shortcoming: None,
        };
        assert_eq!(memory.gap(secs(30), start), Some((secs(0), secs(30))));
        assert_eq!(memory.gap(secs(30), start + secs(29)), Some((secs(29), secs(1))));
        assert_eq!(memory.gap(secs(30), start + secs(30)), None);
        assert_eq!(memory.gap(secs(0), start), None);
        let complete = Memory {
            since: None,
            seen_since: None,
            shortcoming: None,
        };
        assert_eq!(complete.gap(secs(3_600), start), None);
    }

    fn up_for(seconds: &str) -> Facts {
        let info =
            format!("role:master\r\nredis_version:7.0.15\r\nrun_id:a\r\nuptime_in_seconds:{seconds}\r\n");
        Facts::read(&info).unwrap()
    }

    /// What began a second too early is trusted a second too early.
    #[test]
    fn a_start_that_is_told_in_whole_seconds_is_taken_for_the_latest_that_it_can_be() {
        for started in [5_000_000, 5_500_000, 5_999_999] {
            for now in (started..started + 3_000_000).step_by(333_333) {
                let uptime = now / 1_000_000 - started / 1_000_000;
                let told = start_of(now, &up_for(&uptime.to_string()));
                let possible = started..started + 2_000_000;
                assert!(possible.contains(&told), "{started}, at {now}: {told}");
            }
        }
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let ages = up_for(&i64::MAX.to_string());
        for node_time in [i64::MIN, 0, i64::MAX] {
            assert!(start_of(node_time, &ages) <= node_time);
        }
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
