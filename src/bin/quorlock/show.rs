//! `quorlock show`: shows who holds a lock, and what each node has of it.

use std::fmt::Write as _;

use quorlock::{ConnectError, Inspection, LockStatus, Redlock, RedlockBuilder};

use crate::args::{Existing, Show};
use crate::exit::{self, Failure};
use crate::report::{Report, escape_control_characters};
use crate::{holder, locks, nodes, out};

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

/// Connects to nodes to look at locks, without taking part. Fewer nodes than a quorum are enough.
pub(crate) async fn look(existing: &Existing) -> Result<Redlock, Failure> {
    let (redlock, error) = builder(existing)?
        .connect_without_quorum()
        .await
        .map_err(|error| nodes::not_connected(&error))?;
    match error {
        None | Some(ConnectError::NoQuorum { .. }) => Ok(redlock),
        Some(error) => Err(nodes::not_connected(&error)),
    }
}

/// Connects to a quorum of nodes, without taking part.
pub(crate) async fn connect(existing: &Existing) -> Result<Redlock, Failure> {
    let connected = builder(existing)?.connect().await;
    connected.map_err(|error| nodes::not_connected(&error))
}

fn builder(existing: &Existing) -> Result<RedlockBuilder, Failure> {
    Ok(nodes::builder_for(existing)?.observe())
}

pub(crate) fn text(lock: &Inspection) -> String {
    let mut text = locks::line(lock);
    for node in &lock.nodes {
        let line = escape_control_characters(&holder::node_line(node));
        let _ = writeln!(text, "  {}: {line}", node.node);
    }
    text
}
