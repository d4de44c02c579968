//! `quorlock acquire`, `extend` and `release`: locks that outlive a process.

use std::time::{Duration, Instant};

use quorlock::{AttachError, DetachedLease, FencingToken, Lease, Redlock, ReleaseOutcome};
use serde_json::{Value, json};

use crate::args::{Acquire, Handle};
use crate::end::End;
use crate::exit::{self, Failure};
use crate::format::{at, millis, short};
use crate::nodes::{self, CLEAN_UP, clean_up};
use crate::report::Report;
use crate::signals::Signals;
use crate::variables::{FENCING_TOKEN, HANDLE, RESOURCE};
use crate::{acquire, locking, out};

pub(crate) async fn acquire(arguments: Acquire, report: &Report) -> Result<End, Failure> {
    locking::check(&arguments.resource, &arguments.lock, report)?;
    let urls = nodes::urls(&arguments.nodes)?;
    let mut signals = Signals::for_command()?;
    let connecting = async {
        let name = "a handle of quorlock acquire".to_owned();
        let builder = locking::builder(&arguments.nodes, &urls, &arguments.lock, name)?.watchdog(false);
        builder
            .connect()
            .await
            .map_err(|error| nodes::not_connected(&error))
    };
    let redlock = match signals.or(connecting).await {
        Ok(redlock) => redlock?,
        Err(signal) => return Ok(End::by(signal)),
    };
    let acquiring = acquire::acquire(
        &redlock,
        &arguments.resource,
        redlock.lock(&arguments.resource),
        locking::wait(&arguments.lock),
        report,
    );
    let end = match signals.or(acquiring).await {
        Ok(Ok(lease)) => give_out(&redlock, lease, arguments.export, report).await,
        Ok(Err(failure)) => Err(locking::not_acquired(failure, &arguments.lock)),
        Err(signal) => Ok(End::by(signal)),
    };
    clean_up(&redlock, CLEAN_UP).await;
    end
}

/// Prints the lease's handle, and leaves the lock to whoever reads it.
async fn give_out(redlock: &Redlock, lease: Lease, export: bool, report: &Report) -> Result<End, Failure> {
    let valid = lease.remaining();
    let Some(detached) = lease.detach() else {
        return Err(lost("the lease ended before it could be given out"));
    };
    let reason = match print(&detached, valid, export, report) {
        Ok(true) => return Ok(End::Code(exit::OK)),
        Ok(false) => "nobody reads the handle".to_owned(),
        Err(failure) => format!("{} (the lock's handle)", failure.message),
    };
    // Nobody has the handle, so nobody could release the lock.
    let outcome = redlock
        .release_detached(&detached)
        .await
        .map_err(Failure::usage)?;
    let resource = detached.resource();
    Err(Failure::new(
        exit::SYSTEM,
        format!("{reason}; {resource}: {outcome}"),
    ))
}

fn print(detached: &DetachedLease, valid: Duration, export: bool, report: &Report) -> Result<bool, Failure> {
    let document = || {
        let mut document = validity(detached, valid);
        document["handle"] = detached.to_string().into();
        document["owner"] = detached.owner().value().into();
        document
    };
    out::print_one(report, document, || match export {
        true => exported(detached),
        false => format!("{detached}\n"),
    })
}

fn validity(detached: &DetachedLease, valid: Duration) -> Value {
    json!({
        "resource": detached.resource(), "fencing_token": detached.fencing_token().map(FencingToken::get),
        "valid_ms": millis(valid), "valid_until": at(Instant::now() + valid),
    })
}

/// Returns a line for the shell to evaluate.
fn exported(detached: &DetachedLease) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let token = detached.fencing_token().map(|token| token.to_string());
    format!(
        "export {HANDLE}={} {RESOURCE}={} {FENCING_TOKEN}={}\n",
        quoted(&detached.to_string()),
        quoted(detached.resource()),
        token.unwrap_or_default()
    )
}

pub(crate) async fn extend(arguments: Handle, report: &Report) -> Result<u8, Failure> {
    let handle = &arguments.lease()?;
    let redlock = connect(&arguments, false).await?;
    let lease = redlock.attach(handle).await.map_err(|error| match error {
        AttachError::Config(error) => Failure::usage(error),
        AttachError::Lost(gone) => lost(&gone.to_string()),
        other => Failure::new(exit::NO_QUORUM, other.to_string()),
    })?;
    let valid = lease.remaining();
    if lease.detach().is_none() {
        return Err(lost("the lease ended before it was extended"));
    }
    let printed = out::print(
        report,
        || validity(handle, valid),
        || format!("{}: valid for another {}\n", handle.resource(), short(valid)),
    );
    clean_up(&redlock, CLEAN_UP).await;
    printed.map(|()| exit::OK)
}

pub(crate) async fn release(arguments: Handle, report: &Report) -> Result<u8, Failure> {
    let handle = &arguments.lease()?;
    let redlock = connect(&arguments, true).await?;
    let outcome = redlock.release_detached(handle).await.map_err(Failure::usage)?;
    let code = match outcome {
        ReleaseOutcome::Released => exit::OK,
        ReleaseOutcome::AlreadyGone => exit::LOST,
        _ => exit::NO_QUORUM,
    };
    let printed = out::print(
        report,
        || json!({"resource": handle.resource(), "outcome": outcome.kind()}),
        || format!("{}: {outcome}\n", handle.resource()),
    );
    clean_up(&redlock, CLEAN_UP).await;
    printed.map(|()| code)
}

fn lost(what: &str) -> Failure {
    Failure::new(exit::LOST, what)
}

/// Connects to the handle's nodes. A client that only `deletes` need not register.
async fn connect(arguments: &Handle, deletes: bool) -> Result<Redlock, Failure> {
    let mut builder = nodes::builder_for(&arguments.existing)?
        .name("quorlock extend")
        .ttl(arguments.lease()?.ttl())
        .watchdog(false);
    if let Some(window) = arguments.guard_window {
        builder = builder.guard_window(window);
    }
    if deletes {
        builder = builder.observe();
    }
    builder
        .connect()
        .await
        .map_err(|error| nodes::not_connected(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_is_exported() {
        let handle = "01a22951-9b43-788f-a88b-4954003a191e:17:30000:it's";
        assert_eq!(
            exported(&handle.parse().unwrap()),
            "export QUORLOCK_HANDLE='01a22951-9b43-788f-a88b-4954003a191e:17:30000:it'\\''s' QUORLOCK_RESOURCE='it'\\''s' \
             QUORLOCK_FENCING_TOKEN=17\n"
        );
    }
}
