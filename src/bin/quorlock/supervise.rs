//! Runs a command under its lease: passes signals on, and ends the command before the lease ends.

use std::time::Duration;

use quorlock::{Lease, MAX_TTL};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use crate::end::End;
use crate::event::Event;
use crate::exit::Failure;
use crate::job::{Change, Job};
use crate::report::Report;
use crate::signals::Signals;

/// The least time between KILL and the deadline.
const MARGIN: Duration = Duration::from_millis(10);
/// Half of it is [`MARGIN`] and the default time between TERM and KILL.
const SHORTEST_TTL: Duration = Duration::from_millis(40);

/// How long the whole group may take to end after KILL.
const KILL_TAKES: Duration = Duration::from_secs(2);

/// When to end a command if its lease is not renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    ttl: Duration,
    /// Between TERM and KILL.
    pub(crate) kill_after: Duration,
    /// Between KILL and the deadline: for late timers, and for processes to die.
    margin: Duration,
}

impl Times {
    /// Fails if a lease that is renewed in time would look as if it were about to end.
    pub(crate) fn new(
        ttl: Duration,
        kill_after: Option<Duration>,
        max_hold: Option<Duration>,
    ) -> Result<Times, Failure> {
        if !(SHORTEST_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Failure::usage(format!(
                "--ttl {} is out of bounds: {} to 365days",
                humantime::format_duration(ttl),
                humantime::format_duration(SHORTEST_TTL)
            )));
        }
        let longest = max_hold.map_or(ttl, |most| most.min(ttl));
        let times = Times {
            ttl,
            kill_after: kill_after.unwrap_or_else(|| (longest / 4).min(Duration::from_secs(5))),
            margin: (ttl / 20).clamp(MARGIN, Duration::from_millis(500)),
        };
        let (shown, margin) = (
            humantime::format_duration(times.kill_after),
            humantime::format_duration(times.margin),
        );
        // Renewals start after a third of the TTL, and may be retried until half of it.
        if times.lead() > ttl / 2 {
            return Err(Failure::usage(format!(
                "--kill-after {shown} is too long for --ttl {}: with a margin of {margin}, it must fit into half of the TTL",
                humantime::format_duration(ttl)
            )));
        }
        if let Some(max_hold) = max_hold
            && times.lead() >= max_hold
        {
            return Err(Failure::usage(format!(
                "--max-hold {} is too short for --kill-after {shown} and a margin of {margin}: \
                 the command would be ended at once; use a longer --max-hold",
                humantime::format_duration(max_hold)
            )));
        }
        Ok(times)
    }

    /// How long before the deadline the command gets TERM.
    pub(crate) fn lead(&self) -> Duration {
        self.kill_after + self.margin
    }

    fn kill_at(&self, deadline: Instant) -> Instant {
        earlier_by(deadline, self.margin)
    }

    fn term_at(&self, deadline: Instant) -> Instant {
        earlier_by(deadline, self.lead())
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Ended(End),
    /// The lease was lost, so the command was ended.
    Lost,
}

/// Supervises `job` until it has ended, by itself or because the lease was lost.
pub(crate) async fn supervise(
    job: &mut Job,
    lease: &Lease,
    times: Times,
    signals: &mut Signals,
    report: &Report,
) -> Outcome {
    let mut known = Instant::from_std(lease.deadline());
    // How long this loop last ran late, if that was long enough to lose a lease.
    let mut paused = None;
    schedule(job, times, known);
    loop {
        // So often that the guard knows of each renewal well before it would act.
        let check = (Instant::now() + times.ttl / 8).min(times.term_at(known));
        let lost = tokio::select! {
            biased;
            lost = lease.expiring(times.lead()) => Some(lost),
            change = job.change() => match change {
                Change::Resumed => {
                    job.resume();
                    None
                }
                // The lease has ended first, and its timer has not run yet: after a suspension, for instance. It runs only when this
                // task waits.
                Change::Ended(_) if !lease.is_held() => Some(lease.lost().await),
                Change::Ended(_) | Change::Gone => None,
            },
            signal = signals.next() => {
                job.forward(signal);
                None
            }
            () = sleep_until(check) => {
                let deadline = Instant::from_std(lease.deadline());
                let renewed = deadline > known;
                if deadline != known {
                    known = deadline;
                    schedule(job, times, known);
                }
                if renewed {
                    // A later loss has another cause.
                    paused = None;
                    report.event(&Event::Renewed { resource: lease.resource(), valid: lease.remaining() });
                }
                None
            }
        };
        let late = Instant::now().saturating_duration_since(check);
        if late >= times.lead() {
            paused = Some(late);
        }
        let deadline = Instant::from_std(lease.deadline());
        let ended = job.ended().filter(|_| lease.is_held());
        match (ended, lost) {
            (Some(_), _) if job.guard().has_acted() => {
                report.event(&Event::HeldUp {
                    resource: lease.resource(),
                });
                end(job, times.kill_at(deadline), times, signals, report).await;
                return Outcome::Lost;
            }
            (Some(ended), _) => return Outcome::Ended(job.finish(ended)),
            (None, Some(lost)) => {
                report.event(&Event::Lost {
                    lost: &lost,
                    deadline: deadline.into_std(),
                    paused,
                });
                end(job, times.kill_at(deadline), times, signals, report).await;
                return Outcome::Lost;
            }
            (None, None) => {}
        }
    }
}

/// Tells the guard when to act if this process is late: for TERM by half of the time until KILL, for KILL by half a margin.
fn schedule(job: &Job, times: Times, deadline: Instant) {
    job.guard().schedule(
        Some((times.term_at(deadline) + times.kill_after / 2).into_std()),
        (times.kill_at(deadline) + times.margin / 2).into_std(),
    );
}

/// Ends the whole group by `latest`.
async fn end(job: &mut Job, latest: Instant, times: Times, signals: &mut Signals, report: &Report) {
    let now = Instant::now();
    let kill_at = latest.min(now + times.kill_after);
    job.guard()
        .schedule(None, (kill_at + times.margin / 2).into_std());
    job.signal(Signal::TERM);
    if kill_at > now {
        job.signal(Signal::CONT); // a suspended process does not handle TERM
    }
    let mut killed = false;
    let mut next_kill = kill_at;
    loop {
        tokio::select! {
            biased;
            // First: after a suspension, the time for KILL is long past, and all may have ended on TERM.
            change = job.change() => match change {
                // The rest of the group has as much time.
                Change::Ended(_) => {
                    job.reap(true);
                }
                Change::Resumed => job.resume(),
                Change::Gone => break,
            },
            () = sleep_until(next_kill) => {
                let ours = job.signal(Signal::KILL);
                if killed || !ours {
                    return report.event(&Event::NotStopped { ours });
                }
                killed = true;
                next_kill = Instant::now() + KILL_TAKES;
            }
            signal = signals.next() => job.forward(signal),
        }
    }
    job.guard().dismiss();
    report.event(&Event::Stopped { killed });
}

fn earlier_by(instant: Instant, time: Duration) -> Instant {
    instant.checked_sub(time).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn help_states_the_shortest_ttl() {
        assert!(Times::new(SHORTEST_TTL, None, None).is_ok());
        let shorter = SHORTEST_TTL - Duration::from_millis(1);
        for kill_after in [None, Some(Duration::ZERO)] {
            let refused = Times::new(shorter, kill_after, None).unwrap_err();
            assert!(
                refused.message.contains("--ttl 39ms is out of bounds: 40ms"),
                "{refused:?}"
            );
        }
        let mut arguments = Arguments::command();
        let run = arguments.find_subcommand_mut("run").unwrap();
        let range = format!("(run: {})", humantime::format_duration(SHORTEST_TTL));
        assert!(run.render_long_help().to_string().contains(&range));
    }
}
