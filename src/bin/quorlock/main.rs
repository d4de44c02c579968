//! `quorlock`: runs a command under a lock on a quorum of Redis masters.
//!
//! | file | |
//! |---|---|
//! | `args/`, `usage.rs` | the command line, and wrong ones |
//! | `settings.rs`, `config.rs` | options from variables and from the configuration file |
//! | `run.rs`, `detached.rs`, `status.rs`, `doctor.rs`, `members.rs`, `show.rs`, `locks.rs`, `break_lock.rs`, `exporter/`, `top/`, `bench/`, `testbed.rs` | one subcommand each |
//! | `manual.rs` | completions and manual pages |
//! | `nodes.rs`, `credentials.rs` | the nodes, and how to connect to them |
//! | `locking.rs`, `acquire.rs` | acquires a lock, and reports why it waits |
//! | `supervise.rs` | the command under its lease: signals, loss, the end |
//! | `command.rs` | starts the command, or says why it cannot be started |
//! | `job.rs`, `group.rs`, `orphans.rs` | the command's process group, and orphans in a container |
//! | `guard.rs` | a second process that ends the group if this process cannot |
//! | `terminal.rs`, `signals.rs`, `suspension.rs` | the terminal's foreground, signals, and Ctrl-Z |
//! | `format.rs` | times and durations |
//! | `report.rs`, `event/`, `log.rs`, `progress.rs` | events and progress on standard error, without blocking |
//! | `out.rs` | results on standard output |
//! | `end.rs`, `exit.rs` | the end: an exit code, or a signal |
//! | `survey.rs` | what `exporter` and `top` show: nodes, locks, findings |
//! | `holder.rs` | locks and their holders, for programs and people |

mod acquire;
mod args;
mod bench;
mod break_lock;
mod command;
mod config;
mod credentials;
mod detached;
mod doctor;
mod end;
mod event;
mod exit;
mod exporter;
mod format;
mod group;
mod guard;
mod holder;
mod job;
mod layers;
mod locking;
mod locks;
mod log;
mod manual;
mod members;
mod nodes;
mod orphans;
mod out;
mod progress;
mod report;
mod run;
mod setting;
mod show;
mod signals;
mod status;
mod supervise;
mod survey;
mod suspension;
mod terminal;
mod testbed;
mod top;
mod usage;
mod variables;

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use args::{Arguments, Command};
use end::End;
use exit::Failure;
use layers::Given;
use report::Report;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(grace) = guard::requested(&words) {
        return guard::run_guard(grace);
    }
    let given = match Given::parse(words.clone()) {
        Ok(given) => given,
        Err(error) => return usage::end(&error, &words),
    };
    signals::unblock();
    if matches!(
        given.arguments.command,
        Command::Run(_) | Command::Acquire(_) | Command::Testbed(_)
    ) {
        suspension::block();
    }
    let report = Report::start(&given.arguments.output);
    let end = match given
        .complete(&report)
        .and_then(|arguments| work(arguments, &report))
    {
        Ok(end) => end,
        Err(failure) => {
            report.failure(&failure);
            End::Code(failure.code)
        }
    };
    report.flush();
    end.exit()
}

fn work(arguments: Arguments, report: &Report) -> Result<End, Failure> {
    let log_would_disturb =
        matches!(arguments.command, Command::Top(_)) && top::has_screen(report) && stderr().is_terminal();
    if !log_would_disturb {
        log::start(report, &arguments.output, arguments.command.shows_settings())?;
    }
    // One thread: a signal that stops this process takes effect where it is raised. It also starts quickly.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("start the runtime", &error))?;
    let end = runtime.block_on(async {
        match arguments.command {
            Command::Run(run) => run::run(run, report).await,
            Command::Acquire(acquire) => detached::acquire(acquire, report).await,
            Command::Extend(extend) => detached::extend(extend.handle, report).await.map(End::Code),
            Command::Release(release) => detached::release(release.handle, report).await.map(End::Code),
            Command::Status(status) => status::status(status, report).await.map(End::Code),
            Command::Doctor(doctor) => doctor::doctor(doctor, report).await.map(End::Code),
            Command::Members(members) => members::members(members, report).await.map(End::Code),
            Command::Show(show) => show::show(show, report).await.map(End::Code),
            Command::Locks(locks) => locks::locks(locks, report).await.map(End::Code),
            Command::Break(breaks) => break_lock::break_lock(breaks, report).await.map(End::Code),
            Command::Exporter(exporter) => exporter::exporter(exporter, report).await,
            Command::Top(top) => top::top(top, report).await,
            Command::Bench(bench) => bench::bench(bench, report).await,
            Command::Testbed(testbed) => testbed::testbed(testbed, report).await,
            Command::Completions(completions) => manual::completions(&completions).map(End::Code),
            Command::Man(man) => manual::man(&man).map(End::Code),
        }
    });
    // A look-up of a name in flight must not delay the exit.
    runtime.shutdown_background();
    end
}
