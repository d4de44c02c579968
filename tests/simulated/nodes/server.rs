//! Nodes that do what real ones do, with expiry on the paused clock.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorlock::FencingToken;
use quorlock::node::{Action, Fencing, Listener, News, OwnerToken, Reply, Request};
use tokio::time::Instant;

/// What a real node does, with expiry on the paused clock: requests travel, are executed, and answers travel back.
pub(crate) struct Server {
    pub(super) name: Arc<str>,
    pub(super) state: Arc<Mutex<State>>,
    /// One way.
    latency: Mutex<Box<dyn FnMut() -> Duration + Send>>,
}

#[derive(Default)]
pub(super) struct State {
    keys: HashMap<Arc<str>, (OwnerToken, Instant)>,
    counters: HashMap<Arc<str>, FencingToken>,
    deleted: usize,
    expired: usize,
    raised: usize,
    healed: usize,
    acquires: usize,
    /// W2: who listens.
    pub(super) listeners: Vec<Subscriber>,
    pub(super) next_listener: u64,
    /// Announces nothing.
    pub(super) mute: bool,
    /// So many listen, it says.
    claimed: Option<u32>,
}

/// Who listens for the releases of a lock.
#[derive(Clone)]
pub(super) struct Subscriber {
    pub(super) number: u64,
    pub(super) key: Arc<str>,
    pub(super) listener: Listener,
    pub(super) distance: Option<Distance>,
}

/// How long the way takes.
pub(super) type Distance = Arc<dyn Fn() -> Duration + Send + Sync>;

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

    pub(super) fn latency(&self) -> Duration {
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
        let listeners: Vec<Subscriber> = self.state().listeners(&key.into()).cloned().collect();
        listeners.iter().for_each(|of| of.listener.released(owner, news));
    }

    /// Whether its connections for announcements are cut.
    pub(crate) fn mute(&self, mute: bool) {
        let mut state = self.state();
        state.mute = mute;
        for Subscriber { listener, .. } in &state.listeners {
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

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        let before = self.keys.len();
        self.keys.retain(|_, (_, until)| now < *until);
        self.expired += before - self.keys.len();
    }

    pub(super) fn execute(&mut self, request: &Request) -> Reply {
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
            (Action::Extend { ttl, .. }, Some((owner, until))) => {
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
    fn listeners(&self, key: &Arc<str>) -> impl Iterator<Item = &Subscriber> {
        self.listeners
            .iter()
            .filter(move |of| of.key == *key && !self.mute)
    }

    fn audience(&self, key: &Arc<str>) -> u32 {
        let listeners = self.listeners(key).count() as u32;
        self.claimed.unwrap_or(listeners)
    }

    /// W2.
    pub(super) fn announced(&self, request: &Request, reply: Reply) -> Vec<(Subscriber, News)> {
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
