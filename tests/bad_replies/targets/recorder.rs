//! A node that says yes (or "held") to everything, and records the requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use quorlock::simulation::{Action, Fault, Node, Reply, Request};

#[derive(Debug)]
pub(crate) struct Recorder {
    name: Arc<str>,
    held: bool,
    asked: Mutex<Vec<Request>>,
}

impl Recorder {
    pub(crate) fn new(held: bool) -> Arc<Recorder> {
        Arc::new(Recorder {
            name: "recorder".into(),
            held,
            asked: Mutex::default(),
        })
    }

    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

impl Node for Recorder {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn call(&self, request: Request, _: Duration) -> BoxFuture<'static, Result<Reply, Fault>> {
        let reply = match request.action {
            Action::Acquire { .. } if self.held => Reply::Held {
                remaining: None,
                holder: None,
            },
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
        };
        self.asked.lock().unwrap().push(request);
        ready(Ok(reply)).boxed()
    }
}

pub(crate) fn on_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(work)
}
