//! Connections between clients and servers: in order, until they break.

use std::collections::VecDeque;

use quorlock::simulation::lock_script::Announcement;
use quorlock::simulation::{Action, Fault, Reply};

use super::World;
use super::event::Event;
use crate::connections::{Answer, Call};
use crate::heap::Tail;

/// How long a connection may leave a call unanswered, in milliseconds (T4): half a budget within these bounds, as in the library.
const SHORTEST_PATIENCE: u64 = 50;
const LONGEST_PATIENCE: u64 = 500;
/// How long an attempt to connect takes that is not answered.
const CONNECT_TIMEOUT: u64 = 500;
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) there: Tail,
    pub(super) back: Tail,
    /// Until when each direction is cut.
    pub(super) cut_there: u64,
    pub(super) cut_back: u64,
    pub(super) held_there: VecDeque<Call>,
    pub(super) held_back: VecDeque<Event>,
    /// Earlier connections were reset: their requests in flight are lost.
    pub(super) reset_before: u32,
}

impl World {
    pub(super) fn send(&mut self, client: usize, now: u64, call: Call) {
        let (latency, tie) = (
            self.plan.latencies[client][call.server].draw(&mut self.rng),
            self.rng.u32(..),
        );
        if matches!(call.request.action, Action::Acquire { .. })
            && !self.asked.insert((call.request.owner, call.server))
        {
            self.tally("split vote: asked again");
        }
        let patience = (call.budget / 2).clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE);
        self.push(now + patience, Event::Doubt(client, call.clone()));
        let tail = &mut self.wires[client][call.server].there;
        self.heap
            .push_behind(client, tail, now + latency, tie, Event::Arrive(client, call));
    }

    pub(super) fn arrive(&mut self, client: usize, call: Call) {
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
        let (answer, time, effects) = server.execute(self.now, client, &call);
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
            let mut records = self.ledger.records();
            records.tally.count("requests executed");
            match (&answer, call.request.action) {
                (Err(Fault::Restarted { .. }), Action::Extend { .. }) => {
                    records.tally.count("extended, which does not count yet");
                }
                (Err(Fault::Restarted { .. }), _) => records.tally.count("guard refused"),
                (Err(Fault::OtherMemory), _) => records.tally.count("refused by another memory"),
                (Err(Fault::TooLate), _) => records.tally.count("late SET refused"),
                (Ok(Reply::Raised { .. }), _) => records.tally.count("second round: raised"),
                (Ok(Reply::Released { .. }), _) => {
                    let acquire = self.clients[client].connections.acquire_of(call.request.owner);
                    if acquire.is_some_and(|acquire| records.cancelled.contains(&(client, acquire))) {
                        records.tally.count("cancelled, and cleaned");
                    }
                }
                _ => {}
            }
            if effects.healed {
                records.tally.count("healed");
            }
            if effects.late_cleaned {
                records.tally.count("late SET cleaned");
            }
            if effects.counter_expired {
                records.tally.count("counter expired");
            }
        }
        if let Some(announced) = effects.announced {
            if let Announcement::Wait(_) = announced {
                self.tally("waiting announced");
            }
            self.announce(number, &call.request.key, announced);
        }
        let (latency, tie) = (
            self.plan.latencies[client][number].draw(&mut self.rng),
            self.rng.u32(..),
        );
        let tail = &mut self.wires[client][number].back;
        let event = Event::Answered(client, call, answer, time);
        self.heap
            .push_behind(client, tail, self.now + latency, tie, event);
    }

    /// Delivers an event to a client.
    pub(super) fn bring(&mut self, client: usize, server: usize, event: Event) {
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
                let is_other = answer == Err(Fault::OtherMemory);
                self.clients[client].inside(|connections| connections.answered(&call, answer, time));
                if is_other {
                    self.give_up(client, server, call.connection);
                }
            }
            Event::Looked {
                connection,
                found,
                sent_local,
                ..
            } if !self.clients[client]
                .inside(|connections| connections.looked(server, connection, found, sent_local)) =>
            {
                self.tally("another memory found");
                self.give_up(client, server, connection);
            }
            Event::Lost { connection, .. }
                if self.clients[client]
                    .inside(|connections| connections.disconnected(server, connection)) =>
            {
                let wait = self.rng.u64(1..=50);
                self.push(self.now + wait, Event::Dial { client, server });
            }
            Event::Subscribed(..) | Event::ListenersLost(..) | Event::Announced(..) => self.hear(event),
            _ => {}
        }
    }

    /// Gives a connection up if it still has not answered (T4).
    pub(super) fn doubt(&mut self, client: usize, call: Call) {
        if self.clients[client].frozen.is_some() {
            self.push(self.now + 20, Event::Doubt(client, call));
        } else if self.clients[client].connections.waits_for(&call) {
            let server = call.server;
            self.log
                .note(self.now, &[7, client as u64, server as u64, call.id], || {
                    format!("client {client} gives up its connection to server {server}")
                });
            self.tally("connections given up");
            self.give_up(client, server, call.connection);
        }
    }

    fn give_up(&mut self, client: usize, server: usize, connection: u32) {
        if !self.clients[client].inside(|connections| connections.disconnected(server, connection)) {
            return;
        }
        if self.rng.bool() {
            self.wires[client][server].reset_before = connection + 1;
        }
        self.push(self.now + 1, Event::Dial { client, server });
    }

    pub(super) fn dial(&mut self, client: usize, server: usize) {
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
                sent_local: self.clients[client].inside(|connections| connections.local()),
            };
            return self.push(self.now + round_trip, dialled);
        };
        self.push(self.now + wait, Event::Dial { client, server });
    }

    pub(super) fn dialled(&mut self, client: usize, server: usize, run: u32, sent_local: i64) {
        let it = &self.servers[server];
        if self.clients[client].frozen.is_some()
            || !it.up
            || it.run != run
            || it.stopped
            || self.is_cut(client, server)
        {
            return self.push(self.now + 50, Event::Dial { client, server });
        }
        self.connect(client, server, sent_local);
        let wire = &mut self.wires[client][server];
        (wire.there, wire.back) = (Tail::default(), Tail::default());
        self.log.note(self.now, &[8, client as u64, server as u64], || {
            format!("client {client} connected to server {server}")
        });
    }

    pub(super) fn is_cut(&self, client: usize, server: usize) -> bool {
        let wire = &self.wires[client][server];
        self.now < wire.cut_there.max(wire.cut_back)
    }
}

fn code(answer: &Answer) -> u64 {
    match answer {
        Ok(Reply::Granted { counter }) => counter.map_or(1, |counter| counter.get()),
        Ok(Reply::Held { remaining, .. }) => remaining.map_or(2, |left| left.as_millis() as u64 * 16 + 3),
        Ok(Reply::Raised { counter }) => counter.get(),
        Ok(Reply::Extended) => 4,
        Ok(Reply::Released { .. }) => 5,
        Ok(Reply::Missing) => 6,
        Ok(Reply::Foreign) => 7,
        Ok(Reply::Announced) => 9,
        Ok(_) => 10,
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
        Action::Extend { ttl, .. } => format!("extend {ttl:?}"),
        Action::Release { counter, .. } => format!("release {counter:?}"),
        Action::Mark { set } => format!("mark {set:?}"),
        Action::Announce(_) => "wait".to_owned(),
    };
    format!("{what} {}", call.request.key)
}
