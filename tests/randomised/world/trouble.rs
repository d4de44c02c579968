//! The faults.

use super::World;
use super::event::Event;
use crate::plan::Trouble;

impl World {
    pub(super) fn trouble(&mut self, trouble: Trouble) {
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
                    self.disconnect_listeners(client, server);
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
                let connection = self.clients[client].connections.connection(server);
                // Requests in flight arrive, or are lost.
                if self.rng.bool() {
                    self.wires[client][server].reset_before = connection + 1;
                }
                self.break_off(client, server);
                if self.rng.bool() {
                    self.disconnect_listeners(client, server);
                }
            }
            Trouble::Flush { server } => {
                if self.servers[server].up {
                    self.servers[server].flush();
                    self.tally("flushed");
                }
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

    /// Breaks a connection. The client notices later.
    pub(super) fn break_off(&mut self, client: usize, server: usize) {
        let (latency, tie) = (
            self.plan.latencies[client][server].draw(&mut self.rng),
            self.rng.u32(..),
        );
        let connection = self.clients[client].connections.connection(server);
        let lost = Event::Lost {
            client,
            server,
            connection,
        };
        let tail = &mut self.wires[client][server].back;
        self.heap.push_behind(client, tail, self.now + latency, tie, lost);
    }

    /// Delivers what a cut has held up, before anything later.
    pub(super) fn mend(&mut self, client: usize, server: usize) {
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
}
