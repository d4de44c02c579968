//! `quorlock show`: shows who holds a lock, and what each node has of it.

use std::fmt::Write as _;

use quorlock::{Inspection, LockStatus};

use crate::args::Show;
use crate::exit::{self, Failure};
use crate::nodes::look;
use crate::report::{Report, escape_control_characters};
use crate::{holder, locks, out};

pub(crate) async fn show(arguments: Show, report: &Report) -> Result<u8, Failure> {
    let redlock = look(&arguments.existing).await?;
    let lock = redlock
        .inspect(&arguments.resource)
        .await
        .map_err(Failure::usage)?;
    out::print(report, || holder::lock_document(&lock), || text(&lock))?;
    Ok(match lock.status {
        LockStatus::Unknown => exit::NO_QUORUM,
        _ => exit::OK,
    })
}

pub(crate) fn text(lock: &Inspection) -> String {
    let mut text = locks::line(lock);
    for node in &lock.nodes {
        let line = escape_control_characters(&holder::node_line(node));
        let _ = writeln!(text, "  {}: {line}", node.node);
    }
    text
}
