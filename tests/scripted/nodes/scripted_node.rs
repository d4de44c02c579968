//! Nodes that answer as a test's script says.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorlock::simulation::{Action, Node, OwnerToken, Reply, Request};
use tokio::time::{Instant, sleep};

use super::{Answer, ms};

#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Answer(Duration, Answer),
    Never,
}

pub(crate) fn at_once(answer: Answer) -> Plan {
    Plan::Answer(Duration::ZERO, answer)
}

pub(crate) fn yes(action: Action) -> Reply {
    match action {
        Action::Acquire { fencing, .. } => Reply::Granted {
            counter: fencing.map(|fencing| fencing.seed),
        },
        Action::Heal { fencing, .. } => Reply::Granted {
            counter: fencing.map(|(_, token)| token),
        },
        Action::Raise { token } => Reply::Raised { counter: token },
        Action::Extend { .. } => Reply::Extended,
        Action::Announce(_) => Reply::Announced,
        Action::Mark { set } => Reply::Mark {
            mark: set.map(|set| set.mark),
        },
        Action::Release { .. } => Reply::Released { notified: false },
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    pub(crate) owner: OwnerToken,
    pub(crate) action: Action,
}

impl Call {
    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.action, Action::Acquire { .. })
    }

    pub(crate) fn is_heal(&self) -> bool {
        matches!(self.action, Action::Heal { .. })
    }

    pub(crate) fn is_extend(&self) -> bool {
        matches!(self.action, Action::Extend { .. })
    }

    pub(crate) fn raise(&self) -> Option<u64> {
        match self.action {
            Action::Raise { token } => Some(token.get()),
            _ => None,
        }
    }

    pub(crate) fn is_release(&self) -> bool {
        matches!(self.action, Action::Release { .. })
    }
}

type Script = Box<dyn FnMut(Action) -> Plan + Send>;

/// A node that answers as a script says. Its only state is a record of the requests.
pub(crate) struct ScriptedNode {
    name: Arc<str>,
    script: Mutex<Script>,
    calls: Mutex<Vec<Call>>,
    advanced: AtomicU64,
    /// Zero if unknown.
    connection: AtomicU64,
    epoch: AtomicU64,
}

impl ScriptedNode {
    pub(crate) fn new(
        number: usize,
        script: impl FnMut(Action) -> Plan + Send + 'static,
    ) -> Arc<ScriptedNode> {
        Arc::new(ScriptedNode::with_script(number, script))
    }

    pub(crate) fn with_script(
        number: usize,
        script: impl FnMut(Action) -> Plan + Send + 'static,
    ) -> ScriptedNode {
        ScriptedNode {
            name: format!("node{number}").into(),
            script: Mutex::new(Box::new(script)),
            calls: Mutex::default(),
            advanced: AtomicU64::new(0),
            connection: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn connect(&self, connection: u64) {
        self.connection.store(connection, SeqCst);
    }

    /// Makes the node another memory.
    pub(crate) fn begin_anew(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }

    pub(crate) fn put_forward(&self, by: Duration) {
        self.advanced.fetch_add(by.as_millis() as u64, SeqCst);
    }
}

impl fmt::Debug for ScriptedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Node for ScriptedNode {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn connection(&self) -> Option<u64> {
        Some(self.connection.load(SeqCst)).filter(|connection| *connection > 0)
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    fn clock_advanced(&self) -> Duration {
        ms(self.advanced.load(SeqCst))
    }

    fn call(&self, request: Request, _: Duration) -> BoxFuture<'static, Answer> {
        self.calls.lock().unwrap().push(Call {
            at: Instant::now(),
            owner: request.owner,
            action: request.action,
        });
        let plan = (self.script.lock().unwrap())(request.action);
        Box::pin(async move {
            match plan {
                Plan::Answer(after, answer) => {
                    if !after.is_zero() {
                        sleep(after).await;
                    }
                    answer
                }
                Plan::Never => std::future::pending().await,
            }
        })
    }
}

/// Returns nodes that all follow `script`, which gets the node's number.
pub(crate) fn scripted_nodes<F>(nodes: usize, script: F) -> Vec<Arc<ScriptedNode>>
where
    F: FnMut(usize, Action) -> Plan + Clone + Send + 'static,
{
    (0..nodes)
        .map(|number| {
            let mut script = script.clone();
            ScriptedNode::new(number, move |action| script(number, action))
        })
        .collect()
}
