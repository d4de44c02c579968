//! One run: clients, servers and what is between them, event by event.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use quorlock::node::{Action, Fault, Reply};

use crate::check;
use crate::client::Client;
use crate::desk::{Answer, Call, Parcel, Probe};
use crate::heap::{Heap, Tail};
use crate::ledger::{Book, Ledger};
use crate::log::Log;
use crate::plan::{LONGEST_TTL, Plan, Trouble};
use crate::server::{Memory, Server};
use crate::store::{Store, Write, Written};

/// T4, as `src/redis/link.rs` has it: how long a connection may leave a call unanswered.
const PATIENCE_IN_BUDGETS: u64 = 3;
const SHORTEST_PATIENCE: u64 = 500;
const LONGEST_PATIENCE: u64 = 5_000;
/// A connection that is not refused takes at most this long.
const CONNECT_TIMEOUT: u64 = 500;
/// What is left of a client is looked at so long after it says that it is done: the library looks for suspensions every
/// tenth of a second.
const SETTLES_IN: u64 = 110;
/// A run that is not over by then never will be.
const GIVE_UP: u64 = 60_000;

#[derive(Debug)]
pub(crate) enum Event {
    Arrive(usize, Call),
    Answered(usize, Call, Answer, Option<i64>),
    Lost {
        client: usize,
        server: usize,
        connection: u32,
    },
    /// Whether a connection hangs.
    Doubt(usize, Call),
    Dial {
        client: usize,
        server: usize,
    },
    Dialled {
        client: usize,
        server: usize,
        run: u32,
        sent_local: i64,
    },
    Write(usize, u64, Write),
    Written(usize, u64, Written),
    Trouble(Trouble),
    Restart {
        server: usize,
        memory: Memory,
    },
    Continue {
        server: usize,
        run: u32,
    },
    Mend {
        client: usize,
        server: usize,
    },
    Resume {
        client: usize,
    },
    Audit {
        client: usize,
    },
    /// Its last phase begins.
    Finish {
        client: usize,
    },
    /// Time passes.
    Tick,
}

/// What is between a client and a server.
#[derive(Debug, Default)]
struct Wire {
    there: Tail,
    back: Tail,
    /// Cut until then, each way.
    cut_there: u64,
    cut_back: u64,
    held_there: VecDeque<Call>,
    held_back: VecDeque<Event>,
    /// Connections before this one were reset: what they had under way is gone.
    reset_before: u32,
}

pub(crate) struct World {
    plan: Arc<Plan>,
    ledger: Arc<Ledger>,
    rng: Rng,
    now: u64,
    heap: Heap<Event>,
    clients: Vec<Client>,
    servers: Vec<Server>,
    wires: Vec<Vec<Wire>>,
    store: Store,
    accepted: check::Accepted,
    log: Log,
    last_restart: u64,
    /// So many clients have run their last phase.
    finished: usize,
    events: u64,
}

/// How a run went.
pub(crate) struct Outcome {
    pub(crate) plan: Arc<Plan>,
    pub(crate) book: Book,
    pub(crate) log: Log,
    pub(crate) simulated: u64,
    pub(crate) events: u64,
}

impl World {
    pub(crate) fn new(seed: u64, with_text: bool) -> World {
        // The library's choices: of delays.
        fastrand::seed(seed);
        let plan = Arc::new(Plan::of(seed));
        let servers: Vec<Server> = (plan.clocks.iter().zip(&plan.durable))
            .map(|(clock, durable)| Server::new(clock.clone(), *durable))
            .collect();
        let clients: Vec<Client> = (0..plan.clients).map(|_| Client::new(servers.len())).collect();
        let wires = || (0..servers.len()).map(|_| Wire::default()).collect();
        let mut world = World {
            ledger: Arc::default(),
            rng: Rng::with_seed(seed),
            now: 0,
            heap: Heap::new(),
            wires: (0..plan.clients).map(|_| wires()).collect(),
            clients,
            servers,
            store: Store::default(),
            accepted: check::Accepted::default(),
            log: Log::new(with_text),
            last_restart: 0,
            finished: 0,
            events: 0,
            plan,
        };
        for client in 0..world.clients.len() {
            for server in 0..world.servers.len() {
                let probe = world.probe(server, -2_000);
                world.clients[client].inside(|desk| desk.connected(server, &probe));
            }
            let rng = world.rng.fork();
            world.clients[client].start(client, &world.plan, &world.ledger, rng);
        }
        for (at, trouble) in world.plan.clone().troubles.iter().copied() {
            world.push(at, Event::Trouble(trouble));
        }
        world.push(100, Event::Tick);
        world
    }

    /// Until everybody is done.
    pub(crate) fn run(mut self) -> Outcome {
        while self.finished < self.clients.len() {
            for client in 0..self.clients.len() {
                self.let_run(client);
            }
            let Some((time, event)) = self.heap.pop() else {
                break;
            };
            self.now = time;
            self.events += 1;
            self.handle(event);
            if self.now > self.plan.until + GIVE_UP {
                self.violated("I5: the clients do not come to an end".into());
            }
            if !self.ledger.book().violations.is_empty() {
                break;
            }
        }
        let guards: u64 = self
            .clients
            .iter()
            .map(|client| client.desk.guard_refusals())
            .sum();
        let mut book = std::mem::take(&mut *self.ledger.book());
        book.tally.add("guard refused", guards);
        let pauses: Vec<_> = self.clients.iter().map(|client| client.pauses.clone()).collect();
        check::history(&mut book, &self.plan, &pauses);
        Outcome {
            plan: self.plan,
            book,
            log: self.log,
            simulated: self.now,
            events: self.events,
        }
    }

    fn push(&mut self, time: u64, event: Event) {
        let tie = self.rng.u32(..);
        self.heap.push(time, tie, event);
    }

    fn violated(&self, what: String) {
        self.ledger.book().violated(format!("at {}: {what}", self.now));
    }

    fn tally(&self, what: &'static str) {
        self.ledger.book().tally.count(what);
    }

    /// Up to the next event: by what it sends, a client brings that nearer.
    fn let_run(&mut self, client: usize) {
        let mut turns = 0;
        while self.clients[client].frozen.is_none() {
            let Some(horizon) = self.heap.next_time() else {
                return;
            };
            if self.clients[client].now() >= horizon {
                return;
            }
            self.clients[client].run(horizon);
            self.collect(client);
            turns += 1;
            assert!(turns < 100_000, "client {client} sends without end");
        }
    }

    /// What a client has sent, and how its leases stand.
    fn collect(&mut self, client: usize) {
        let now = self.clients[client].now();
        for parcel in self.clients[client].take_outbox() {
            match parcel {
                Parcel::Call(call) => self.send(client, now, call),
                Parcel::Write(id, write) => {
                    let most = if self.rng.u8(..20) == 0 { 300 } else { 5 };
                    let latency = self.rng.u64(1..=most);
                    self.push(now + latency, Event::Write(client, id, write));
                }
                Parcel::Done => self.push(now + SETTLES_IN, Event::Audit { client }),
            }
        }
        let local = self.clients[client].inside(|desk| desk.local());
        for glance in self.clients[client].glance() {
            let mut book = self.ledger.book();
            let grant = &mut book.grants[glance.grant];
            grant.see(glance.deadline);
            let grant = grant.clone();
            book.tally.count("I4 looked at");
            if !glance.is_held {
                continue;
            }
            let desk = &self.clients[client].desk;
            let sent = desk
                .owner_of(grant.acquire)
                .map_or(0, |owner| desk.last_sent(owner));
            if local >= glance.deadline || glance.deadline > sent + grant.believable {
                book.violated(format!(
                    "I4: client {client} takes {grant:?} for held at {local}, last sent at {sent}"
                ));
            }
        }
    }

    fn send(&mut self, client: usize, now: u64, call: Call) {
        let (latency, tie) = (
            self.plan.latencies[client][call.server].draw(&mut self.rng),
            self.rng.u32(..),
        );
        let patience = (call.budget * PATIENCE_IN_BUDGETS).clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE);
        self.push(now + patience, Event::Doubt(client, call.clone()));
        let tail = &mut self.wires[client][call.server].there;
        self.heap
            .push_behind(tail, now + latency, tie, Event::Arrive(client, call));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(client, call) => {
                let wire = &mut self.wires[client][call.server];
                if self.now < wire.cut_there {
                    wire.held_there.push_back(call);
                } else {
                    self.arrive(client, call);
                }
            }
            Event::Answered(client, ref call, ..) => self.bring(client, call.server, event),
            Event::Lost { client, server, .. } => self.bring(client, server, event),
            Event::Doubt(client, call) => self.doubt(client, call),
            Event::Dial { client, server } => self.dial(client, server),
            Event::Dialled {
                client,
                server,
                run,
                sent_local,
            } => {
                self.dialled(client, server, run, sent_local);
            }
            Event::Write(client, id, write) => {
                let written = self.store.write(write);
                self.log
                    .note(self.now, &[1, client as u64, write.token, written as u64], || {
                        format!("store: {write:?} of client {client} {written:?}")
                    });
                self.accepted.look(&mut self.ledger.book(), write, written);
                let latency = self.rng.u64(1..=5);
                self.push(self.now + latency, Event::Written(client, id, written));
            }
            Event::Written(client, id, written) => {
                if self.clients[client].frozen.is_some() {
                    self.clients[client].inbox.push_back(event);
                } else {
                    self.clients[client].inside(|desk| desk.written(id, written));
                }
            }
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Restart { server, memory } => {
                self.servers[server].restart(self.now, memory);
                self.last_restart = self.now;
                self.log.note(self.now, &[2, server as u64], || {
                    format!("server {server} started, memory {memory:?}")
                });
            }
            Event::Continue { server, run } => {
                if self.servers[server].run == run && self.servers[server].stopped {
                    self.servers[server].stopped = false;
                    self.log.note(self.now, &[3, server as u64], || {
                        format!("server {server} continued")
                    });
                    for (client, call) in std::mem::take(&mut self.servers[server].inbox) {
                        self.arrive(client, call);
                    }
                }
            }
            Event::Mend { client, server } => self.mend(client, server),
            Event::Resume { client } => {
                self.clients[client].resume(self.now);
                self.log.note(self.now, &[4, client as u64], || {
                    format!("client {client} goes on")
                });
                self.collect(client);
                let (delay, tie) = (self.rng.u64(0..=2), self.rng.u32(..));
                for event in std::mem::take(&mut self.clients[client].inbox) {
                    self.heap.push(self.now + delay, tie, event);
                }
            }
            Event::Audit { client } => self.audit(client),
            Event::Finish { client } => {
                if client < self.clients.len() {
                    let rng = self.rng.fork();
                    self.clients[client].start(client, &self.plan, &self.ledger, rng);
                }
            }
            Event::Tick => self.push(self.now + 100, Event::Tick),
        }
    }

    /// A request has come through to its server.
    fn arrive(&mut self, client: usize, call: Call) {
        let server = &mut self.servers[call.server];
        if !server.up
            || server.run != call.run
            || call.connection < self.wires[client][call.server].reset_before
        {
            return;
        }
        if server.stopped {
            server.inbox.push_back((client, call));
            return;
        }
        let (answer, time, happened) = server.execute(self.now, client, &call);
        let number = call.server;
        self.log.note(
            self.now,
            &[5, client as u64, number as u64, call.id, code(&answer)],
            || {
                format!(
                    "server {number}: {} of client {client}, id {}, owner {:.4}, sent at {}: {answer:?}",
                    brief(&call),
                    call.id,
                    call.request.owner.value(),
                    call.sent
                )
            },
        );
        {
            let mut book = self.ledger.book();
            book.tally.count("requests executed");
            match (&answer, call.request.action) {
                (Err(Fault::TooLate), _) => book.tally.count("late SET refused"),
                (Ok(Reply::Raised { .. }), _) => book.tally.count("second round: raised"),
                (Ok(Reply::Released), _) => {
                    let acquire = self.clients[client].desk.acquire_of(call.request.owner);
                    if acquire.is_some_and(|acquire| book.cancelled.contains(&(client, acquire))) {
                        book.tally.count("cancelled, and cleaned");
                    }
                }
                _ => {}
            }
            if happened.healed {
                book.tally.count("healed");
            }
            if happened.late_cleaned {
                book.tally.count("late SET cleaned");
            }
            if happened.counter_expired {
                book.tally.count("counter expired");
            }
        }
        let (latency, tie) = (
            self.plan.latencies[client][number].draw(&mut self.rng),
            self.rng.u32(..),
        );
        let tail = &mut self.wires[client][number].back;
        let event = Event::Answered(client, call, answer, time);
        self.heap.push_behind(tail, self.now + latency, tie, event);
    }

    /// Something has come back to a client.
    fn bring(&mut self, client: usize, server: usize, event: Event) {
        let wire = &mut self.wires[client][server];
        if self.now < wire.cut_back {
            wire.held_back.push_back(event);
            return;
        }
        if self.clients[client].frozen.is_some() {
            self.clients[client].inbox.push_back(event);
            return;
        }
        match event {
            Event::Answered(_, call, answer, time) => {
                let numbers = [6, client as u64, server as u64, call.id];
                self.log.note(self.now, &numbers, || {
                    format!("client {client} hears of server {server}, id {}", call.id)
                });
                self.clients[client].inside(|desk| desk.answered(&call, answer, time));
            }
            Event::Lost { connection, .. } => {
                if self.clients[client].inside(|desk| desk.disconnected(server, connection)) {
                    let wait = self.rng.u64(1..=50);
                    self.push(self.now + wait, Event::Dial { client, server });
                }
            }
            _ => {}
        }
    }

    /// T4.
    fn doubt(&mut self, client: usize, call: Call) {
        if self.clients[client].frozen.is_some() {
            self.push(self.now + 20, Event::Doubt(client, call));
        } else if self.clients[client].desk.waits_for(&call) {
            let server = call.server;
            self.log
                .note(self.now, &[7, client as u64, server as u64, call.id], || {
                    format!("client {client} gives up its connection to server {server}")
                });
            self.tally("connections given up");
            self.clients[client].inside(|desk| desk.disconnected(server, call.connection));
            if self.rng.bool() {
                self.wires[client][server].reset_before = call.connection + 1;
            }
            self.push(self.now + 1, Event::Dial { client, server });
        }
    }

    fn dial(&mut self, client: usize, server: usize) {
        let wait = if self.clients[client].frozen.is_some() || !self.servers[server].up {
            self.rng.u64(20..=200)
        } else if self.servers[server].stopped || self.is_cut(client, server) {
            CONNECT_TIMEOUT
        } else {
            let latency = self.plan.latencies[client][server];
            let round_trip = latency.draw(&mut self.rng) + latency.draw(&mut self.rng);
            let dialled = Event::Dialled {
                client,
                server,
                run: self.servers[server].run,
                sent_local: self.clients[client].inside(|desk| desk.local()),
            };
            return self.push(self.now + round_trip, dialled);
        };
        self.push(self.now + wait, Event::Dial { client, server });
    }

    fn dialled(&mut self, client: usize, server: usize, run: u32, sent_local: i64) {
        let it = &self.servers[server];
        if self.clients[client].frozen.is_some()
            || !it.up
            || it.run != run
            || it.stopped
            || self.is_cut(client, server)
        {
            return self.push(self.now + 50, Event::Dial { client, server });
        }
        let probe = self.probe(server, sent_local);
        self.clients[client].inside(|desk| desk.connected(server, &probe));
        let wire = &mut self.wires[client][server];
        (wire.there, wire.back) = (Tail::default(), Tail::default());
        self.log.note(self.now, &[8, client as u64, server as u64], || {
            format!("client {client} connected to server {server}")
        });
    }

    fn probe(&self, server: usize, sent_local: i64) -> Probe {
        let it = &self.servers[server];
        Probe {
            run: it.run,
            time: it.clock.micros(self.now),
            started: it.started,
            remembers_since: it.remembers_since,
            durable: it.durable,
            sent_local,
        }
    }

    fn is_cut(&self, client: usize, server: usize) -> bool {
        let wire = &self.wires[client][server];
        self.now < wire.cut_there.max(wire.cut_back)
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.log.note(self.now, &[9], || format!("{trouble:?}"));
        match trouble {
            Trouble::Crash { server, memory, down } => {
                if !self.servers[server].up {
                    return;
                }
                self.servers[server].crash();
                for client in 0..self.clients.len() {
                    self.wires[client][server].held_there.clear();
                    self.break_off(client, server);
                }
                self.push(self.now + down, Event::Restart { server, memory });
            }
            Trouble::Stop { server, time } => {
                let it = &mut self.servers[server];
                if it.up && !it.stopped {
                    it.stopped = true;
                    let run = it.run;
                    self.push(self.now + time, Event::Continue { server, run });
                }
            }
            Trouble::Cut {
                client,
                server,
                there,
                back,
                time,
            } => {
                let wire = &mut self.wires[client][server];
                let until = self.now + time;
                if there {
                    wire.cut_there = wire.cut_there.max(until);
                }
                if back {
                    wire.cut_back = wire.cut_back.max(until);
                }
                self.push(until, Event::Mend { client, server });
            }
            Trouble::Break { client, server } => {
                let connection = self.clients[client].desk.connection(server);
                // What was under way arrives, or does not.
                if self.rng.bool() {
                    self.wires[client][server].reset_before = connection + 1;
                }
                self.break_off(client, server);
            }
            Trouble::Step { server, by } => self.servers[server].clock.base += by * 1_000,
            Trouble::Pause {
                client,
                time,
                suspended,
            } => {
                if self.clients[client].frozen.is_none() {
                    self.clients[client].frozen = Some((self.now, suspended));
                    self.push(self.now + time, Event::Resume { client });
                }
            }
        }
    }

    /// The client is going to notice that its connection is gone.
    fn break_off(&mut self, client: usize, server: usize) {
        let (latency, tie) = (
            self.plan.latencies[client][server].draw(&mut self.rng),
            self.rng.u32(..),
        );
        let connection = self.clients[client].desk.connection(server);
        let lost = Event::Lost {
            client,
            server,
            connection,
        };
        let tail = &mut self.wires[client][server].back;
        self.heap.push_behind(tail, self.now + latency, tie, lost);
    }

    /// What was held up arrives, all before what has yet to come.
    fn mend(&mut self, client: usize, server: usize) {
        if self.now >= self.wires[client][server].cut_there {
            for call in std::mem::take(&mut self.wires[client][server].held_there) {
                self.arrive(client, call);
            }
        }
        if self.now >= self.wires[client][server].cut_back {
            for event in std::mem::take(&mut self.wires[client][server].held_back) {
                self.bring(client, server, event);
            }
        }
    }

    /// I5: what is left when a client has shut down.
    fn audit(&mut self, client: usize) {
        self.log.note(self.now, &[10, client as u64], || {
            format!("client {client} is done")
        });
        let mut book = self.ledger.book();
        let leaky = book.leaky.contains(&client);
        let tasks = self.clients[client].alive_tasks();
        book.tally.count("I5 looked at");
        if tasks > 0 && !leaky {
            book.violated(format!("I5: client {client} is done, but has {tasks} tasks"));
        }
        for (number, server) in self.servers.iter().enumerate() {
            for (name, key) in server.keys(self.now) {
                let acquire = self.clients[key.client].desk.acquire_of(key.owner);
                let forgotten = acquire.is_some_and(|acquire| book.forgotten.contains(&acquire));
                let excused = key.ghost || key.plain || !self.plan.clocks_behave || forgotten;
                if key.client == client && !excused {
                    book.violated(format!(
                        "I5: client {client} is done, but {name} is held on server {number}"
                    ));
                }
            }
        }
        drop(book);
        self.clients[client].phases += 1;
        if self.clients[client].phases == 2 {
            self.finished = client + 1;
            self.push(self.now + 1, Event::Finish { client: client + 1 });
        } else if self.clients.iter().all(|client| client.phases == 1) {
            // What clients left behind expires, and servers may grant again.
            let guard = self.plan.guard.map_or(0, |guard| guard.as_millis() as u64);
            let ready = (self.last_restart + guard + 2_500).max(self.now + LONGEST_TTL + 500);
            self.push(ready, Event::Finish { client: 0 });
        }
    }
}

/// For the hash.
fn code(answer: &Answer) -> u64 {
    match answer {
        Ok(Reply::Granted { counter }) => counter.map_or(1, |counter| counter.get()),
        Ok(Reply::Held { remaining }) => remaining.map_or(2, |left| left.as_millis() as u64 * 16 + 3),
        Ok(Reply::Raised { counter }) => counter.get(),
        Ok(Reply::Extended) => 4,
        Ok(Reply::Released) => 5,
        Ok(Reply::Missing) => 6,
        Ok(Reply::Foreign) => 7,
        Err(_) => 8,
    }
}

fn brief(call: &Call) -> String {
    let what = match call.request.action {
        Action::Acquire {
            ttl, fencing: None, ..
        } => format!("set {ttl:?}"),
        Action::Acquire { ttl, .. } => format!("acquire {ttl:?}"),
        Action::Heal { ttl, .. } => format!("heal {ttl:?}"),
        Action::Raise { token } => format!("raise to {token}"),
        Action::Extend { ttl } => format!("extend {ttl:?}"),
        Action::Release { counter } => format!("release {counter:?}"),
    };
    format!("{what} {}", call.request.key)
}
