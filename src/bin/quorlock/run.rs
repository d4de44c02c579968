//! `quorlock run`: runs a command under a lock.

use std::path::Path;
use std::time::{Duration, SystemTime};

use quorlock::testbed::Testbed;
use quorlock::{Lease, MAX_NAME_BYTES, Period, Redlock, ReleaseOutcome};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::acquire::acquire;
use crate::args::Run;
use crate::command;
use crate::end::End;
use crate::event::Event;
use crate::exit::{self, Failure};
use crate::format;
use crate::guard::Guard;
use crate::job::Job;
use crate::locking;
use crate::nodes::{self, CLEAN_UP, clean_up};
use crate::report::Report;
use crate::signals::Signals;
use crate::supervise::{Outcome, Times, supervise};
use crate::variables::{CREDENTIALS_COMMAND, FENCING_TOKEN, NODES, PERIOD, RESOURCE};

/// How long to wait before a period is marked once more.
const MARK_AGAIN: Duration = Duration::from_millis(200);
/// For how long.
const MARK_WITHIN: Duration = Duration::from_secs(10);
/// As [`CLEAN_UP`], after a release that a quorum has confirmed, or a loss.
const TIDY_UP: Duration = Duration::from_millis(300);

pub(crate) async fn run(arguments: Run, report: &Report) -> Result<End, Failure> {
    let times = Times::new(arguments.lock.times.ttl, arguments.kill_after, arguments.max_hold)?;
    command::look_for(&arguments.command)?;
    locking::check(&arguments.resource, &arguments.lock, report)?;
    let (min_hold, ttl) = (arguments.min_hold, arguments.lock.times.ttl);
    if min_hold > ttl {
        return Err(Failure::usage(format!(
            "--min-hold {min} is longer than --ttl {}, so a crash would end the lock earlier: use --ttl {min}, and a \
             --guard-window of at least {min} for all clients of these nodes",
            humantime::format_duration(ttl),
            min = humantime::format_duration(min_hold),
        )));
    }
    let period = period(&arguments)?;
    let mut signals = Signals::for_command()?;
    if !arguments.testbed {
        let urls = nodes::urls(&arguments.nodes)?;
        return with_nodes(&arguments, &urls, times, period, &mut signals, report).await;
    }
    let work = async |testbed: &Testbed, signals: &mut Signals| {
        with_nodes(&arguments, &testbed.urls(), times, period, signals, report).await
    };
    nodes::with_testbed(5, None, &mut signals, work).await
}

/// Returns the current period of `--once-per`, by this host's clock: the one that also starts its scheduled commands.
fn period(arguments: &Run) -> Result<Option<Period>, Failure> {
    let Some(length) = arguments.once_per else {
        return Ok(None);
    };
    let current = Period::containing(SystemTime::now(), length);
    current.map(Some).ok_or_else(|| {
        let shown = humantime::format_duration(length);
        Failure::usage(format!(
            "--once-per {shown} is out of bounds: whole seconds, from 1s to 365days"
        ))
    })
}

async fn with_nodes(
    arguments: &Run,
    urls: &[String],
    times: Times,
    period: Option<Period>,
    signals: &mut Signals,
    report: &Report,
) -> Result<End, Failure> {
    let redlock = match signals.or(connect(arguments, urls)).await {
        Ok(redlock) => redlock?,
        Err(signal) => return Ok(End::by(signal)),
    };
    // The guard gets ready while the lock is being acquired.
    let guard = Guard::start(times.kill_after)?;
    let lease = match signals.or(lock(arguments, &redlock, report)).await {
        Ok(Ok(lease)) => lease,
        Ok(Err(failure)) => {
            clean_up(&redlock, CLEAN_UP).await;
            return Err(locking::not_acquired(failure, &arguments.lock));
        }
        Err(signal) => {
            clean_up(&redlock, CLEAN_UP).await;
            return Ok(End::by(signal));
        }
    };
    let held = Held {
        arguments,
        urls,
        lease: &lease,
        times,
        report,
    };
    let outcome = match period {
        None => held.run_command(None, guard, signals).await,
        Some(period) => held.once_per(period, guard, signals).await,
    };
    let lost = match &outcome {
        Ok(outcome) => matches!(outcome, Outcome::Lost),
        Err(failure) => failure.code == exit::LOST,
    };
    let handle = lease.handle();
    let released = lease.release().await;
    // A loss has been reported already.
    if !lost {
        report.event(&Event::Released {
            lease: &handle,
            outcome: &released,
        });
    }
    let enough = match released {
        ReleaseOutcome::Released => TIDY_UP,
        _ if lost => TIDY_UP,
        _ => CLEAN_UP,
    };
    clean_up(&redlock, enough).await;
    Ok(match outcome? {
        Outcome::Lost => End::Code(exit::LOST),
        // A signal may have come after the command's end.
        Outcome::Ended(end) => signals.interrupt().map_or(end, End::by),
    })
}

async fn connect(arguments: &Run, urls: &[String]) -> Result<Redlock, Failure> {
    let mut builder = locking::builder(&arguments.nodes, urls, &arguments.lock, name(arguments))?;
    if arguments.testbed {
        // No lock was ever held on a testbed of this run.
        builder = builder.restart_guard(false);
    }
    if let Some(max_hold) = arguments.max_hold {
        builder = builder.max_hold(max_hold);
    }
    builder
        .connect()
        .await
        .map_err(|error| nodes::not_connected(&error))
}

/// Returns the name by which others know this run, by default.
fn name(arguments: &Run) -> String {
    let program = arguments.command.first().map(Path::new).and_then(Path::file_name);
    let program = program.unwrap_or_default().to_string_lossy();
    let fitting = program.chars().take(MAX_NAME_BYTES / 8).collect::<String>();
    format!("quorlock run {fitting}")
}

async fn lock(arguments: &Run, redlock: &Redlock, report: &Report) -> Result<Lease, Failure> {
    let request = redlock.lock(arguments.resource.as_str());
    let lease = acquire(
        redlock,
        &arguments.resource,
        request,
        locking::wait(&arguments.lock),
        report,
    )
    .await?;
    report.event(&Event::Acquired { lease: &lease });
    Ok(lease)
}

/// A lock that is held for a command.
#[derive(Clone, Copy)]
struct Held<'a> {
    arguments: &'a Run,
    urls: &'a [String],
    lease: &'a Lease,
    times: Times,
    report: &'a Report,
}

impl Held<'_> {
    /// Runs the command unless the period is done, and marks it as done when the command has ended with 0.
    async fn once_per(
        &self,
        period: Period,
        guard: Guard,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let resource = self.lease.resource();
        let is_done = match signals.or(self.lease.is_done(period)).await {
            Ok(is_done) => is_done,
            Err(signal) => return Ok(Outcome::Ended(End::by(signal))),
        };
        self.still_held().await?;
        let is_done = is_done.map_err(|error| {
            let what =
                format!("it is not known whether {resource} is done, so the command was not run: {error}");
            Failure::new(exit::NO_QUORUM, what)
        })?;
        if is_done {
            self.report.event(&Event::Done { resource, period });
            let code = self.arguments.lock.conflict_exit_code.unwrap_or(exit::OK);
            return Ok(Outcome::Ended(End::Code(code)));
        }
        // The wait for the lock may have lasted into another period.
        let period = period.or_later(SystemTime::now());
        let outcome = self.run_command(Some(period), guard, signals).await?;
        // A command that was told to end, and ends with 0, may have left work undone.
        if !matches!(outcome, Outcome::Ended(End::Code(exit::OK))) || signals.told_to_end() {
            return Ok(outcome);
        }
        let signal = self.mark(period, signals).await;
        Ok(signal.map_or(outcome, |signal| Outcome::Ended(End::by(signal))))
    }

    /// Fails if the lease has no time left for a command: this process may have been stopped.
    async fn still_held(&self) -> Result<(), Failure> {
        let Held { lease, times, .. } = *self;
        if lease.remaining() > times.lead() {
            return Ok(());
        }
        // The lease may be renewed at this very moment. It would be too late for the command all the same.
        let lost = tokio::select! {
            biased;
            lost = lease.expiring(times.lead()) => lost.to_string(),
            () = sleep(MARK_AGAIN) => format!("the lease on {} was about to end", lease.resource()),
        };
        Err(Failure::new(
            exit::LOST,
            format!("the command was not run: {lost}"),
        ))
    }

    /// Marks the period as done. Tries again while the lease is held, for some seconds, or until a signal comes that is meant to
    /// end this process. Returns an interrupt. The first failure tells the most.
    async fn mark(&self, period: Period, signals: &mut Signals) -> Option<Signal> {
        let Held { lease, report, .. } = *self;
        let (begin, mut first) = (Instant::now(), None);
        loop {
            let why = lease.mark_done(period).await.err()?;
            let why = first.get_or_insert(why);
            sleep(MARK_AGAIN).await;
            if signals.told_to_end() || !lease.is_held() || begin.elapsed() > MARK_WITHIN {
                report.event(&Event::NotMarked {
                    resource: lease.resource(),
                    period,
                    why,
                });
                return signals.interrupt();
            }
        }
    }

    /// Runs the command.
    async fn run_command(
        &self,
        period: Option<Period>,
        guard: Guard,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let (arguments, lease) = (self.arguments, self.lease);
        let token = lease.fencing_token().map(|token| token.to_string());
        let period = period.map(|period| format::utc(period.start()));
        let mut environment = vec![
            (RESOURCE, Some(arguments.resource.as_str())),
            (FENCING_TOKEN, token.as_deref()),
            (PERIOD, period.as_deref()),
        ];
        let urls = self.urls.join(",");
        if arguments.testbed {
            environment.extend(nodes::testbed_variables(&urls));
        }
        if arguments.hide_nodes {
            environment.extend([(NODES, None), (CREDENTIALS_COMMAND, None)]);
        }
        self.still_held().await?;
        let mut job = Job::start(&arguments.command, &environment, arguments.signal, guard).await?;
        // Only now: a command that was not run needs no minimum. The TTL of the lease is in whole milliseconds.
        let least = arguments.min_hold.min(lease.ttl());
        lease.min_hold(least).map_err(Failure::usage)?;
        self.report.event(&Event::Started { pid: job.pid() });
        Ok(supervise(&mut job, lease, self.times, signals, self.report).await)
    }
}
