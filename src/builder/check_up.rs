//! Gathers what makes the nodes unfit for locks, and has it judged (`src/doctor/`).

use std::sync::Arc;

use super::{RedlockBuilder, checked};
use crate::doctor::{self, Endless, Finding, Lists, NodeFacts, SetFacts};
use crate::error::ConnectError;
use crate::inspect::Leak;
use crate::node::NodeState;
use crate::options;
use crate::protocol::quorum::quorum;
use crate::redis::{Registrations, examine, registrations};
use crate::redlock::{NodeStatus, Redlock};
use crate::sys::runtime::Runtime;

/// Most locks whose expiry is looked at: about ten seconds.
const MOST_LOCKS: usize = 10_000;

/// The findings about a set of nodes. Returned by [`RedlockBuilder::check_up`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckUp {
    /// The nodes, in the order in which they were configured.
    pub nodes: Vec<CheckedNode>,
    /// The findings about each node, in the order of the nodes, then those about the set. An empty list: nothing was found.
    pub findings: Vec<Finding>,
}

/// A node that was asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckedNode {
    /// The node's name: an address without credentials.
    pub name: Arc<str>,
    /// The server's own version. `None` if it does not tell.
    pub version: Option<String>,
    /// Whether it answers at all.
    pub is_in_reach: bool,
}

impl CheckUp {
    /// Returns whether a quorum of nodes answers at all.
    pub fn has_quorum_in_reach(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_in_reach).count() >= quorum(self.nodes.len())
    }
}

impl RedlockBuilder {
    /// Looks for everything that makes the nodes unfit for locks: settings, rights, refused writes, speed, clocks, replicas, the
    /// list of nodes, locks that never expire. Takes no lock, and registers no list of nodes.
    ///
    /// Creates a node's record if there is none, as each client does, and writes keys that expire within ten seconds. Nodes
    /// that do not answer within [`connect_timeout`](Self::connect_timeout) are findings.
    ///
    /// Hidden, because findings and their codes are made for the tool: a program reads `quorlock doctor --json`.
    ///
    /// # Errors
    /// [`ConnectError::Config`], [`ConnectError::NoRuntime`], [`ConnectError::IncompleteRuntime`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(hidden)]
    pub async fn check_up(self) -> Result<CheckUp, ConnectError> {
        Runtime::current_with_io()?;
        options::check_prefix(&self.prefix)?;
        let configs = checked(self.nodes.clone())?;
        let (limit, prefix): (_, Arc<str>) = (self.connect_timeout, (*self.prefix).into());
        let ttl = self.defaults.clone().of_manager().settings()?.ttl;
        // First, because connecting replaces the record of a copy.
        let servers = examine(&configs, &prefix, limit).await;
        // All nodes have the whole time: each one is told of.
        let (connected, registered) =
            tokio::join!(self.observe().open(limit), registrations(configs, &prefix, limit));
        let (redlock, _) = connected?;
        let writes = redlock.check_writes().await;
        let endless = endless(&redlock).await;
        let nodes = redlock.nodes().into_iter().zip(writes).zip(servers);
        let nodes = nodes.map(|((status, write), server)| {
            let NodeStatus {
                name,
                state,
                left_out,
            } = status;
            NodeFacts {
                name,
                down: match state {
                    NodeState::Up { .. } => None,
                    NodeState::Down(fault) => Some(fault),
                    NodeState::Connecting => write.as_ref().err().cloned(),
                },
                left_out,
                write,
                server,
            }
        });
        let facts = SetFacts {
            nodes: nodes.collect(),
            ttl,
            prefix,
            lists: lists(registered),
            endless,
        };
        let checked = |node: &NodeFacts| CheckedNode {
            name: node.name.clone(),
            version: node.info().and_then(|info| info.version()).map(str::to_owned),
            is_in_reach: node.is_in_reach(),
        };
        Ok(CheckUp {
            nodes: facts.nodes.iter().map(checked).collect(),
            findings: doctor::judge(&facts),
        })
    }
}

fn lists(found: Registrations) -> Lists {
    Lists {
        in_use: found.lists.into_iter().map(|list| list.nodes).collect(),
        faults: found.faults,
    }
}

async fn endless(redlock: &Redlock) -> Endless {
    let mut endless = Endless::default();
    let mut locks = redlock.locks("*");
    let mut looked_at = 0;
    while let Some(lock) = locks.next().await {
        if looked_at == MOST_LOCKS {
            endless.is_partial = true;
            break;
        }
        looked_at += 1;
        if lock.leaks(false).contains(&Leak::Endless) {
            endless.locks.push(lock.resource);
        }
    }
    let fault = |(node, fault): (&Arc<str>, &_)| (node.clone(), Clone::clone(fault));
    endless.faults = locks.faults().map(fault).collect();
    endless
}
