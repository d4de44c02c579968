//! Nodes that do as they are told.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorlock::node::{Action, Fault, Fencing, Listener, Listening, News, Node, OwnerToken, Reply, Request};
use quorlock::{FencingToken, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) type Answer = Result<Reply, Fault>;

/// What a node does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Answer(Duration, Answer),
    Never,
}

pub(crate) fn at_once(answer: Answer) -> Plan {
    Plan::Answer(Duration::ZERO, answer)
}

/// The usual "yes".
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
        Action::Release { .. } => Reply::Released { listeners: 0 },
    }
}

/// What was asked of a node, and when.
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

/// A node with a script: no state but a record of what it was asked.
pub(crate) struct Puppet {
    name: Arc<str>,
    script: Mutex<Script>,
    calls: Mutex<Vec<Call>>,
    advanced: AtomicU64,
}

impl Puppet {
    pub(crate) fn new(number: usize, script: impl FnMut(Action) -> Plan + Send + 'static) -> Arc<Puppet> {
        Arc::new(Puppet::with_script(number, script))
    }

    pub(crate) fn with_script(number: usize, script: impl FnMut(Action) -> Plan + Send + 'static) -> Puppet {
        Puppet {
            name: format!("node{number}").into(),
            script: Mutex::new(Box::new(script)),
            calls: Mutex::default(),
            advanced: AtomicU64::new(0),
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Its clock.
    pub(crate) fn put_forward(&self, by: Duration) {
        self.advanced.fetch_add(by.as_millis() as u64, SeqCst);
    }
}

impl fmt::Debug for Puppet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Node for Puppet {
    fn name(&self) -> &Arc<str> {
        &self.name
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

/// Nodes that all follow `script`, which is given the node's number.
pub(crate) fn puppets<F>(nodes: usize, script: F) -> Vec<Arc<Puppet>>
where
    F: FnMut(usize, Action) -> Plan + Clone + Send + 'static,
{
    (0..nodes)
        .map(|number| {
            let mut script = script.clone();
            Puppet::new(number, move |action| script(number, action))
        })
        .collect()
}

/// A manager of its own.
pub(crate) fn redlock<N: Reach>(nodes: &[Arc<N>], builder: RedlockBuilder) -> Redlock {
    let nodes = nodes.iter().map(|node| node.clone().reach());
    builder.custom_nodes(nodes.collect()).unwrap()
}

/// What managers are made of.
pub(crate) trait Reach {
    /// As one of them reaches it.
    fn reach(self: Arc<Self>) -> Arc<dyn Node>;
}

impl<N: Node> Reach for N {
    fn reach(self: Arc<Self>) -> Arc<dyn Node> {
        self
    }
}

impl Reach for Server {
    fn reach(self: Arc<Self>) -> Arc<dyn Node> {
        Arc::new(Line::to(&self))
    }
}

/// What a real node does, with expiry on the paused clock: requests travel, are executed, and answers travel back.
pub(crate) struct Server {
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    /// One way.
    latency: Mutex<Box<dyn FnMut() -> Duration + Send>>,
}

#[derive(Default)]
struct State {
    keys: HashMap<Arc<str>, (OwnerToken, Instant)>,
    counters: HashMap<Arc<str>, FencingToken>,
    deleted: usize,
    expired: usize,
    raised: usize,
    healed: usize,
    acquires: usize,
    /// W2: who listens, by number.
    listeners: Vec<(u64, Arc<str>, Listener)>,
    next_listener: u64,
    /// Announces nothing.
    mute: bool,
    /// So many listen, it says.
    claimed: Option<u32>,
}

impl Server {
    pub(crate) fn new(number: usize, latency: impl FnMut() -> Duration + Send + 'static) -> Arc<Server> {
        Arc::new(Server {
            name: format!("server{number}").into(),
            state: Arc::default(),
            latency: Mutex::new(Box::new(latency)),
        })
    }

    /// Keys that are set and not expired.
    pub(crate) fn keys(&self) -> usize {
        let mut state = self.state();
        state.expire(Instant::now());
        state.keys.len()
    }

    /// Keys that were deleted, and keys that had to expire.
    pub(crate) fn ends(&self) -> (usize, usize) {
        let mut state = self.state();
        state.expire(Instant::now());
        (state.deleted, state.expired)
    }

    /// What the counter of a lock's key stands at.
    pub(crate) fn counter(&self, key: &str) -> Option<FencingToken> {
        self.state().counters.get(key).copied()
    }

    pub(crate) fn set_counter(&self, key: &str, counter: u64) {
        let counter = FencingToken::new(counter).unwrap();
        self.state().counters.insert(key.into(), counter);
    }

    fn latency(&self) -> Duration {
        (self.latency.lock().unwrap())()
    }

    /// How many listen to it, for whatever lock.
    pub(crate) fn listeners(&self) -> usize {
        self.state().listeners.len()
    }

    /// How many acquires were executed.
    pub(crate) fn acquires(&self) -> usize {
        self.state().acquires
    }

    /// Announces something, true or not.
    pub(crate) fn say(&self, key: &str, owner: OwnerToken, news: News) {
        let listeners: Vec<Listener> = self.state().listeners(&key.into()).cloned().collect();
        listeners
            .iter()
            .for_each(|listener| listener.released(owner, news));
    }

    /// Whether its connections for announcements are cut.
    pub(crate) fn mute(&self, mute: bool) {
        let mut state = self.state();
        state.mute = mute;
        for (_, _, listener) in &state.listeners {
            if mute {
                listener.deaf()
            } else {
                listener.listening()
            }
        }
    }

    /// Has it say that so many listen, true or not.
    pub(crate) fn claim_listeners(&self, listeners: u32) {
        self.state().claimed = Some(listeners);
    }

    /// How many keys were set again.
    pub(crate) fn healed(&self) -> usize {
        self.state().healed
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.keys.clear();
        state.counters.clear();
    }

    /// How many counters were raised for a second round.
    pub(crate) fn raised(&self) -> usize {
        self.state().raised
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        let before = self.keys.len();
        self.keys.retain(|_, (_, until)| now < *until);
        self.expired += before - self.keys.len();
    }

    fn execute(&mut self, request: &Request) -> Reply {
        let now = Instant::now();
        self.expire(now);
        let holder = self.keys.get(&request.key).copied();
        self.acquires += usize::from(matches!(request.action, Action::Acquire { .. }));
        let mine = holder.is_some_and(|(owner, _)| owner == request.owner);
        match (request.action, holder) {
            (Action::Acquire { ttl, fencing, .. }, None) => {
                self.keys.insert(request.key.clone(), (request.owner, now + ttl));
                self.count(request, fencing)
            }
            (Action::Acquire { fencing, .. }, Some(_)) if mine => self.count(request, fencing),
            (Action::Heal { ttl, fencing }, None) => {
                self.keys.insert(request.key.clone(), (request.owner, now + ttl));
                self.healed += 1;
                self.learn(request, fencing)
            }
            (Action::Heal { fencing, .. }, Some(_)) if mine => self.learn(request, fencing),
            (Action::Acquire { .. } | Action::Heal { .. }, Some((owner, until))) => Reply::Held {
                remaining: Some(until - now),
                holder: Some(owner),
                listeners: self.audience(&request.key),
            },
            (_, None) => {
                self.converge(request);
                Reply::Missing
            }
            (_, Some(_)) if !mine => {
                self.converge(request);
                Reply::Foreign
            }
            (Action::Raise { token }, Some(_)) => match self.counters.get_mut(&request.key) {
                Some(counter) => {
                    self.raised += 1;
                    *counter = token.max(*counter);
                    Reply::Raised { counter: *counter }
                }
                None => Reply::Missing,
            },
            (Action::Extend { ttl }, Some((owner, until))) => {
                self.keys
                    .insert(request.key.clone(), (owner, until.max(now + ttl)));
                Reply::Extended
            }
            (Action::Release { news, .. }, Some(_)) => {
                self.converge(request);
                self.keys.remove(&request.key);
                self.deleted += 1;
                Reply::Released {
                    listeners: if news.is_some() {
                        self.audience(&request.key)
                    } else {
                        0
                    },
                }
            }
        }
    }
}

impl State {
    fn listeners(&self, key: &Arc<str>) -> impl Iterator<Item = &Listener> {
        self.listeners
            .iter()
            .filter(move |(_, of, _)| of == key && !self.mute)
            .map(|(_, _, listener)| listener)
    }

    fn audience(&self, key: &Arc<str>) -> u32 {
        let listeners = self.listeners(key).count() as u32;
        self.claimed.unwrap_or(listeners)
    }

    /// W2.
    fn announced(&self, request: &Request, reply: Reply) -> Vec<(Listener, News)> {
        match (request.action, reply) {
            (Action::Release { news: Some(news), .. }, Reply::Released { .. }) => self
                .listeners(&request.key)
                .map(|listener| (listener.clone(), news))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// F1, F5.
    fn count(&mut self, request: &Request, fencing: Option<Fencing>) -> Reply {
        let counter = fencing.map(|fencing| match self.counters.get(&request.key) {
            Some(counter) => FencingToken::new(counter.get() + 1).unwrap(),
            None => fencing.seed,
        });
        if let Some(counter) = counter {
            self.counters.insert(request.key.clone(), counter);
        }
        Reply::Granted { counter }
    }

    /// E4: raised, not counted.
    fn learn(&mut self, request: &Request, fencing: Option<(Fencing, FencingToken)>) -> Reply {
        let counter = fencing.map(|(fencing, token)| match self.counters.get(&request.key) {
            Some(counter) => token.max(*counter),
            None => fencing.seed.max(token),
        });
        if let Some(counter) = counter {
            self.counters.insert(request.key.clone(), counter);
        }
        Reply::Granted { counter }
    }

    /// F4.
    fn converge(&mut self, request: &Request) {
        if let Action::Release {
            counter: Some(to), ..
        } = request.action
            && let Some(counter) = self.counters.get_mut(&request.key)
        {
            *counter = to.max(*counter);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Who no longer listens when this is dropped.
struct Leave(u64, Arc<Mutex<State>>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.1
            .lock()
            .unwrap()
            .listeners
            .retain(|(number, _, _)| *number != self.0);
    }
}

/// The connection of one client to a server. What one sends arrives in order, but not so what several send.
struct Line {
    server: Arc<Server>,
    /// When the last request arrives.
    last: Mutex<Option<Instant>>,
}

impl Line {
    fn to(server: &Arc<Server>) -> Line {
        Line {
            server: server.clone(),
            last: Mutex::default(),
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
        let round_trip = self.server.latency() + self.server.latency();
        let number = {
            let mut state = self.server.state();
            state.next_listener += 1;
            state.next_listener
        };
        let (key, state) = (key.clone(), self.server.state.clone());
        let leave = Leave(number, state.clone());
        let gone = Arc::new(());
        let there = Arc::downgrade(&gone);
        tokio::spawn(async move {
            sleep(round_trip / 2).await;
            // It may have left already.
            if there.upgrade().is_some() {
                state
                    .lock()
                    .unwrap()
                    .listeners
                    .push((number, key, listener.clone()));
            }
            sleep(round_trip / 2).await;
            let mute = state.lock().unwrap().mute;
            if !mute && there.upgrade().is_some() {
                listener.listening();
            }
        });
        Some(Box::new((leave, gone)))
    }

    fn call(&self, request: Request, _: Duration) -> BoxFuture<'static, Answer> {
        let (there, back) = (self.server.latency(), self.server.latency());
        // T1: not before what was sent earlier.
        let arrival = {
            let mut last = self.last.lock().unwrap();
            let arrival = (Instant::now() + there)
                .max(last.map_or_else(Instant::now, |last| last + Duration::from_micros(1)));
            *last = Some(arrival);
            arrival
        };
        let state = self.server.state.clone();
        // It is executed whether or not anybody waits for the answer.
        let executed = tokio::spawn(async move {
            tokio::time::sleep_until(arrival).await;
            let (reply, told) = {
                let mut state = state.lock().unwrap();
                let reply = state.execute(&request);
                (reply, state.announced(&request, reply))
            };
            sleep(back).await;
            for (listener, news) in told {
                listener.released(request.owner, news);
            }
            reply
        });
        Box::pin(async move {
            executed.await.map_err(|_| Fault::ConnectionLost {
                reason: "the simulation ended".into(),
            })
        })
    }
}

/// The way of one client to a server, on which some requests take longer.
pub(crate) struct Way {
    line: Arc<Line>,
    delay: Box<dyn Fn(Action) -> Duration + Send + Sync>,
}

impl Way {
    pub(crate) fn to(
        server: &Arc<Server>,
        delay: impl Fn(Action) -> Duration + Send + Sync + 'static,
    ) -> Arc<Way> {
        Arc::new(Way {
            line: Arc::new(Line::to(server)),
            delay: Box::new(delay),
        })
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)
    }
}

impl Node for Way {
    fn name(&self) -> &Arc<str> {
        self.line.name()
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        self.line.listen(key, listener)
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
