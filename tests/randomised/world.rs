//! One run: clients, servers and the network, event by event.

mod announcements;
pub(crate) mod event;
mod looks;
mod network;
mod trouble;

use std::collections::HashSet;
use std::sync::Arc;

use fastrand::Rng;
use quorlock::simulation::OwnerToken;

use crate::check;
use crate::client::Client;
use crate::connections::Message;
use crate::heap::Heap;
use crate::ledger::{Ledger, Records};
use crate::log::Log;
use crate::plan::{LONGEST_TTL, Plan};
use crate::server::Server;
use crate::store::Store;

use event::Event;
use network::Wire;

/// How long after its end a client is audited: the library looks for suspensions every 100 ms.
const SETTLES_IN: u64 = 110;
/// A run that takes longer will not end.
const GIVE_UP: u64 = 60_000;

pub(crate) struct World {
    plan: Arc<Plan>,
    ledger: Arc<Ledger>,
    rng: Rng,
    now: u64,
    heap: Heap<Event>,
    clients: Vec<Client>,
    servers: Vec<Server>,
    asked: HashSet<(OwnerToken, usize)>,
    wires: Vec<Vec<Wire>>,
    store: Store,
    accepted: check::Accepted,
    log: Log,
    /// When a memory last began, or went on in another process.
    last_record: u64,
    /// The number of clients that have finished their last phase.
    finished: usize,
    events: u64,
}

pub(crate) struct Outcome {
    pub(crate) plan: Arc<Plan>,
    pub(crate) records: Records,
    pub(crate) log: Log,
    pub(crate) simulated: u64,
    pub(crate) events: u64,
}

impl World {
    pub(crate) fn new(seed: u64, with_text: bool) -> World {
        // The library draws its delays from this generator.
        fastrand::seed(seed);
        let plan = Arc::new(Plan::of(seed));
        let mut rng = Rng::with_seed(seed);
        let servers: Vec<Server> = (plan.clocks.iter().zip(&plan.durable))
            .map(|(clock, durable)| Server::new(clock.clone(), *durable, rng.u128(..).into()))
            .collect();
        let clients: Vec<Client> = (0..plan.clients).map(|_| Client::new(&plan)).collect();
        let wires = || (0..servers.len()).map(|_| Wire::default()).collect();
        let mut world = World {
            ledger: Arc::default(),
            rng,
            now: 0,
            heap: Heap::new(plan.clients),
            asked: HashSet::new(),
            wires: (0..plan.clients).map(|_| wires()).collect(),
            clients,
            servers,
            store: Store::default(),
            accepted: check::Accepted::default(),
            log: Log::new(with_text),
            last_record: 0,
            finished: 0,
            events: 0,
            plan,
        };
        for client in 0..world.clients.len() {
            for server in 0..world.servers.len() {
                world.connect(client, server, -2_000);
                world.look_again(client, server);
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

    pub(crate) fn run(mut self) -> Outcome {
        while self.finished < self.clients.len() {
            for client in 0..self.clients.len() {
                self.run_client(client);
            }
            let Some((time, event)) = self.heap.pop() else {
                break;
            };
            self.now = time;
            self.events += 1;
            self.handle(event);
            if self.now > self.plan.until + GIVE_UP {
                self.violated("I5: the clients do not end".into());
            }
            if !self.ledger.records().violations.is_empty() {
                break;
            }
        }
        let mut records = std::mem::take(&mut *self.ledger.records());
        let pauses: Vec<_> = self.clients.iter().map(|client| client.pauses.clone()).collect();
        check::history(&mut records, &self.plan, &pauses);
        Outcome {
            plan: self.plan,
            records,
            log: self.log,
            simulated: self.now,
            events: self.events,
        }
    }

    fn push(&mut self, time: u64, event: Event) {
        let tie = self.rng.u32(..);
        self.heap.push(event.client(), time, tie, event);
    }

    fn violated(&self, what: String) {
        self.ledger.records().violated(format!("at {}: {what}", self.now));
    }

    fn tally(&self, what: &'static str) {
        self.ledger.records().tally.count(what);
    }

    /// Runs a client up to the next event. What it sends may bring that nearer.
    fn run_client(&mut self, client: usize) {
        let mut turns = 0;
        while self.clients[client].frozen.is_none() {
            let horizon = self.heap.horizon(client);
            if self.clients[client].time >= horizon {
                return;
            }
            self.clients[client].run(horizon);
            self.collect(client);
            turns += 1;
            assert!(turns < 100_000, "client {client} sends without end");
        }
    }

    /// Takes what a client has sent, and checks its leases (I4).
    fn collect(&mut self, client: usize) {
        let now = self.clients[client].time;
        for message in self.clients[client].take_outbox() {
            match message {
                Message::Call(call) => self.send(client, now, *call),
                Message::Write(id, write) => {
                    let most = if self.rng.u8(..20) == 0 { 300 } else { 5 };
                    let latency = self.rng.u64(1..=most);
                    self.push(now + latency, Event::Write(client, id, write));
                }
                Message::Listen(server, id) => self.subscribe(client, now, server, id),
                Message::StopListening(server, id) => self.servers[server]
                    .subscriptions
                    .retain(|subscription| (subscription.client, subscription.id) != (client, id)),
                Message::Done => self.push(now + SETTLES_IN, Event::Audit { client }),
            }
        }
        let local = self.clients[client].inside(|connections| connections.local());
        for view in self.clients[client].lease_views() {
            let mut records = self.ledger.records();
            let grant = &mut records.grants[view.grant];
            grant.see(view.deadline);
            let grant = grant.clone();
            records.tally.count("I4 checked");
            if !view.is_held {
                continue;
            }
            let connections = &self.clients[client].connections;
            let sent = connections
                .owner_of(grant.acquire)
                .map_or(0, |owner| connections.last_sent(owner));
            if local >= view.deadline || view.deadline > sent + grant.believable {
                records.violated(format!(
                    "I4: client {client} sees {grant:?} as held at {local}, last sent at {sent}"
                ));
            }
        }
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
            Event::Lost { client, server, .. }
            | Event::Looked { client, server, .. }
            | Event::Subscribed(client, server, _)
            | Event::ListenersLost(client, server)
            | Event::Announced(client, server, ..) => self.bring(client, server, event),
            Event::Subscribe(client, server, id) => self.subscribed(client, server, id),
            Event::Doubt(client, call) => self.doubt(client, call),
            Event::Look { client, server } => self.look(client, server),
            Event::Looks { client, .. } => self.looks(client, event),
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
                self.accepted.look(&mut self.ledger.records(), write, written);
                let latency = self.rng.u64(1..=5);
                self.push(self.now + latency, Event::WriteOutcome(client, id, written));
            }
            Event::WriteOutcome(client, id, written) => {
                if self.clients[client].frozen.is_some() {
                    self.clients[client].inbox.push_back(event);
                } else {
                    self.clients[client].inside(|connections| connections.written(id, written));
                }
            }
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Restart { server, memory } => {
                self.servers[server].restart(self.now, memory);
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
                    self.heap.push(Some(client), self.now + delay, tie, event);
                }
            }
            Event::Audit { client } => self.audit(client),
            Event::Finish { client } => {
                let rng = self.rng.fork();
                self.clients[client].start(client, &self.plan, &self.ledger, rng);
            }
            Event::Tick => self.push(self.now + 100, Event::Tick),
        }
    }

    /// Checks what a client has left after its shutdown (I5).
    fn audit(&mut self, client: usize) {
        self.log.note(self.now, &[10, client as u64], || {
            format!("client {client} is done")
        });
        let mut records = self.ledger.records();
        let leaky = records.leaky.contains(&client);
        let tasks = self.clients[client].alive_tasks();
        records.tally.count("I5 checked");
        if tasks > 0 && !leaky {
            records.violated(format!("I5: client {client} is done, but has {tasks} tasks"));
        }
        for (number, server) in self.servers.iter_mut().enumerate() {
            for (name, owner, mark) in server.keys(self.now) {
                let acquire = self.clients[mark.client].connections.acquire_of(owner);
                let forgotten = acquire.is_some_and(|acquire| records.forgotten.contains(&acquire));
                let excused = mark.ghost || !self.plan.clocks_behave || forgotten;
                if mark.client == client && !excused {
                    records.violated(format!(
                        "I5: client {client} is done, but {name} is held on server {number}"
                    ));
                }
            }
        }
        drop(records);
        self.clients[client].phases += 1;
        if self.clients[client].phases == 2 {
            self.finished = client + 1;
            if self.finished < self.clients.len() {
                self.push(
                    self.now + 1,
                    Event::Finish {
                        client: self.finished,
                    },
                );
            }
        } else if self.clients.iter().all(|client| client.phases == 1) {
            // By then, leftovers have expired, and servers give locks again.
            let guard = self.plan.guard.unwrap_or_default() + self.plan.look_period();
            let ready =
                (self.last_record + guard.as_millis() as u64 + 2_500).max(self.now + LONGEST_TTL + 500);
            self.push(ready, Event::Finish { client: 0 });
        }
    }
}
