//! Descriptions of other clients, read from the nodes when a lock is found held (H3).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::context::Context;
use crate::node::{ClientId, ClientInfo, Holder, Nodes, OwnerToken};
use crate::sys::mutex::lock;
use crate::sys::timer::timeout;

/// How long a look-up may take.
const BUDGET: Duration = Duration::from_secs(1);
/// How long the result of a look-up is used.
const PAUSE: Duration = Duration::from_secs(5);
/// Most clients that are remembered.
const MOST: usize = 1_000;

#[derive(Clone)]
pub(crate) struct Clients {
    nodes: Nodes,
    context: Context,
    known: Arc<Mutex<HashMap<ClientId, Known>>>,
}

#[derive(Clone)]
struct Known {
    /// `None` if no node told.
    info: Option<Arc<ClientInfo>>,
    asked: Instant,
    /// The nodes have not answered yet.
    is_pending: bool,
}

/// Remembers a client's description. If the nodes told none this time, the known one stays.
fn remember(
    known: &mut HashMap<ClientId, Known>,
    client: ClientId,
    info: Option<Arc<ClientInfo>>,
    is_pending: bool,
) {
    let info = info.or_else(|| known.get(&client)?.info.clone());
    if known.len() >= MOST && !known.contains_key(&client) {
        known.clear();
    }
    known.insert(client, Known::new(info, is_pending));
}

impl Known {
    fn new(info: Option<Arc<ClientInfo>>, is_pending: bool) -> Known {
        Known {
            info,
            asked: Instant::now(),
            is_pending,
        }
    }

    /// Returns whether another look-up is useless now.
    fn is_settled(&self) -> bool {
        !self.is_pending && self.asked.elapsed() < PAUSE
    }
}

impl Clients {
    pub(crate) fn new(nodes: &Nodes, context: &Context) -> Clients {
        Clients {
            nodes: nodes.clone(),
            context: context.clone(),
            known: Arc::default(),
        }
    }

    /// Returns the holder that the token names. `None` if it names none.
    pub(crate) fn holder(&self, token: OwnerToken) -> Option<Holder> {
        let client = token.client()?;
        Some(Holder {
            client,
            since: token.began()?,
            is_this_client: client == self.context.client,
            info: self.info(client),
        })
    }

    fn info(&self, client: ClientId) -> Option<Arc<ClientInfo>> {
        lock(&self.known).get(&client)?.info.clone()
    }

    /// Starts to look up the client that the token names, in the background, unless it is known.
    pub(crate) fn look_up(&self, token: OwnerToken) {
        let Some(client) = token.client().filter(|client| *client != self.context.client) else {
            return;
        };
        {
            let mut known = lock(&self.known);
            let is_asked = |known: &Known| known.info.is_some() || known.asked.elapsed() < PAUSE;
            if known.get(&client).is_some_and(is_asked) {
                return;
            }
            remember(&mut known, client, None, true);
        }
        let clients = self.clone();
        self.context.in_background(BUDGET, async move {
            clients.ask(client).await;
        });
    }

    /// Looks up the holder that the token names. `None` if it names none. Takes a second at most.
    pub(crate) async fn find(&self, token: OwnerToken) -> Option<Holder> {
        Some(self.identify(self.holder(token)?).await)
    }

    /// Adds the description, if a node has it. Takes a second at most.
    pub(crate) async fn identify(&self, holder: Holder) -> Holder {
        if holder.is_this_client {
            return holder;
        }
        let known = lock(&self.known).get(&holder.client).cloned();
        if !known.is_some_and(|known| known.is_settled()) {
            let asked = self.ask(holder.client);
            if timeout(&self.context.runtime, BUDGET, asked).await.is_none() {
                remember(&mut lock(&self.known), holder.client, None, false);
            }
        }
        let info = self.info(holder.client);
        Holder { info, ..holder }
    }

    /// Asks all nodes until one tells.
    async fn ask(&self, client: ClientId) {
        let mut answers: FuturesUnordered<_> =
            self.nodes.iter().map(|node| node.client_info(client)).collect();
        let mut info = None;
        while let Some(answer) = answers.next().await {
            if let Ok(Some(told)) = answer {
                info = Some(Arc::new(told));
                break;
            }
        }
        remember(&mut lock(&self.known), client, info, false);
    }
}
