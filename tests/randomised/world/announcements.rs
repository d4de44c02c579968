//! Announcements (W2), over connections of their own. Nothing may depend on them, so some get lost.

use std::sync::Arc;

use quorlock::simulation::lock_script::Announcement;

use super::World;
use super::event::Event;
use crate::plan::Profile;
use crate::server::Ear;

/// With a bad network, one announcement in so many is lost silently.
const LOST: u8 = 8;

impl World {
    pub(super) fn subscribe(&mut self, client: usize, now: u64, server: usize, id: u64) {
        let latency = self.plan.latencies[client][server].draw(&mut self.rng);
        self.push(now + latency, Event::Subscribe(client, server, id));
    }

    pub(super) fn subscribed(&mut self, client: usize, server: usize, id: u64) {
        let Some((key, _)) = self.clients[client].desk.listener(server, id) else {
            return;
        };
        let it = &mut self.servers[server];
        if !it.up || it.stopped || self.now < self.wires[client][server].cut_there {
            let wait = self.rng.u64(50..=500);
            return self.push(self.now + wait, Event::Subscribe(client, server, id));
        }
        let ear = Ear { client, key, id };
        if !it.audience.contains(&ear) {
            it.audience.push(ear);
        }
        self.tell(client, server, Event::Hears(client, server, id));
    }

    /// Ends a client's connection for announcements. The client notices later.
    pub(super) fn deafen(&mut self, client: usize, server: usize) {
        self.servers[server].audience.retain(|ear| ear.client != client);
        self.tell(client, server, Event::Deaf(client, server));
    }

    pub(super) fn announce(&mut self, server: usize, key: &Arc<str>, announcement: Announcement) {
        let ears: Vec<Ear> = self.servers[server].listeners(key).cloned().collect();
        let lossy = matches!(self.plan.profile, Profile::Network | Profile::Everything);
        for ear in ears {
            self.tally("announced");
            if lossy && self.rng.u8(..LOST) == 0 {
                self.tally("announcement lost");
                continue;
            }
            let event = Event::Announced(ear.client, server, ear.id, announcement);
            self.tell(ear.client, server, event);
        }
    }

    /// Sends an event to a client. It may overtake earlier ones.
    fn tell(&mut self, client: usize, server: usize, event: Event) {
        let latency = self.plan.latencies[client][server].draw(&mut self.rng);
        self.push(self.now + latency, event);
    }

    /// Delivers an event to a client.
    pub(super) fn hear(&mut self, event: Event) {
        match event {
            Event::Hears(client, server, id) => {
                // The connection may have ended meanwhile.
                let is_told = self.servers[server]
                    .audience
                    .iter()
                    .any(|ear| (ear.client, ear.id) == (client, id));
                if let Some((_, listener)) =
                    self.clients[client].desk.listener(server, id).filter(|_| is_told)
                {
                    self.clients[client].inside(|_| listener.listening());
                }
            }
            Event::Deaf(client, server) => {
                for id in self.clients[client].inside(|desk| desk.deaf(server)) {
                    self.subscribe(client, self.now, server, id);
                }
            }
            Event::Announced(client, server, id, announcement) => {
                self.clients[client].inside(|desk| desk.announced(server, id, announcement));
            }
            _ => {}
        }
    }
}
