//! `quorlock show`: shows who holds a lock, and what each node has of it.

use std::fmt::Write as _;

use quorlock::{Inspection, LockStatus, NodeInspection};

use crate::args::Show;
use crate::exit::{self, Failure};
use crate::nodes::{look, quorum};
use crate::report::{Report, escape_control_characters};
use crate::{holder, locks, nodes, out};

pub(crate) async fn show(arguments: Show, report: &Report) -> Result<u8, Failure> {
    let redlock = look(&arguments.existing).await?;
    let lock = redlock
        .inspect(&arguments.resource)
        .await
        .map_err(Failure::usage)?;
    let forgetful = nodes::forgetful(&redlock);
    nodes::warn_of_forgetful(&forgetful, report);
    out::print(report, || holder::lock_document(&lock), || text(&lock))?;
    let knows = |node: &&NodeInspection| {
        node.key.is_ok() && forgetful.iter().all(|(forgetful, _)| *forgetful != node.node)
    };
    let is_known = lock.nodes.iter().filter(knows).count() >= quorum(lock.nodes.len());
    Ok(match lock.status {
        LockStatus::Held => exit::OK,
        LockStatus::Free | LockStatus::Partial if is_known => exit::OK,
        _ => exit::NO_QUORUM,
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
