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

    pub(super) fn measure(name: &'static str, took: Duration, labels: Labels<'_>) {
        metrics::histogram!(name, labels).record(took);
    }

    pub(super) fn count_of_node(name: &'static str, node: &Arc<str>, reason: &'static str) {
        metrics::counter!(name, "node" => node.clone(), "reason" => reason).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod recorder {
    use super::*;

    pub(super) fn count(_: &'static str, _: Labels<'_>) {}
    pub(super) fn measure(_: &'static str, _: Duration, _: Labels<'_>) {}
    pub(super) fn count_of_node(_: &'static str, _: &Arc<str>, _: &'static str) {}
}

use recorder::{count, count_of_node, measure};

fn label_pair(label: Label) -> (&'static str, &'static str) {
    ("lock_label", label.unwrap_or_default())
}

/// Reports an outcome when it is dropped, so that a future that is dropped is counted, too.
#[derive(Debug)]
pub(crate) struct OutcomeGuard {
    label: Label,
    began: Instant,
    outcome: &'static str,
    report: fn(Label, &'static str, Duration),
}

impl OutcomeGuard {
    /// An acquire, from the call on.
    pub(crate) fn acquire(label: Label) -> OutcomeGuard {
        OutcomeGuard::new(label, "cancelled", |label, outcome, took| {
            let labels = [("outcome", outcome), label_pair(label)];
            count("quorlock_acquires_total", &labels);
            measure("quorlock_acquire_seconds", took, &labels);
        })
    }

    /// A release that somebody waits for. If nobody does any more, it goes on in the background.
    pub(crate) fn release(label: Label) -> OutcomeGuard {
        OutcomeGuard::new(label, "dropped", |label, outcome, _| released(label, outcome))
    }

    fn new(
        label: Label,
        default_outcome: &'static str,
        report: fn(Label, &'static str, Duration),
    ) -> OutcomeGuard {
        OutcomeGuard {
            label,
            began: Instant::now(),
            outcome: default_outcome,
            report,
        }
    }

    pub(crate) fn ended(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        (self.report)(self.label, self.outcome, self.began.elapsed());
    }
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard {
    #[cfg(feature = "metrics")]
    gauge: metrics::Gauge,
}

impl GaugeGuard {
    /// An acquire that waits: for another holder, here or elsewhere, or for nodes.
    pub(crate) fn waiter(label: Label) -> GaugeGuard {
        GaugeGuard::new("quorlock_waiters", &[label_pair(label)])
    }

    /// A lease.
    pub(crate) fn lease(label: Label) -> GaugeGuard {
        GaugeGuard::new("quorlock_leases_held", &[label_pair(label)])
    }

    /// A key that an attempt or a lease has left on a node, and that the node has not confirmed to be gone.
    pub(crate) fn leftover() -> GaugeGuard {
        GaugeGuard::new("quorlock_leftover_keys", &[])
    }
}

#[cfg(feature = "metrics")]
impl GaugeGuard {
    /// Keeps the gauge, so that a recorder that is installed later does not see the end of what it has not seen begin.
    fn new(name: &'static str, labels: Labels<'_>) -> GaugeGuard {
        let gauge = metrics::gauge!(name, labels);
        gauge.increment(1.0);
        GaugeGuard { gauge }
    }
}

#[cfg(feature = "metrics")]
impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

#[cfg(not(feature = "metrics"))]
impl GaugeGuard {
    fn new(_: &'static str, _: Labels<'_>) -> GaugeGuard {
        GaugeGuard {}
    }
}

/// An acquire has found the lock held, here or elsewhere: counted once for each.
pub(crate) fn contended(label: Label) {
    count("quorlock_contended_acquires_total", &[label_pair(label)]);
}

/// One attempt has ended.
pub(crate) fn attempt(label: Label, outcome: &'static str, took: Duration) {
    let labels = [("outcome", outcome), label_pair(label)];
    count("quorlock_attempts_total", &labels);
    measure("quorlock_attempt_seconds", took, &labels);
}

/// The nodes' counters differed, so that a token took a second round of requests.
pub(crate) fn token_raised(label: Label) {
    count("quorlock_token_second_rounds_total", &[label_pair(label)]);
}

pub(crate) fn renewal(label: Label, outcome: &'static str) {
    count(
        "quorlock_renewals_total",
        &[("outcome", outcome), label_pair(label)],
    );
}

/// The key of a lease was sent again to a node that had lost it.
pub(crate) fn heal(outcome: &'static str) {
    count("quorlock_heals_total", &[("outcome", outcome)]);
}

/// A lease was lost: each is counted once.
pub(crate) fn lost(label: Label, reason: &'static str) {
    count(
        "quorlock_leases_lost_total",
        &[("reason", reason), label_pair(label)],
    );
}

pub(crate) fn released(label: Label, outcome: &'static str) {
    count(
        "quorlock_releases_total",
        &[("outcome", outcome), label_pair(label)],
    );
}

/// A lease has ended, in whichever way.
pub(crate) fn hold_ended(label: Label, time: Duration) {
    measure("quorlock_hold_seconds", time, &[label_pair(label)]);
}

/// A request to a node ended with a fault.
pub(crate) fn fault(node: &Arc<str>, reason: &'static str) {
    count_of_node("quorlock_node_faults_total", node, reason);
}

/// Counts a refused write: its fencing token was smaller than one that the store had seen. Call it if your store checks tokens
/// itself; [`FenceGate`](crate::FenceGate) counts its own refusals.
///
/// Does nothing without the feature `metrics`.
pub fn count_stale_write() {
    count("quorlock_stale_writes_refused_total", &[]);
}

/// The metrics of one node.
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
    left_out: metrics::Gauge,
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
            left_out: gauge("quorlock_node_left_out_seconds"),
            clock_offset: gauge("quorlock_node_clock_offset_seconds"),
            request: metrics::histogram!("quorlock_node_request_seconds", "node" => node.clone()),
        };
        handles.up.set(0.0);
        NodeMeter { handles }
    }

    pub(crate) fn up(&self, is_up: bool) {
        self.handles.up.set(f64::from(u8::from(is_up)));
        if !is_up {
            self.handles.gives_locks.set(0.0);
        }
    }

    /// Whether the node gives locks, for how long it is left out if only time is missing, and its clock, in microseconds since
    /// 1970.
    pub(crate) fn record_look(&self, gives_locks: bool, left_out: Duration, clock: Option<u64>) {
        self.handles.gives_locks.set(f64::from(u8::from(gives_locks)));
        self.handles.left_out.set(left_out);
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
    pub(crate) fn record_look(&self, _: bool, _: Duration, _: Option<u64>) {}
    pub(crate) fn answered(&self, _: Duration) {}
}

/// Gives each name its unit and description. Starts the counters of losses, with these reasons, of acquires with these outcomes, and of
/// stale writes at zero: an alert on an increase would miss the first one otherwise.
#[cfg(feature = "metrics")]
pub(crate) fn describe(losses: &[&'static str], failures: &[&'static str]) {
    use metrics::Unit::{Count, Seconds};

    for reason in losses {
        metrics::counter!(
            "quorlock_leases_lost_total",
            &[("reason", *reason), label_pair(None)]
        )
        .increment(0);
    }
    for outcome in failures {
        let labels = [("outcome", *outcome), label_pair(None)];
        metrics::counter!("quorlock_acquires_total", &labels).increment(0);
    }
    metrics::counter!("quorlock_stale_writes_refused_total").increment(0);

    for (name, unit, text) in [
        (
            "quorlock_acquires_total",
            Count,
            "Acquires that have ended, by outcome.",
        ),
        (
            "quorlock_contended_acquires_total",
            Count,
            "Acquires that found the lock held, by another client or another task.",
        ),
        (
            "quorlock_attempts_total",
            Count,
            "Attempts to acquire, by outcome. An acquire that waits makes several.",
        ),
        (
            "quorlock_token_second_rounds_total",
            Count,
            "Attempts in which the nodes' counters differed, so that the token took a second round of requests.",
        ),
        (
            "quorlock_renewals_total",
            Count,
            "Renewals of leases, by outcome.",
        ),
        (
            "quorlock_heals_total",
            Count,
            "Attempts to set the key of a lease again on a node that had lost it.",
        ),
        (
            "quorlock_leases_lost_total",
            Count,
            "Leases that were lost, by reason. Each counts once.",
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
            "Requests that ended with a fault while they were waited for.",
        ),
    ] {
        metrics::describe_counter!(name, unit, text);
    }
    for (name, unit, text) in [
        ("quorlock_waiters", Count, "Acquires that wait."),
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
            "1 if an acquire can have this node's vote now.",
        ),
        (
            "quorlock_node_left_out_seconds",
            Seconds,
            "Time until the node gives locks, if only time is missing; otherwise 0.",
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
            "From the first poll until the lock was acquired, or not: waiting included.",
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
            "From sending a call, of one or several requests, to its answer.",
        ),
    ] {
        metrics::describe_histogram!(name, unit, text);
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn describe(_: &[&'static str], _: &[&'static str]) {}
