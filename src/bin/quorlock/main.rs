//! `quorlock`: runs a command under a lock on a quorum of Redis masters.
//!
//! | file | |
//! |---|---|
//! | `args.rs` | what can be said on the command line, and the exit codes |
//! | `run.rs`, `status.rs`, `members.rs`, `bench/`, `testbed.rs` | one subcommand each |
//! | `nodes.rs` | which nodes, and connecting to them |
//! | `acquire.rs` | getting the lock, and saying what it waits for |
//! | `supervise.rs` | the command under its lease: signals, loss, the end |
//! | `command.rs` | starting the command, and why that did not work |
//! | `job.rs`, `orphans.rs` | the command's process group, and what it leaves to the first process of a container |
//! | `guard.rs` | a second process that ends the group when this one cannot |
//! | `terminal.rs`, `signals.rs`, `suspension.rs` | the terminal's foreground, signals, and Ctrl-Z |
//! | `report.rs`, `event.rs`, `log.rs` | what is told on standard error, without ever blocking |
//! | `progress.rs` | how far it is, on a terminal |
//! | `out.rs` | results on standard output |
//! | `end.rs` | ending with an exit code, or by the signal that ended the command |
//! | `exit.rs`, `fault.rs` | exit codes, and names of faults |

mod acquire;
mod args;
mod bench;
mod command;
mod credentials;
mod end;
mod event;
mod exit;
mod fault;
mod group;
mod guard;
mod job;
mod log;
mod members;
mod nodes;
mod orphans;
mod out;
mod progress;
mod report;
mod run;
mod signals;
mod status;
mod supervise;
mod suspension;
mod terminal;
mod testbed;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use end::End;
use exit::Failure;
use report::Report;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Command::Guard(guard) = &arguments.command {
        return guard::stand(guard.grace());
    }
    signals::unblock();
    if matches!(arguments.command, Command::Run(_) | Command::Testbed(_)) {
        suspension::block();
    }
    let report = Report::start(&arguments.output);
    let end = match work(arguments, &report) {
        Ok(end) => end,
        Err(failure) => {
            report.failure(&failure);
            End::Code(failure.code)
        }
    };
    report.flush();
    end.come()
}

fn work(arguments: Arguments, report: &Report) -> Result<End, Failure> {
    log::start(report, &arguments.output, arguments.command.shows_settings())?;
    // One thread: signals that stop this process then take effect where they are raised, and starting is quick.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("start the runtime", &error))?;
    let end = runtime.block_on(async {
        match arguments.command {
            Command::Run(run) => run::run(run, report).await,
            Command::Status(status) => status::status(status, report).await.map(End::Code),
            Command::Members(members) => members::members(members, report).await.map(End::Code),
            Command::Bench(bench) => bench::bench(bench, report).await,
            Command::Testbed(testbed) => testbed::testbed(testbed, report).await,
            Command::Guard(_) => Ok(End::Code(exit::OK)),
        }
    });
    // A name that is still being looked up must not hold up the exit.
    runtime.shutdown_background();
    end
}
