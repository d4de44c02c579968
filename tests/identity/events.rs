//! Steps from outside: time and faults.
//!
//! Time is only an order: "P is over" is possible only after everything that takes no longer than P.

use crate::rules::Omitted;
use crate::state::{Client, Faults, Guard, Id, KnownNode, Memory, Phase, Set, Standing, State};
use crate::step::Step;
use crate::world::World;

impl World {
    pub(crate) fn time_steps(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        for id in (0..state.memories.len()).filter(|id| state.memories[*id].alive) {
            match state.memories[id].guard {
                Guard::First if self.old_users_have_left(state, id) => {
                    steps.push((Step::FirstPartOver { id }, self.first_part_over(state, id)));
                }
                Guard::Second if !older_work(state, id) => {
                    let mut next = state.clone();
                    next.memories[id].guard = Guard::Over;
                    steps.push((Step::GuardOver { id }, next));
                }
                _ => {}
            }
            for number in 0..state.clients.len() {
                self.registration_steps(state, number, id, steps);
            }
        }
    }

    /// Returns whether every client that runs and is led to the node has left the older memory, which takes P at most.
    fn old_users_have_left(&self, state: &State, id: Id) -> bool {
        self.omits(Omitted::GuardForOldUsers)
            || (0..state.clients.len()).all(|number| self.has_looked(state, number, id))
    }

    fn first_part_over(&self, state: &State, id: Id) -> State {
        let mut next = state.clone();
        next.memories[id].guard = Guard::Second;
        for client in &mut next.clients {
            if client.holds() {
                client.confirmed_before = client.confirmed_before.with(id);
            }
            if matches!(client.phase, Phase::Acquiring | Phase::Renewing) {
                client.begun_before = client.begun_before.with(id);
            }
            if client.paused && !self.omits(Omitted::LooksEnd) {
                look_ends(client);
            }
        }
        next
    }

    fn registration_steps(&self, state: &State, number: usize, id: Id, steps: &mut Vec<(Step, State)>) {
        let client = &state.clients[number];
        let address = usize::from(state.memories[id].address);
        let known_node = &client.known_nodes[address];
        let is_connected = known_node.connected == Some(id);
        let has_to_stand = !self.omits(Omitted::Settling) && !self.is_complete(state, number);
        if has_to_stand
            && is_connected
            && known_node.standing == Standing::Registered
            && self.all_have_looked(state, number, id)
        {
            let mut next = state.clone();
            next.clients[number].known_nodes[address].standing = Standing::Stood;
            steps.push((Step::RegistrationStood { client: number, id }, next));
        }
        let refreshes = is_connected && !client.paused && (!known_node.conflict || client.holds());
        // A registration outlives every lease that was confirmed before its last refresh.
        let leases_are_over = !client.paused || client.phase == Phase::Idle;
        if state.memories[id].registrations[number].is_some() && !refreshes && leases_are_over {
            let mut next = state.clone();
            next.memories[id].registrations[number] = None;
            if is_connected && !self.omits(Omitted::LooksEnd) {
                look_ends(&mut next.clients[number]);
            }
            steps.push((Step::RegistrationEnds { client: number, id }, next));
        }
    }

    fn all_have_looked(&self, state: &State, number: usize, id: Id) -> bool {
        let mut others = (0..state.clients.len()).filter(|other| *other != number);
        others.all(|other| self.has_looked(state, other, id))
    }

    /// Returns whether a client that runs and is led to the node has connected and looked, which takes P at most.
    fn has_looked(&self, state: &State, number: usize, id: Id) -> bool {
        let address = usize::from(state.memories[id].address);
        let client = &state.clients[number];
        let known_node = &client.known_nodes[address];
        let runs = !client.paused
            && client
                .known_nodes
                .iter()
                .any(|known_node| known_node.known.is_some());
        let is_led = self.lists[number].has(address) && self.resolve(state, number, address) == id;
        // A client that is led elsewhere leaves within P.
        if runs && !is_led && known_node.connected == Some(id) && !self.lied_to.has(number) {
            return false;
        }
        if !runs || !is_led || client.cut.has(address) {
            // Without a connection, no older memory is used either.
            return true;
        }
        let looked = known_node.registered || known_node.conflict || self.omits(Omitted::Registration);
        known_node.connected == Some(id) && known_node.known == Some(id) && looked
    }

    pub(crate) fn fault_steps(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let left = state.faults;
        for address in self.frail.union(state.down).iter() {
            if state.down.has(address) {
                let mut next = state.clone();
                next.down = next.down.without(address);
                steps.push((Step::ComeUp { address }, next));
                continue;
            }
            if left.lost > 0 {
                let step = Step::Lose { address };
                steps.push((step, self.memory_lost(state, address)));
            }
            if left.moved > 0 {
                let mut next = self.began(state, address);
                next.faults = Faults {
                    moved: left.moved - 1,
                    ..left
                };
                steps.push((Step::Move { address }, next));
            }
            if left.led_back > 0 {
                for id in self.older_servers(state, address) {
                    let mut next = state.clone();
                    next.at[address] = id;
                    next.faults = Faults {
                        led_back: left.led_back - 1,
                        ..left
                    };
                    steps.push((Step::LeadBack { address, id }, next));
                }
            }
            if left.restarted > 0 {
                let mut next = state.clone();
                next.faults = Faults {
                    restarted: left.restarted - 1,
                    ..left
                };
                for client in &mut next.clients {
                    if client.known_nodes[address].connected == Some(state.at[address]) {
                        disconnect(&mut client.known_nodes[address]);
                    }
                }
                steps.push((Step::Restart { address }, next));
            }
        }
        for number in 0..state.clients.len() {
            self.client_faults(state, number, steps);
        }
    }

    fn client_faults(&self, state: &State, client: usize, steps: &mut Vec<(Step, State)>) {
        let left = state.faults;
        let mut next = state.clone();
        if state.clients[client].paused {
            next.clients[client].paused = false;
            steps.push((Step::Resume { client }, next));
        } else if left.paused > 0 {
            next.clients[client].paused = true;
            next.faults = Faults {
                paused: left.paused - 1,
                ..left
            };
            steps.push((Step::Pause { client }, next));
        }
        for address in self.lists[client].iter() {
            let is_cut = state.clients[client].cut.has(address);
            let mut next = state.clone();
            if is_cut && !self.unreachable[client].has(address) {
                next.clients[client].cut = state.clients[client].cut.without(address);
                steps.push((Step::Mend { client, address }, next));
            } else if !is_cut && left.cut > 0 && self.frail.has(address) {
                next.clients[client].cut = state.clients[client].cut.with(address);
                next.faults = Faults {
                    cut: left.cut - 1,
                    ..left
                };
                disconnect(&mut next.clients[client].known_nodes[address]);
                steps.push((Step::Cut { client, address }, next));
            }
        }
    }

    fn older_servers(&self, state: &State, address: usize) -> impl Iterator<Item = Id> {
        let memories = state.memories.iter().enumerate().take(state.at[address]);
        let older =
            memories.filter(move |(_, memory)| memory.alive && usize::from(memory.address) == address);
        Vec::from_iter(older.map(|(id, _)| id)).into_iter()
    }

    /// Begins another memory behind the address. Connections to the old one stay.
    fn began(&self, state: &State, address: usize) -> State {
        let mut next = state.clone();
        let guard = if self.omits(Omitted::Guard) {
            Guard::Over
        } else {
            Guard::First
        };
        next.at[address] = next.memories.len();
        next.memories.push(Memory::new(address, guard));
        next
    }

    fn memory_lost(&self, state: &State, address: usize) -> State {
        let mut next = self.begun_anew(state, address);
        next.faults.lost -= 1;
        next
    }

    /// Replaces the memory of the server behind the address.
    pub(crate) fn begun_anew(&self, state: &State, address: usize) -> State {
        let old = state.at[address];
        let mut next = self.began(state, address);
        next.memories[old].die();
        for client in &mut next.clients {
            let known_node = &mut client.known_nodes[address];
            if known_node.connected == Some(old) {
                disconnect(known_node);
                known_node.connected = Some(next.at[address]);
            }
        }
        next
    }
}

fn disconnect(known_node: &mut KnownNode) {
    known_node.connected = None;
    known_node.admitted = false;
    known_node.registered = false;
    known_node.standing = Standing::None;
}

/// By the client's clock, its last look was P ago: nothing counts until it looks again.
fn look_ends(client: &mut Client) {
    client.settled = false;
    for known_node in &mut client.known_nodes {
        known_node.admitted = false;
        known_node.registered = false;
        known_node.standing = Standing::None;
    }
}

/// Returns whether a lease or attempt from before the end of the first P is left. At the end of the guard, it is older than W.
fn older_work(state: &State, id: Id) -> bool {
    let older = |set: Set| set.has(id);
    let is_older = |client: &Client| older(client.confirmed_before) || older(client.begun_before);
    state.clients.iter().any(is_older)
}
