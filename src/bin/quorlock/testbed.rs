//! `quorlock testbed`: starts local masters, to try things out.

use std::future::pending;
use std::time::Duration;

use quorlock::testbed::Testbed;
use serde_json::json;

use crate::args::{self, Recipient};
use crate::end::End;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::{Change, Job};
use crate::report::Report;
use crate::signals::Signals;
use crate::variables::NODES;
use crate::{nodes, out};

/// The time between TERM and KILL if this process is killed.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn testbed(arguments: args::Testbed, report: &Report) -> Result<End, Failure> {
    let mut signals = Signals::for_command()?;
    if arguments.dead > arguments.nodes {
        return Err(Failure::usage(format!(
            "--dead {} of {} nodes: there are too few",
            arguments.dead, arguments.nodes
        )));
    }
    let work =
        async |testbed: &Testbed, signals: &mut Signals| on(testbed, &arguments, signals, report).await;
    nodes::with_testbed(arguments.nodes, arguments.server.as_deref(), &mut signals, work).await
}

async fn on(
    testbed: &Testbed,
    arguments: &args::Testbed,
    signals: &mut Signals,
    report: &Report,
) -> Result<End, Failure> {
    for node in testbed.nodes().iter().rev().take(arguments.dead) {
        node.kill()
            .await
            .map_err(|error| Failure::system("kill a node of the testbed", &error))?;
    }
    let urls = testbed.urls();
    if !arguments.command.is_empty() {
        return command(arguments, &urls, signals).await;
    }
    let listed = || listed(&urls, arguments.export);
    if !out::print_one(report, || json!({ "urls": urls }), listed)? {
        return Ok(End::Code(exit::OK));
    }
    let _ = signals.or(pending::<()>()).await;
    Ok(End::Code(exit::OK))
}

fn listed(urls: &[String], export: bool) -> String {
    match export {
        true => format!("export {}='{}'\n", NODES, urls.join(",")),
        false => format!("{}\n", urls.join("\n")),
    }
}

async fn command(arguments: &args::Testbed, urls: &[String], signals: &mut Signals) -> Result<End, Failure> {
    let guard = Guard::start(GRACE)?;
    let urls = urls.join(",");
    let environment = nodes::testbed_variables(&urls);
    let mut job = Job::start(&arguments.command, &environment, Recipient::Group, guard).await?;
    loop {
        tokio::select! {
            change = job.change() => match change {
                Change::Ended(ended) => return Ok(job.finish(ended)),
                Change::Resumed => job.resume(),
                Change::Gone => {}
            },
            signal = signals.next() => job.forward(signal),
        }
    }
}
