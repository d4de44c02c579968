//! One client's connections to the servers, and what it sends to the simulation. Each of the library's nodes uses them.

pub(crate) mod node;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorlock::LeaseHandle;
use quorlock::simulation::lock_script::{Announcement, Memory};
use quorlock::simulation::{Fault, Listener, OwnerToken, Reply, Request};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::memory::MemoryId;
use crate::node_clock::NodeClock;
use crate::store::{Write, WriteOutcome};

pub(crate) type Answer = Result<Reply, Fault>;

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) server: usize,
    /// The number of the client's connection to that server.
    pub(crate) connection: u32,
    /// The server's run to which the connection leads.
    pub(crate) run: u32,
    pub(crate) id: u64,
    pub(crate) request: Request,
    /// The last moment at which the request may act, on the server's clock (A9).
    pub(crate) latest: i64,
    /// The memory that the client expects there (M1).
    pub(crate) memory: Memory,
    /// When it was sent, and how long its caller waits, in milliseconds.
    pub(crate) sent: u64,
    pub(crate) budget: u64,
    /// When it was sent on the client's clock, in microseconds.
    pub(crate) sent_local: i64,
}

/// A message of a client to the simulation.
pub(crate) enum Message {
    Call(Box<Call>),
    Write(u64, Write),
    /// The client starts to listen on a server, or stops.
    Listen(usize, u64),
    StopListening(usize, u64),
    Done,
}

/// A server as a client finds it when it connects.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) run: u32,
    pub(crate) time: i64,
    pub(crate) id: MemoryId,
    pub(crate) memory: Memory,
    pub(crate) sent_local: i64,
}

struct Link {
    up: bool,
    connection: u32,
    run: u32,
    clock: Option<NodeClock>,
    /// How far the server's clock was put forward, in microseconds.
    advanced: u64,
    /// The memory found at the last connect.
    memory: Option<(MemoryId, Memory)>,
    /// When the last look began, in microseconds of the client's clock (M3).
    looked: i64,
    /// How often the node turned out to be another memory (M7).
    epoch: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
}

struct Inner {
    outbox: Vec<Message>,
    links: Vec<Link>,
    writes: BTreeMap<u64, oneshot::Sender<WriteOutcome>>,
    next_id: u64,
    /// The acquire that is being polled, and the last owner token of each.
    acquire: Option<u32>,
    owners: BTreeMap<u32, OwnerToken>,
    acquires: HashMap<OwnerToken, u32>,
    /// When a request that sets or extends a key was last sent, in microseconds.
    last_sent: HashMap<OwnerToken, i64>,
    leases: Vec<(usize, LeaseHandle)>,
    /// By server and number (W2).
    listeners: BTreeMap<(usize, u64), (Arc<str>, Listener)>,
}

pub(crate) struct Connections {
    inner: Mutex<Inner>,
    pub(crate) sent: Notify,
    /// The look period (P), in microseconds.
    look_period: i64,
    start: Instant,
    /// How long the client has been suspended, in milliseconds.
    slept: AtomicU64,
}

impl Connections {
    /// To be called on the client's runtime.
    pub(crate) fn new(servers: usize, look_period: Duration) -> Arc<Connections> {
        let link = |_| Link {
            up: false,
            connection: 0,
            run: 0,
            clock: None,
            advanced: 0,
            memory: None,
            looked: i64::MIN,
            epoch: 0,
            waiting: BTreeMap::new(),
        };
        Arc::new(Connections {
            inner: Mutex::new(Inner {
                outbox: Vec::new(),
                links: (0..servers).map(link).collect(),
                writes: BTreeMap::new(),
                next_id: 1,
                acquire: None,
                owners: BTreeMap::new(),
                acquires: HashMap::new(),
                last_sent: HashMap::new(),
                leases: Vec::new(),
                listeners: BTreeMap::new(),
            }),
            sent: Notify::new(),
            look_period: look_period.as_micros() as i64,
            start: Instant::now(),
            slept: AtomicU64::new(0),
        })
    }

    /// Returns the true time in milliseconds, while the client runs.
    pub(crate) fn now(&self) -> u64 {
        self.awake() + self.slept()
    }

    /// Returns the time without suspensions, by which timers go.
    pub(crate) fn awake(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Returns the timers' instant for a true time.
    pub(crate) fn instant(&self, now: u64) -> Instant {
        self.start + Duration::from_millis(now.saturating_sub(self.slept()))
    }

    /// Returns the true time of an instant, in microseconds. After a suspension, it may be negative.
    pub(crate) fn moment(&self, instant: std::time::Instant) -> i64 {
        let start = self.start.into_std();
        let after = instant.saturating_duration_since(start).as_micros() as i64;
        let before = start.saturating_duration_since(instant).as_micros() as i64;
        after - before + (self.slept() * 1_000) as i64
    }

    pub(crate) fn local(&self) -> i64 {
        self.start.elapsed().as_micros() as i64 + (self.slept() * 1_000) as i64
    }

    pub(crate) fn slept(&self) -> u64 {
        self.slept.load(SeqCst)
    }

    pub(crate) fn sleep(&self, gap: u64) {
        self.slept.fetch_add(gap, SeqCst);
    }

    pub(crate) fn take_outbox(&self) -> Vec<Message> {
        std::mem::take(&mut self.inner().outbox)
    }

    pub(crate) fn send(&self, message: Message) {
        self.inner().outbox.push(message);
        self.sent.notify_one();
    }

    pub(crate) fn write(&self, write: Write) -> oneshot::Receiver<WriteOutcome> {
        let (reply, written) = oneshot::channel();
        let mut inner = self.inner();
        let id = inner.id();
        inner.writes.insert(id, reply);
        inner.outbox.push(Message::Write(id, write));
        drop(inner);
        self.sent.notify_one();
        written
    }

    pub(crate) fn written(&self, id: u64, written: WriteOutcome) {
        if let Some(reply) = self.inner().writes.remove(&id) {
            let _ = reply.send(written);
        }
    }

    /// Returns a listener and its key. `None` if it has stopped.
    pub(crate) fn listener(&self, server: usize, id: u64) -> Option<(Arc<str>, Listener)> {
        self.inner().listeners.get(&(server, id)).cloned()
    }

    /// Tells all listeners on a server that the connection is gone. Returns their numbers.
    pub(crate) fn disconnect_listeners(&self, server: usize) -> Vec<u64> {
        let listeners: Vec<(u64, Listener)> = (self.inner().listeners)
            .range((server, 0)..=(server, u64::MAX))
            .map(|((_, id), (_, listener))| (*id, listener.clone()))
            .collect();
        listeners.iter().for_each(|(_, listener)| listener.unsubscribed());
        listeners.into_iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn announced(&self, server: usize, id: u64, announcement: Announcement) {
        match (self.listener(server, id), announcement) {
            (Some((_, listener)), Announcement::Release(owner, notice)) => listener.released(owner, notice),
            (Some((_, listener)), Announcement::Wait(notice)) => listener.waits(notice),
            (None, _) => {}
        }
    }

    /// Passes an answer on. Returns `false` if the connection is gone or the call no longer waits.
    pub(crate) fn answered(&self, call: &Call, answer: Answer, time: Option<i64>) -> bool {
        let received = self.local();
        let mut inner = self.inner();
        let link = &mut inner.links[call.server];
        if !link.up || link.connection != call.connection {
            return false;
        }
        let Some(reply) = link.waiting.remove(&call.id) else {
            return false;
        };
        if let Some(time) = time {
            link.observe(call.sent_local, received, time);
        }
        drop(inner);
        let _ = reply.send(answer);
        true
    }

    pub(crate) fn connected(&self, server: usize, probe: &Probe) {
        let received = self.local();
        let link = &mut self.inner().links[server];
        link.up = true;
        link.connection += 1;
        link.run = probe.run;
        link.observe(probe.sent_local, received, probe.time);
        let before = link.memory.replace((probe.id, probe.memory.clone()));
        if before.is_some_and(|(id, _)| id != probe.id) {
            link.epoch += 1;
        }
        link.looked = probe.sent_local;
    }

    /// Records a look. Returns `false` if the node has another memory than the client uses there.
    pub(crate) fn looked(
        &self,
        server: usize,
        connection: u32,
        found: Option<MemoryId>,
        sent_local: i64,
    ) -> bool {
        let link = &mut self.inner().links[server];
        if !link.up || link.connection != connection {
            return true;
        }
        let is_known = link.memory.as_ref().map(|(id, _)| *id) == found;
        if is_known {
            link.looked = sent_local;
        }
        is_known
    }

    /// Returns the memory and the run that the client knows. `None` while it is not connected.
    pub(crate) fn memory(&self, server: usize) -> Option<(MemoryId, u32)> {
        let link = &self.inner().links[server];
        link.memory
            .as_ref()
            .filter(|_| link.up)
            .map(|(id, _)| (*id, link.run))
    }

    /// Records the end of a connection. Returns `false` if it had ended already.
    pub(crate) fn disconnected(&self, server: usize, connection: u32) -> bool {
        let waiting = {
            let link = &mut self.inner().links[server];
            if !link.up || link.connection != connection {
                return false;
            }
            link.up = false;
            std::mem::take(&mut link.waiting)
        };
        for reply in waiting.into_values() {
            let _ = reply.send(Err(Fault::ConnectionLost {
                reason: "simulated".into(),
            }));
        }
        true
    }

    pub(crate) fn waits_for(&self, call: &Call) -> bool {
        let link = &self.inner().links[call.server];
        link.up && link.connection == call.connection && link.waiting.contains_key(&call.id)
    }

    pub(crate) fn connection(&self, server: usize) -> u32 {
        self.inner().links[server].connection
    }

    /// Returns the acquire that an owner token was made for.
    pub(crate) fn acquire_of(&self, owner: OwnerToken) -> Option<u32> {
        self.inner().acquires.get(&owner).copied()
    }

    pub(crate) fn owner_of(&self, acquire: u32) -> Option<OwnerToken> {
        self.inner().owners.get(&acquire).copied()
    }

    pub(crate) fn last_sent(&self, owner: OwnerToken) -> i64 {
        self.inner().last_sent.get(&owner).copied().unwrap_or(0)
    }

    pub(crate) fn keep(&self, grant: usize, lease: LeaseHandle) {
        self.inner().leases.push((grant, lease));
    }

    pub(crate) fn let_go(&self, grant: usize) {
        let mut gone = Vec::new();
        let leases = &mut self.inner().leases;
        while let Some(at) = leases.iter().position(|(number, _)| *number == grant) {
            gone.push(leases.swap_remove(at));
        }
    }

    pub(crate) fn leases(&self) -> Vec<(usize, LeaseHandle)> {
        self.inner().leases.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl Inner {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl Link {
    fn observe(&mut self, sent: i64, received: i64, time: i64) {
        match &mut self.clock {
            Some(clock) => {
                if let Some(step) = clock.observe(sent, received, time)
                    && step > 0
                {
                    self.advanced += step.unsigned_abs();
                }
            }
            None => self.clock = Some(NodeClock::new(sent, received, time)),
        }
    }
}
