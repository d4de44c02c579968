//! `quorlock testbed`: local masters, to try things out.

use std::future::pending;
use std::io::{Write, stdout};
use std::time::Duration;

use crate::args::{self, Recipient};
use crate::end::End;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::{Change, Job};
use crate::nodes;
use crate::report::Report;
use crate::signals::Signals;

/// What the command gets between TERM and KILL if we are killed.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn testbed(arguments: args::Testbed, report: &Report) -> Result<End, Failure> {
    let mut signals = Signals::for_command()?;
    if arguments.dead > arguments.nodes {
        return Err(Failure::usage(format!(
            "--dead {} of {} nodes",
            arguments.dead, arguments.nodes
        )));
    }
    let starting = nodes::testbed(arguments.nodes, arguments.server.as_deref());
    let testbed = match signals.or(starting).await {
        Ok(testbed) => testbed?,
        Err(signal) => return Ok(End::by(signal)),
    };
    for node in testbed.nodes().iter().rev().take(arguments.dead) {
        node.kill()
            .await
            .map_err(|error| Failure::system("kill a node of the testbed", &error))?;
    }
    let urls = testbed.urls();
    let code = if arguments.command.is_empty() {
        let printed = stdout()
            .lock()
            .write_all(listed(&urls, arguments.export, report.is_json()).as_bytes());
        match printed {
            Ok(()) => {
                let _ = signals.or(pending::<()>()).await;
                Ok(End::Code(exit::OK))
            }
            Err(error) => Err(Failure::system("print the URLs", &error)),
        }
    } else {
        command(&arguments, &urls, &mut signals).await
    };
    testbed.shutdown().await;
    code
}

fn listed(urls: &[String], export: bool, json: bool) -> String {
    match (export, json) {
        (true, _) => format!("export {}='{}'\n", nodes::VARIABLE, urls.join(",")),
        (_, true) => format!("{}\n", serde_json::json!(urls)),
        _ => format!("{}\n", urls.join("\n")),
    }
}

async fn command(arguments: &args::Testbed, urls: &[String], signals: &mut Signals) -> Result<End, Failure> {
    let guard = Guard::start(GRACE).map_err(|error| Failure::system("start the guard process", &error))?;
    let urls = urls.join(",");
    let mut job = Job::start(
        &arguments.command,
        &[(nodes::VARIABLE, Some(&urls))],
        Recipient::Group,
        guard,
    )
    .await?;
    loop {
        tokio::select! {
            change = job.change() => match change {
                Change::Ended(ended) => return Ok(job.finish(ended)),
                Change::Resumed => job.resume(),
                Change::Gone => {}
            },
            signal = signals.next() => job.pass_on(signal),
        }
    }
}
