//! The options of acquiring a lock, for `run` and `acquire`.

use std::time::Duration;

use quorlock::{Redlock, RedlockBuilder};

use crate::args::{LockTimes, Locking, Nodes, Wait};
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
    let builder = nodes::builder(nodes, urls)?
        .name(lock.name.clone().unwrap_or(name))
        .fencing(!lock.no_fencing)
        .restart_guard(!lock.no_restart_guard)
        .key_prefix(&lock.key_prefix);
    Ok(with_times(builder, &lock.times))
}

pub(crate) fn with_times(mut builder: RedlockBuilder, times: &LockTimes) -> RedlockBuilder {
    builder = builder.ttl(times.ttl);
    if let Some(window) = times.guard_window {
        builder = builder.guard_window(window);
    }
    if let Some(retention) = times.counter_retention {
        builder = builder.counter_retention(retention);
    }
    builder
}

/// Checks what can be checked before connecting. Warns of a window that has no effect, or is too short for other clients.
pub(crate) fn check(resource: &str, lock: &Locking, report: &Report) -> Result<(), Failure> {
    Redlock::builder()
        .key_prefix(&lock.key_prefix)
        .check_resource(resource)
        .map_err(Failure::usage)?;
    check_window(&lock.times, !lock.no_restart_guard, report);
    Ok(())
}

/// Warns of a guard window that has no effect, or is too short for other clients.
pub(crate) fn check_window(times: &LockTimes, is_guarded: bool, report: &Report) {
    let shown = humantime::format_duration;
    let ttl = shown(times.ttl);
    let text = match times.guard_window {
        None if is_guarded && times.ttl > USUAL_WINDOW => format!(
            "--ttl {ttl} is longer than the usual guard window of {}: when a node has lost its data, other clients would use it \
             again while this lock is held. Give all clients of these nodes --guard-window {ttl}, this one too",
            shown(USUAL_WINDOW)
        ),
        Some(window) if window < times.ttl => format!(
            "--guard-window {} is shorter than --ttl {ttl}, so the TTL is used: set it to the longest TTL that any client uses",
            shown(window)
        ),
        _ => return,
    };
    report.event(&Event::Log {
        weight: Weight::Warning,
        text: &text,
    });
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
