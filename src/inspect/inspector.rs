//! Reads one lock from all nodes, and deletes its keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::inspection::{Inspection, NodeInspection};
use crate::clients::Clients;
use crate::context::Context;
use crate::node::{Action, Fault, KeyState, Node, Nodes, OwnerToken, ReleaseKind, ReleaseNotice, Request};
use crate::sys::timer::timeout;
use crate::votes::{NodeVote, Votes};

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
        let asked = join_all((0..self.nodes.len()).map(|node| self.read(node, Arc::from([key.clone()]))));
        let nodes = asked
            .await
            .into_iter()
            .enumerate()
            .map(|(number, answer)| NodeInspection {
                node: self.nodes[number].name().clone(),
                key: answer.and_then(|mut states| states.pop().ok_or(Fault::OtherMemory)),
            });
        self.with_holder(Inspection::new(resource, nodes.collect())).await
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
            },
        };
        let calls: Vec<_> = {
            let _entered = self.context.runtime.enter();
            let call = |node: &Arc<dyn Node>| node.call(request.clone(), BUDGET);
            self.nodes.iter().map(call).collect()
        };
        let answers = join_all(calls.into_iter().map(|call| self.in_time(call))).await;
        let vote = |(node, answer): (&Arc<dyn Node>, _)| NodeVote {
            node: node.name().clone(),
            answer: Some(answer),
        };
        Votes::new(self.nodes.iter().zip(answers).map(vote).collect())
    }

    pub(super) async fn with_holder(&self, mut inspection: Inspection) -> Inspection {
        if let Some(owner) = inspection.owner() {
            inspection.holder = self.clients.find(owner).await;
        }
        inspection
    }

    pub(super) async fn read(&self, node: usize, keys: Arc<[Arc<str>]>) -> Result<Vec<KeyState>, Fault> {
        self.in_time(self.nodes[node].inspect(keys)).await
    }

    pub(super) async fn in_time<T>(&self, call: BoxFuture<'static, Result<T, Fault>>) -> Result<T, Fault> {
        let answer = timeout(&self.context.runtime, BUDGET, call).await;
        answer.unwrap_or(Err(Fault::Timeout { after: BUDGET }))
    }
}
