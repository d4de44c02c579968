//! The memories that clients see: a client reads a node's record when it connects, and with each look (M1, M3).

use super::World;
use super::event::Event;
use crate::memory::Finding;

impl World {
    pub(super) fn connect(&mut self, client: usize, server: usize, sent_local: i64) {
        let random = self.rng.u128(..);
        let (probe, made) = self.servers[server].identify(self.now, client, sent_local, random, &self.plan);
        if let Some(made) = made {
            self.last_record = self.now;
            self.tally(match made {
                Finding::New => "memory began",
                _ => "memory resumed",
            });
            self.log.note(self.now, &[11, server as u64], || {
                format!("server {server} is made {:?}, {made:?}", probe.id)
            });
        }
        self.clients[client].inside(|connections| connections.connected(server, &probe));
    }

    /// Schedules the next look: two to four in each look period.
    pub(super) fn look_again(&mut self, client: usize, server: usize) {
        let period = self.plan.look_period().as_millis() as u64;
        let wait = self.rng.u64(period / 4..=period / 2);
        self.push(self.now + wait, Event::Look { client, server });
    }

    pub(super) fn look(&mut self, client: usize, server: usize) {
        if self.clients[client].frozen.is_some() {
            return self.push(self.now + 20, Event::Look { client, server });
        }
        let connections = &self.clients[client].connections;
        let looks = Event::Looks {
            client,
            server,
            connection: connections.connection(server),
            taken_for: connections.memory(server),
            sent_local: self.clients[client].inside(|connections| connections.local()),
        };
        let latency = self.plan.latencies[client][server].draw(&mut self.rng);
        self.push(self.now + latency, looks);
        self.look_again(client, server);
    }

    /// Executes a look. If the server cannot be reached, the client waits for the next one.
    pub(super) fn looks(&mut self, client: usize, event: Event) {
        let Event::Looks {
            server,
            connection,
            taken_for: Some((id, run)),
            sent_local,
            ..
        } = event
        else {
            return;
        };
        let it = &mut self.servers[server];
        let is_reached = it.up && it.run == run && !it.stopped;
        if !is_reached || self.now < self.wires[client][server].cut_there {
            return;
        }
        let found = it.look(self.now, client, id, &self.plan);
        let latency = self.plan.latencies[client][server].draw(&mut self.rng);
        let looked = Event::Looked {
            client,
            server,
            connection,
            found,
            sent_local,
        };
        self.push(self.now + latency, looked);
    }
}
