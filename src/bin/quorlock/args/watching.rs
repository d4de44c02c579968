//! The commands that show nodes and locks continuously.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::times::within;
use super::{Existing, LockTimes};
use crate::exit;

/// Serve metrics of the nodes and their locks for Prometheus, and a page for people
///
/// /metrics has the metrics (docs/metrics.md), /healthz answers 200 if a quorum of nodes gives locks and 503 if not, / is a page
/// with nodes, findings and locks. They show no password and no owner token.
///
/// Looks at the nodes when asked, at most once every five seconds, and for about five seconds at most. Once a minute, runs the checks of
/// `quorlock doctor`. Takes no lock; writes keys that expire within ten seconds. Ends with Ctrl-C or TERM; with TERM only, if a script
/// started it with `&`.
///
/// As long as it listens on this host only, it answers requests to localhost or to an IP address only. This keeps web pages of other
/// sites from reading it (DNS rebinding).
#[derive(Debug, Args)]
#[command(after_help = exit::OF_EXPORTER)]
pub(crate) struct Exporter {
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) times: LockTimes,
    /// Where to listen. Anybody who can connect there sees the names of locks and their holders
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9654", value_parser = listen)]
    pub(crate) listen: SocketAddr,
}

/// Show the nodes and their locks continuously
///
/// Keys: q quits, s sorts, / filters, arrows select a lock, b asks and then breaks it. Bars show how long a write to each node
/// took, ! one that failed. Shows the first 200 locks that it finds, and looks for them for five seconds at most.
///
/// Without a terminal, or with --json, prints the nodes and locks once; JSON has owner tokens, with which anybody who can reach the nodes can
/// release the locks. Takes no lock; writes keys that expire within ten seconds.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_TOP)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) times: LockTimes,
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = period)]
    pub(crate) every: Duration,
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        "give an IP address of this machine or localhost, and a port, such as 127.0.0.1:9654 or [::1]:9654; with 0.0.0.0:9654, all machines can connect".to_owned()
    })
}

fn period(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_millis(200)..=Duration::from_secs(3_600),
        "200ms to 1h",
    )
}
