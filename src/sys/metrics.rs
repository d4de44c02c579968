//! What the library counts and measures. `docs/metrics.md` describes it for users.
//!
//! Without the feature `metrics`, all of this does nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The label of a request.
pub(crate) type Label = Option<&'static str>;
type Labels<'a> = &'a [(&'static str, &'static str)];

#[cfg(feature = "metrics")]
mod recorder {
    use super::*;

    pub(super) fn count(name: &'static str, labels: Labels<'_>) {
        metrics::counter!(name, labels).increment(1);
    }

    pub(super) fn add(name: &'static str, by: f64, labels: Labels<'_>) {
        metrics::gauge!(name, labels).increment(by);
    }

    pub(super) fn measure(name: &'static str, took: Duration, labels: Labels<'_>) {
        metrics::histogram!(name, labels).record(took);
    }

    pub(super) fn count_of_node(name: &'static str, node: &Arc<str>, kind: &'static str) {
        metrics::counter!(name, "node" => node.clone(), "kind" => kind).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod recorder {
    use super::*;

    pub(super) fn count(_: &'static str, _: Labels<'_>) {}
    pub(super) fn add(_: &'static str, _: f64, _: Labels<'_>) {}
    pub(super) fn measure(_: &'static str, _: Duration, _: Labels<'_>) {}
    pub(super) fn count_of_node(_: &'static str, _: &Arc<str>, _: &'static str) {}
}

use recorder::{add, count, count_of_node, measure};

fn word(label: Label) -> (&'static str, &'static str) {
    ("label", label.unwrap_or_default())
}

/// Something with an outcome. It is reported when this is dropped, so that a future that is dropped is counted, too.
#[derive(Debug)]
pub(crate) struct Pending {
    label: Label,
    began: Instant,
    outcome: &'static str,
    report: fn(Label, &'static str, Duration),
}

impl Pending {
    /// An acquire, from the call on.
    pub(crate) fn acquire(label: Label) -> Pending {
        Pending::new(label, "cancelled", |label, outcome, took| {
            let labels = [("outcome", outcome), word(label)];
            count("quorlock_acquires_total", &labels);
            measure("quorlock_acquire_seconds", took, &labels);
        })
    }

    /// A release that somebody waits for. If nobody does any more, it goes on in the background.
    pub(crate) fn release(label: Label) -> Pending {
        Pending::new(label, "dropped", |label, outcome, _| released(label, outcome))
    }

    fn new(label: Label, unless_ended: &'static str, report: fn(Label, &'static str, Duration)) -> Pending {
        Pending {
            label,
            began: Instant::now(),
            outcome: unless_ended,
            report,
        }
    }

    pub(crate) fn ended(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        (self.report)(self.label, self.outcome, self.began.elapsed());
    }
}

/// Counts what there is of something, until this is dropped.
#[derive(Debug)]
pub(crate) struct Present(&'static str, Label);

impl Present {
    /// An acquire that has to wait for another holder, here or elsewhere, or for nodes.
    pub(crate) fn waiter(label: Label) -> Present {
        count("quorlock_contended_acquires_total", &[word(label)]);
        Present::new("quorlock_waiting", label)
    }

    /// A lease.
    pub(crate) fn lease(label: Label) -> Present {
        Present::new("quorlock_leases_held", label)
    }

    /// A key that an attempt or a lease has left on a node, and that the node has not confirmed to be gone.
    pub(crate) fn leftover() -> Present {
        Present::new("quorlock_leftover_keys", None)
    }

    fn new(name: &'static str, label: Label) -> Present {
        add(name, 1.0, &[word(label)]);
        Present(name, label)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        add(self.0, -1.0, &[word(self.1)]);
    }
}

/// One attempt has ended.
pub(crate) fn attempt(label: Label, outcome: &'static str, took: Duration) {
    let labels = [("outcome", outcome), word(label)];
    count("quorlock_attempts_total", &labels);
    measure("quorlock_attempt_seconds", took, &labels);
}

/// The nodes' counters differed, so that a token took a second round of requests.
pub(crate) fn token_raised(label: Label) {
    count("quorlock_token_second_rounds_total", &[word(label)]);
}

pub(crate) fn renewal(label: Label, outcome: &'static str) {
    count("quorlock_renewals_total", &[("outcome", outcome), word(label)]);
}

/// A node that had lost the key of a lease was sent it again.
pub(crate) fn heal(outcome: &'static str) {
    count("quorlock_heals_total", &[("outcome", outcome)]);
}

/// A lease was lost: each is counted once.
pub(crate) fn lost(label: Label, reason: &'static str) {
    count("quorlock_leases_lost_total", &[("reason", reason), word(label)]);
}

pub(crate) fn released(label: Label, outcome: &'static str) {
    count("quorlock_releases_total", &[("outcome", outcome), word(label)]);
}

/// A lease has ended, in whichever way.
pub(crate) fn held(label: Label, time: Duration) {
    measure("quorlock_hold_seconds", time, &[word(label)]);
}

/// A node did not do what a request asked for.
pub(crate) fn fault(node: &Arc<str>, kind: &'static str) {
    count_of_node("quorlock_node_faults_total", node, kind);
}

/// Counts a write that was refused, because its fencing token was older than one that the store had seen: somebody went on to write
/// after the end of a lease. For stores that check tokens themselves; [`FenceGate`](crate::FenceGate) counts its own refusals.
///
/// Does nothing without the feature `metrics`.
pub fn count_stale_write() {
    count("quorlock_stale_writes_refused_total", &[]);
}

/// What one node is like.
#[derive(Debug)]
pub(crate) struct NodeMeter {
    #[cfg(feature = "metrics")]
    handles: Handles,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct Handles {
    up: metrics::Gauge,
    gives_locks: metrics::Gauge,
    guard: metrics::Gauge,
    clock_offset: metrics::Gauge,
    request: metrics::Histogram,
}

#[cfg(feature = "metrics")]
impl NodeMeter {
    pub(crate) fn new(node: &Arc<str>) -> NodeMeter {
        let gauge = |name: &'static str| metrics::gauge!(name, "node" => node.clone());
        let handles = Handles {
            up: gauge("quorlock_node_up"),
            gives_locks: gauge("quorlock_node_gives_locks"),
            guard: gauge("quorlock_node_guard_seconds"),
            clock_offset: gauge("quorlock_node_clock_offset_seconds"),
            request: metrics::histogram!("quorlock_node_request_seconds", "node" => node.clone()),
        };
        handles.up.set(0.0);
        NodeMeter { handles }
    }

    pub(crate) fn up(&self, is_up: bool) {
        self.handles.up.set(f64::from(u8::from(is_up)));
    }

    /// Whether the node gives locks, for how long the restart guard leaves it out, and its clock, in microseconds since 1970.
    pub(crate) fn looked_at(&self, gives_locks: bool, guard: Duration, clock: Option<u64>) {
        self.handles.gives_locks.set(f64::from(u8::from(gives_locks)));
        self.handles.guard.set(guard);
        let here = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        if let (Some(there), Ok(here)) = (clock, here) {
            self.handles
                .clock_offset
                .set(there as f64 / 1e6 - here.as_secs_f64());
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, took: Duration) {
        self.handles.request.record(took);
    }
}

#[cfg(not(feature = "metrics"))]
impl NodeMeter {
    pub(crate) fn new(_: &Arc<str>) -> NodeMeter {
        NodeMeter {}
    }

    pub(crate) fn up(&self, _: bool) {}
    pub(crate) fn looked_at(&self, _: bool, _: Duration, _: Option<u64>) {}
    pub(crate) fn answered(&self, _: Duration) {}
}

/// Gives each name its unit and description.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use metrics::Unit::{Count, Seconds};

    for (name, unit, text) in [
        (
            "quorlock_acquires_total",
            Count,
            "Acquires that have ended, by outcome.",
        ),
        (
            "quorlock_contended_acquires_total",
            Count,
            "Acquires that had to wait: for another holder, or for nodes.",
        ),
        (
            "quorlock_attempts_total",
            Count,
            "Attempts to acquire, by outcome. An acquire that waits makes several.",
        ),
        (
            "quorlock_token_second_rounds_total",
            Count,
            "Acquires for which the nodes' counters differed, so that the token took a second round of requests.",
        ),
        (
            "quorlock_renewals_total",
            Count,
            "Renewals of leases, by outcome.",
        ),
        (
            "quorlock_heals_total",
            Count,
            "Keys of leases that were set again on nodes that had lost them, by outcome.",
        ),
        (
            "quorlock_leases_lost_total",
            Count,
            "Leases that were lost, by reason. Each is counted once.",
        ),
        ("quorlock_releases_total", Count, "Releases, by outcome."),
        (
            "quorlock_stale_writes_refused_total",
            Count,
            "Writes that were refused because of an old fencing token.",
        ),
        (
            "quorlock_node_faults_total",
            Count,
            "Requests that a node did not do, by kind of fault.",
        ),
    ] {
        metrics::describe_counter!(name, unit, text);
    }
    for (name, unit, text) in [
        ("quorlock_waiting", Count, "Acquires that wait."),
        ("quorlock_leases_held", Count, "Leases held by this process."),
        (
            "quorlock_leftover_keys",
            Count,
            "Keys of lost attempts and ended leases that nodes have not confirmed to be gone.",
        ),
        (
            "quorlock_node_up",
            Count,
            "1 if the node is connected and knows this client.",
        ),
        (
            "quorlock_node_gives_locks",
            Count,
            "1 if the node gives locks: it is up, and neither the restart guard nor another list of nodes is in the way.",
        ),
        (
            "quorlock_node_guard_seconds",
            Seconds,
            "How much longer the restart guard leaves the node out.",
        ),
        (
            "quorlock_node_clock_offset_seconds",
            Seconds,
            "The node's clock less this machine's.",
        ),
    ] {
        metrics::describe_gauge!(name, unit, text);
    }
    for (name, unit, text) in [
        (
            "quorlock_acquire_seconds",
            Seconds,
            "From the call until the lock was acquired, or not: waiting included.",
        ),
        (
            "quorlock_attempt_seconds",
            Seconds,
            "One attempt: the time that the nodes took.",
        ),
        ("quorlock_hold_seconds", Seconds, "How long leases were held."),
        (
            "quorlock_node_request_seconds",
            Seconds,
            "From a request to its answer, by node.",
        ),
    ] {
        metrics::describe_histogram!(name, unit, text);
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn describe() {}
