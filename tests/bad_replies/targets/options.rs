//! Settings: any durations and any drift are refused, or used in the requests to nodes.

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Action, Node};
use quorlock::{AcquireError, Backoff, ConnectError, Drift, MAX_RETENTION, MAX_TTL, MIN_TTL, Redlock};
use tokio::time::timeout;

use super::bytes::Bytes;
use super::recorder::{Recorder, on_paused_clock};

/// On the paused clock. The shortest back-off is a millisecond, so at most some fifty attempts.
const A_WHILE: Duration = Duration::from_millis(50);
const BOUNDS: [Duration; 9] = [
    MIN_TTL,
    MAX_TTL,
    Duration::ZERO,
    Duration::MAX,
    MAX_RETENTION,
    Duration::from_secs(30),
    Duration::from_secs(5),
    Duration::from_millis(1),
    Duration::from_nanos(1),
];

#[derive(Debug)]
struct Settings {
    ttl: Duration,
    budget: Option<Duration>,
    drift: Drift,
    within: Option<Duration>,
    watchdog: bool,
    max_hold: Option<Duration>,
    fencing: bool,
    retention: Option<Duration>,
    guard: Option<bool>,
    window: Duration,
    backoff: Backoff,
    lead: Duration,
    held: bool,
    /// Whether the settings are made at the manager, or at the lock.
    at_manager: bool,
}

pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let duration = |bytes: &mut Bytes<'_>| bytes.duration(&BOUNDS);
    let settings = Settings {
        ttl: duration(&mut bytes),
        budget: bytes.flag().then(|| duration(&mut bytes)),
        drift: match bytes.byte() % 3 {
            0 => Drift::default(),
            1 => Drift::from_ppm(bytes.u64() as u32 % 1_100_000, duration(&mut bytes)),
            _ => Drift::from_ppm(bytes.u64() as u32, duration(&mut bytes)),
        },
        within: bytes.flag().then(|| duration(&mut bytes)),
        watchdog: bytes.flag(),
        max_hold: bytes.flag().then(|| duration(&mut bytes)),
        fencing: !bytes.flag(),
        retention: bytes.flag().then(|| duration(&mut bytes)),
        guard: bytes.flag().then(|| bytes.flag()),
        window: match bytes.flag() {
            true => duration(&mut bytes),
            false => Duration::from_secs(30),
        },
        backoff: Backoff::new(duration(&mut bytes), duration(&mut bytes)),
        lead: duration(&mut bytes),
        held: bytes.flag(),
        at_manager: bytes.flag(),
    };
    on_paused_clock(check(&settings));
}

async fn check(settings: &Settings) {
    let node = Recorder::new(settings.held);
    let mut builder = Redlock::builder()
        .guard_window(settings.window)
        .backoff(settings.backoff)
        .drift(settings.drift)
        .restart_guard(settings.guard.unwrap_or(true));
    if settings.at_manager {
        builder = builder.ttl(settings.ttl);
        builder = with(builder, settings.budget, |builder, budget| {
            builder.node_budget(budget)
        });
        builder = with(builder, settings.max_hold, |builder, most| builder.max_hold(most));
        builder = with(builder, settings.retention, |builder, time| {
            builder.counter_retention(time)
        });
    }
    let redlock = match builder.custom_nodes(vec![node.clone() as Arc<dyn Node>]) {
        Ok(redlock) => redlock,
        // With the default TTL, they may be invalid already.
        Err(ConnectError::Config(_)) if !settings.at_manager => return,
        Err(ConnectError::Config(error)) => {
            return assert!(!are_valid(settings), "{error} for {settings:?}");
        }
        Err(other) => panic!("{other:?} for {settings:?}"),
    };
    let mut lock = redlock
        .lock("r")
        .watchdog(settings.watchdog)
        .fencing(settings.fencing);
    if !settings.at_manager {
        lock = lock.ttl(settings.ttl);
        lock = with(lock, settings.budget, |lock, budget| lock.node_budget(budget));
        lock = with(lock, settings.max_hold, |lock, most| lock.max_hold(most));
        lock = with(lock, settings.retention, |lock, time| {
            lock.counter_retention(time)
        });
    }
    lock = match settings.within {
        Some(limit) => lock.within(limit),
        None => lock.forever(),
    };
    let Ok(acquired) = timeout(A_WHILE, lock.acquire()).await else {
        return assert!(are_valid(settings) && settings.held, "{settings:?}");
    };
    let lease = match acquired {
        Ok(lease) => lease,
        Err(AcquireError::Config(error)) => {
            return assert!(!are_valid(settings), "{error} for {settings:?}");
        }
        Err(AcquireError::Held { .. }) => return assert!(are_valid(settings) && settings.held),
        Err(other) => panic!("{other:?} for {settings:?}"),
    };
    assert!(are_valid(settings) && !settings.held, "{settings:?}");
    let ttl = whole_millis(settings.ttl);
    let most = settings
        .max_hold
        .unwrap_or(Duration::MAX)
        .min(ttl - settings.drift.over(ttl));
    assert_eq!(lease.ttl(), ttl);
    assert!(lease.is_held() && lease.remaining() <= most, "{settings:?}");
    let asked = node.asked();
    let [request] = &asked[..] else {
        panic!("asked for {asked:?}");
    };
    let Action::Acquire {
        ttl: asked,
        fencing,
        guard,
    } = request.action
    else {
        panic!("asked for {request:?}");
    };
    assert_eq!(asked, ttl);
    assert_eq!(fencing.is_some(), settings.fencing);
    if let Some(fencing) = fencing {
        assert!(
            fencing
                .retention
                .is_none_or(|kept| kept >= ttl * 10 && kept <= MAX_RETENTION)
        );
    }
    assert_eq!(guard.is_some(), settings.guard.unwrap_or(true));
    assert!(guard.is_none_or(|guard| guard == longest_ttl(settings)));

    let _ = timeout(A_WHILE, lease.expiring(settings.lead)).await;
    let _ = lease.extend().await;
    assert!(lease.remaining() <= most, "{settings:?}");
    let _ = lease.release().await;
    redlock.shutdown().await;
}

fn with<T, U>(to: T, value: Option<U>, set: impl FnOnce(T, U) -> T) -> T {
    match value {
        Some(value) => set(to, value),
        None => to,
    }
}

fn whole_millis(ttl: Duration) -> Duration {
    Duration::from_millis(ttl.as_millis() as u64)
}

/// Returns the longest TTL of the manager's locks, for which nodes are left out. The default TTL is no longer than the window.
fn longest_ttl(settings: &Settings) -> Duration {
    let own = if settings.at_manager {
        settings.ttl
    } else {
        MIN_TTL
    };
    settings.window.max(own)
}

/// Checks the documented bounds.
fn are_valid(settings: &Settings) -> bool {
    if settings.ttl < MIN_TTL || settings.ttl > MAX_TTL {
        return false;
    }
    let ttl = whole_millis(settings.ttl);
    let least_retention = (ttl * 10).max(Duration::from_secs(5));
    let retention = settings.retention.unwrap_or(Duration::MAX);
    settings.drift.over(ttl) < ttl
        && settings
            .budget
            .is_none_or(|budget| !budget.is_zero() && budget < ttl)
        && settings.max_hold.is_none_or(|most| !most.is_zero())
        && settings.window <= MAX_TTL
        && settings.ttl <= longest_ttl(settings)
        && (retention == Duration::MAX || (retention >= least_retention && retention <= MAX_RETENTION))
}
