//! Announcements (W2), over connections of their own. Nothing may depend on them, so some get lost.

use std::sync::Arc;

use quorlock::simulation::lock_script::Announcement;

use super::World;
use super::event::Event;
use crate::plan::Profile;
use crate::server::Subscription;

/// With a bad network, one announcement in so many is lost silently.
const LOST: u8 = 8;

impl World {
    pub(super) fn subscribe(&mut self, client: usize, now: u64, server: usize, id: u64) {
        let latency = self.plan.latencies[client][server].draw(&mut self.rng);
        self.push(now + latency, Event::Subscribe(client, server, id));
    }

    pub(super) fn subscribed(&mut self, client: usize, server: usize, id: u64) {
        let Some((key, _)) = self.clients[client].connections.listener(server, id) else {
            return;
        };
        let it = &mut self.servers[server];
        if !it.up || it.stopped || self.now < self.wires[client][server].cut_there {
            let wait = self.rng.u64(50..=500);
            return self.push(self.now + wait, Event::Subscribe(client, server, id));
        }
        let subscription = Subscription { client, key, id };
        if !it.subscriptions.contains(&subscription) {
            it.subscriptions.push(subscription);
        }
        self.tell(client, server, Event::Subscribed(client, server, id));
    }

    /// Ends a client's connection for announcements. The client notices later.
    pub(super) fn disconnect_listeners(&mut self, client: usize, server: usize) {
        self.servers[server]
            .subscriptions
            .retain(|subscription| subscription.client != client);
        self.tell(client, server, Event::ListenersLost(client, server));
    }

    pub(super) fn announce(&mut self, server: usize, key: &Arc<str>, announcement: Announcement) {
        let subscriptions: Vec<Subscription> = self.servers[server].listeners(key).cloned().collect();
        let lossy = matches!(self.plan.profile, Profile::Network | Profile::Everything);
        for subscription in subscriptions {
            self.tally("announced");
            if lossy && self.rng.u8(..LOST) == 0 {
                self.tally("announcement lost");
                continue;
            }
            let event = Event::Announced(subscription.client, server, subscription.id, announcement);
            self.tell(subscription.client, server, event);
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
            Event::Subscribed(client, server, id) => {
                // The connection may have ended meanwhile.
                let is_subscribed = self.servers[server]
                    .subscriptions
                    .iter()
                    .any(|subscription| (subscription.client, subscription.id) == (client, id));
                if let Some((_, listener)) = self.clients[client]
                    .connections
                    .listener(server, id)
                    .filter(|_| is_subscribed)
                {
                    self.clients[client].inside(|_| listener.subscribed());
                }
            }
            Event::ListenersLost(client, server) => {
                for id in self.clients[client].inside(|connections| connections.disconnect_listeners(server))
                {
                    self.subscribe(client, self.now, server, id);
                }
            }
            Event::Announced(client, server, id, announcement) => {
                self.clients[client].inside(|connections| connections.announced(server, id, announcement));
            }
            _ => {}
        }
    }
}
