//! The options of acquiring a lock, for `run` and `acquire`.

use std::time::Duration;

use quorlock::{Redlock, RedlockBuilder};

use crate::args::{Locking, Nodes, Wait};
use crate::event::{Event, Weight};
use crate::exit::{self, Failure};
use crate::nodes;
use crate::report::Report;

/// The guard window of clients that set none.
const USUAL_WINDOW: Duration = Duration::from_secs(30);

/// Returns a builder for clients that acquire locks. `name` is the default name.
pub(crate) fn builder(
    nodes: &Nodes,
    urls: &[String],
    lock: &Locking,
    name: String,
) -> Result<RedlockBuilder, Failure> {
    let mut builder = nodes::builder(nodes, urls)?
        .name(lock.name.clone().unwrap_or(name))
        .ttl(lock.ttl)
        .fencing(!lock.no_fencing)
        .restart_guard(!lock.no_restart_guard)
        .key_prefix(&lock.key_prefix);
    if let Some(window) = lock.guard_window {
        builder = builder.guard_window(window);
    }
    if let Some(retention) = lock.counter_retention {
        builder = builder.counter_retention(retention);
    }
    Ok(builder)
}

/// Checks what can be checked before connecting. Warns of a window that has no effect, or is too short for other clients.
pub(crate) fn check(resource: &str, lock: &Locking, report: &Report) -> Result<(), Failure> {
    Redlock::builder()
        .key_prefix(&lock.key_prefix)
        .check_resource(resource)
        .map_err(Failure::usage)?;
    if lock.guard_window.is_none() && !lock.no_restart_guard && lock.ttl > USUAL_WINDOW {
        let (ttl, usual) = (
            humantime::format_duration(lock.ttl),
            humantime::format_duration(USUAL_WINDOW),
        );
        report.event(&Event::Log {
            weight: Weight::Warning,
            text: &format!(
                "--ttl {ttl} is longer than {usual}, for which other clients leave a node out that has lost data: give all \
                 clients of these nodes --guard-window {ttl}, this one too"
            ),
        });
    }
    if let Some(window) = lock.guard_window.filter(|window| *window < lock.ttl) {
        report.event(&Event::Log {
            weight: Weight::Warning,
            text: &format!(
                "--guard-window {} is shorter than --ttl {}, so the TTL is used: give the longest TTL of all clients",
                humantime::format_duration(window),
                humantime::format_duration(lock.ttl)
            ),
        });
    }
    Ok(())
}

/// Returns how long to wait. `None`: a single attempt.
pub(crate) fn wait(lock: &Locking) -> Option<Wait> {
    let once = lock.no_wait || lock.wait == Wait::Within(Duration::ZERO);
    (!once).then_some(lock.wait)
}

/// Returns the failure with the code that was chosen for a lock that is held.
pub(crate) fn not_acquired(failure: Failure, lock: &Locking) -> Failure {
    match failure.code {
        exit::HELD => Failure {
            code: lock.conflict_exit_code.unwrap_or(exit::HELD),
            ..failure
        },
        _ => failure,
    }
}
