//! `quorlock run`: runs a command under a lock.

use std::path::Path;
use std::time::Duration;

use quorlock::testbed::Testbed;
use quorlock::{Lease, MAX_NAME_BYTES, Redlock, ReleaseOutcome};

use crate::acquire::acquire;
use crate::args::Run;
use crate::command;
use crate::end::End;
use crate::event::Event;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::Job;
use crate::locking;
use crate::nodes::{self, CLEAN_UP, clean_up};
use crate::report::Report;
use crate::signals::Signals;
use crate::supervise::{Outcome, Times, supervise};

const RESOURCE: &str = "QUORLOCK_RESOURCE";
const FENCING_TOKEN: &str = "QUORLOCK_FENCING_TOKEN";
/// As [`CLEAN_UP`], after a release that a quorum has confirmed, or a loss.
const TIDY_UP: Duration = Duration::from_millis(300);

pub(crate) async fn run(arguments: Run, report: &Report) -> Result<End, Failure> {
    let times = Times::new(arguments.lock.ttl, arguments.kill_after, arguments.max_hold)?;
    command::look_for(&arguments.command)?;
    locking::check(&arguments.resource, &arguments.lock, report)?;
    let mut signals = Signals::for_command()?;
    if !arguments.testbed {
        let urls = nodes::urls(&arguments.nodes)?;
        return with_nodes(&arguments, &urls, times, &mut signals, report).await;
    }
    let work = async |testbed: &Testbed, signals: &mut Signals| {
        with_nodes(&arguments, &testbed.urls(), times, signals, report).await
    };
    nodes::with_testbed(5, None, &mut signals, work).await
}

async fn with_nodes(
    arguments: &Run,
    urls: &[String],
    times: Times,
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
    let outcome = run_command(arguments, guard, &lease, times, signals, report).await;
    let lost = matches!(outcome, Ok(Outcome::Lost));
    let released = lease.release().await;
    // A loss has been reported already.
    if !lost {
        report.event(&Event::Released {
            resource: &arguments.resource,
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
    report.event(&Event::Acquired {
        resource: lease.resource(),
        votes: lease.votes(),
        token: lease.fencing_token(),
        valid: lease.remaining(),
    });
    Ok(lease)
}

async fn run_command(
    arguments: &Run,
    guard: Guard,
    lease: &Lease,
    times: Times,
    signals: &mut Signals,
    report: &Report,
) -> Result<Outcome, Failure> {
    let token = lease.fencing_token().map(|token| token.to_string());
    let mut environment = vec![
        (RESOURCE, Some(arguments.resource.as_str())),
        (FENCING_TOKEN, token.as_deref()),
    ];
    if arguments.hide_nodes {
        environment.push((nodes::VARIABLE, None));
    }
    let mut job = Job::start(&arguments.command, &environment, arguments.signal, guard).await?;
    report.event(&Event::Started { pid: job.pid() });
    Ok(supervise(&mut job, lease, times, signals, report).await)
}
