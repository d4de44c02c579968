//! Reads one lock from all nodes, and deletes its keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::inspection::{Inspection, NodeInspection};
use crate::clients::Clients;
use crate::context::Context;
use crate::node::{Action, Fault, KeyState, Node, Nodes, OwnerToken, ReleaseKind, ReleaseNotice, Request};
use crate::round::Round;
use crate::sys::timer::timeout;
use crate::votes::Votes;

/// How long a node may take to answer.
const BUDGET: Duration = Duration::from_secs(2);

/// Reads locks from all nodes.
#[derive(Clone)]
pub(crate) struct Inspector {
    pub(crate) nodes: Nodes,
    pub(crate) prefix: Arc<str>,
    pub(crate) clients: Clients,
    pub(crate) context: Context,
}

impl Inspector {
    pub(crate) async fn inspect(&self, resource: Arc<str>, key: Arc<str>) -> Inspection {
        let keys: Arc<[Arc<str>]> = Arc::from([key]);
        let read = |node| self.read(node, keys.clone());
        let answers = join_all((0..self.nodes.len()).map(read)).await;
        self.with_holder(Inspection::new(resource, self.on_each_node(&answers, 0)))
            .await
    }

    /// Deletes the key where it holds this owner's token, and announces that as a release.
    pub(crate) async fn break_lock(&self, key: Arc<str>, owner: OwnerToken) -> Votes {
        let notice = ReleaseNotice {
            kind: ReleaseKind::Free,
            turn: None,
        };
        let request = Request {
            key,
            owner,
            action: Action::Release {
                counter: None,
                notice: Some(notice),
                keep_until: None,
            },
        };
        let mut round = Round::start(&self.nodes, &request, BUDGET, &self.context);
        round.settle(|_| false).await;
        round.votes()
    }

    /// Writes to each node. Returns how long that took, or why the node refuses writes, in the order of the nodes.
    pub(crate) async fn check_writes(&self) -> Vec<Result<Duration, Fault>> {
        let write = |node: &Arc<dyn Node>| self.in_time(node.check_write());
        join_all(self.nodes.iter().map(write)).await
    }

    /// Returns what each node has of one key, by the key's place among those that the nodes were asked for.
    pub(super) fn on_each_node(
        &self,
        answers: &[Result<Vec<KeyState>, Fault>],
        key: usize,
    ) -> Vec<NodeInspection> {
        let one = |(node, answer): (&Arc<dyn Node>, &Result<Vec<KeyState>, Fault>)| NodeInspection {
            node: node.name().clone(),
            key: answer
                .as_ref()
                .map(|states| states[key].clone())
                .map_err(Fault::clone),
        };
        self.nodes.iter().zip(answers).map(one).collect()
    }

    pub(super) async fn with_holder(&self, mut inspection: Inspection) -> Inspection {
        if let Some(owner) = inspection.owner() {
            inspection.holder = self.clients.find(owner).await;
        }
        inspection
    }

    /// Reads a state for each key from one node.
    pub(super) async fn read(&self, node: usize, keys: Arc<[Arc<str>]>) -> Result<Vec<KeyState>, Fault> {
        let states = self.in_time(self.nodes[node].inspect(keys.clone())).await?;
        match states.len() == keys.len() {
            true => Ok(states),
            false => Err(Fault::Protocol {
                detail: "not as many answers as keys were inspected".into(),
            }),
        }
    }

    pub(super) async fn in_time<T>(&self, call: BoxFuture<'static, Result<T, Fault>>) -> Result<T, Fault> {
        let answer = timeout(&self.context.runtime, BUDGET, call).await;
        answer.unwrap_or(Err(Fault::Timeout { after: BUDGET }))
    }
}
