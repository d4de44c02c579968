//! The ways from clients to simulated servers: requests and answers take time.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorlock::simulation::lock_script::{Announcement, Exchange};
use quorlock::simulation::{Action, Fault, Listener, Listening, Node, Request};
use tokio::time::{Instant, sleep};

use super::server::{Distance, Server, State, Subscriber, micros};
use super::{Answer, Reachable};

impl Reachable for Server {
    fn reach(self: Arc<Self>) -> Arc<dyn Node> {
        Arc::new(Line::to(&self))
    }
}

/// The connection of one client to a server. Requests of one connection arrive in order; those of several need not.
pub(crate) struct Line {
    server: Arc<Server>,
    /// The one-way latency of this client. `None`: the server's.
    distance: Option<Distance>,
    /// When the last request arrives.
    last: Mutex<Option<Instant>>,
}

impl Line {
    fn to(server: &Arc<Server>) -> Line {
        Line {
            server: server.clone(),
            distance: None,
            last: Mutex::default(),
        }
    }

    /// Returns a connection with a one-way latency of its own.
    pub(crate) fn at(
        server: &Arc<Server>,
        distance: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Arc<Line> {
        Arc::new(Line {
            distance: Some(Arc::new(distance)),
            ..Line::to(server)
        })
    }

    fn one_way(&self) -> Duration {
        match &self.distance {
            Some(distance) => distance(),
            None => self.server.latency(),
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl Node for Line {
    fn name(&self) -> &Arc<str> {
        &self.server.name
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        let round_trip = self.one_way() + self.one_way();
        let number = {
            let mut state = self.server.state();
            state.next_listener += 1;
            state.next_listener
        };
        let (key, state) = (key.clone(), self.server.state.clone());
        let distance = self.distance.clone();
        let leave = Leave(number, state.clone());
        let gone = Arc::new(());
        let there = Arc::downgrade(&gone);
        tokio::spawn(async move {
            sleep(round_trip / 2).await;
            // The listener may have been dropped meanwhile.
            if there.upgrade().is_some() {
                state.lock().unwrap().listeners.push(Subscriber {
                    number,
                    key,
                    listener: listener.clone(),
                    distance,
                });
            }
            sleep(round_trip / 2).await;
            let mute = state.lock().unwrap().mute;
            if !mute && there.upgrade().is_some() {
                listener.subscribed();
            }
        });
        Some(Box::new((leave, gone)))
    }

    fn clock(&self) -> Option<u64> {
        u64::try_from(micros()).ok()
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Answer> {
        let exchange = Exchange {
            request,
            latest: micros() + budget.as_micros() as i64,
        };
        let (there, back) = (self.one_way(), self.one_way());
        // Not before earlier requests of this connection (T1).
        let arrival = {
            let mut last = self.last.lock().unwrap();
            let arrival = (Instant::now() + there)
                .max(last.map_or_else(Instant::now, |last| last + Duration::from_micros(1)));
            *last = Some(arrival);
            arrival
        };
        let state = self.server.state.clone();
        // The server executes the request even if the caller gave up.
        let executed = tokio::spawn(async move {
            tokio::time::sleep_until(arrival).await;
            let (answer, told) = state.lock().unwrap().execute(exchange);
            let executed = Instant::now();
            let mut told_at_once = Vec::new();
            for (of, announcement) in told {
                match &of.distance {
                    Some(distance) => drop(tokio::spawn(told_after(distance(), of, announcement))),
                    None => told_at_once.push((of, announcement)),
                }
            }
            tokio::time::sleep_until(executed + back).await;
            for (of, announcement) in told_at_once {
                of.tell(announcement);
            }
            answer
        });
        Box::pin(async move {
            executed.await.unwrap_or_else(|_| {
                Err(Fault::ConnectionLost {
                    reason: "the simulation ended".into(),
                })
            })
        })
    }
}

async fn told_after(way: Duration, of: Subscriber, announcement: Announcement) {
    sleep(way).await;
    of.tell(announcement);
}

struct Leave(u64, Arc<Mutex<State>>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.1.lock().unwrap().listeners.retain(|of| of.number != self.0);
    }
}

/// A connection on which some requests are delayed.
pub(crate) struct DelayedLine {
    line: Arc<Line>,
    delay: Box<dyn Fn(Action) -> Duration + Send + Sync>,
}

impl DelayedLine {
    pub(crate) fn to(
        server: &Arc<Server>,
        delay: impl Fn(Action) -> Duration + Send + Sync + 'static,
    ) -> Arc<DelayedLine> {
        Arc::new(DelayedLine {
            line: Arc::new(Line::to(server)),
            delay: Box::new(delay),
        })
    }
}

impl fmt::Debug for DelayedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)
    }
}

impl Node for DelayedLine {
    fn name(&self) -> &Arc<str> {
        self.line.name()
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        self.line.listen(key, listener)
    }

    fn clock(&self) -> Option<u64> {
        self.line.clock()
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Answer> {
        let delay = (self.delay)(request.action);
        if delay.is_zero() {
            return self.line.call(request, budget);
        }
        let line = self.line.clone();
        let called = tokio::spawn(async move {
            sleep(delay).await;
            line.call(request, budget).await
        });
        Box::pin(async move { called.await.unwrap() })
    }
}
