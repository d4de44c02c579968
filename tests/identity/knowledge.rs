//! How clients learn: they connect, resolve names again, and look at registrations.

use crate::judge::{Judgement, judge};
use crate::rules::Omitted;
use crate::state::{Client, Guard, Id, KnownNode, Set, Standing, State};
use crate::step::Step;
use crate::world::World;

impl World {
    pub(crate) fn knowledge_steps(&self, state: &State, number: usize, steps: &mut Vec<(Step, State)>) {
        let client = &state.clients[number];
        if client.paused {
            return;
        }
        if client
            .known_nodes
            .iter()
            .all(|known_node| known_node.known.is_none())
        {
            steps.push((Step::Start { client: number }, self.started(state, number)));
            return;
        }
        for address in self.lists[number].iter() {
            let known_node = &client.known_nodes[address];
            let named = self.resolve(state, number, address);
            match known_node.connected {
                None if !client.cut.has(address) && !state.down.has(address) => {
                    let step = Step::Connect {
                        client: number,
                        id: named,
                    };
                    steps.push((step, self.connected(state, number, address, named)));
                }
                Some(id) if known_node.known != Some(id) => {
                    let step = Step::Learn { client: number, id };
                    steps.push((step, self.connected(state, number, address, id)));
                }
                Some(id) if named != id && !self.lied_to.has(number) => {
                    let step = Step::Follow {
                        client: number,
                        id: named,
                    };
                    steps.push((step, self.connected(state, number, address, named)));
                }
                Some(id) if !self.omits(Omitted::Registration) => {
                    let (step, mut next) = self.look(state, number, address, id);
                    if self.looks_at_once {
                        next = self.look_at_others(next, number, address);
                    }
                    steps.push((step, next));
                }
                _ => {}
            }
            let is_over = known_node
                .known
                .is_none_or(|id| !others_registered(state, number, id));
            if known_node.connected.is_none()
                && (known_node.conflict || known_node.doubted != Set::EMPTY)
                && is_over
            {
                let mut next = state.clone();
                let known_node = &mut next.clients[number].known_nodes[address];
                known_node.conflict = false;
                known_node.doubted = Set::EMPTY;
                steps.push((
                    Step::Forget {
                        client: number,
                        address,
                    },
                    next,
                ));
            }
        }
    }

    /// Connects a client to every node that it reaches.
    fn started(&self, state: &State, number: usize) -> State {
        let cut = state.clients[number].cut.union(state.down);
        let reached = self.lists[number].iter().filter(|address| !cut.has(*address));
        reached.fold(state.clone(), |state, address| {
            let named = self.resolve(&state, number, address);
            self.connected(&state, number, address, named)
        })
    }

    /// Connects a client to a memory, and reads the id.
    ///
    /// If it has used a newer memory at this address, that one may have granted locks: the older one begins anew.
    fn connected(&self, state: &State, number: usize, address: usize, id: Id) -> State {
        let is_older = state.clients[number].known_nodes[address]
            .known
            .is_some_and(|known| id < known);
        if is_older && state.memories[id].guard != Guard::First && !self.omits(Omitted::NewerUsed) {
            let next = self.begun_anew(state, address);
            let id = next.at[address];
            return self.connected(&next, number, address, id);
        }
        let mut next = state.clone();
        let client = &mut next.clients[number];
        if client.known_nodes[address].known != Some(id) {
            client.known_nodes[address] = KnownNode {
                vote: client.known_nodes[address]
                    .vote
                    .filter(|_| self.omits(Omitted::StaleVotes)),
                held: client.known_nodes[address].held,
                known: Some(id),
                ..KnownNode::default()
            };
            // The view has changed, and must be registered again everywhere.
            for known_node in &mut client.known_nodes {
                known_node.registered = false;
                known_node.doubted = known_node.doubted.without(address);
            }
        }
        let known_node = &mut client.known_nodes[address];
        known_node.connected = Some(id);
        known_node.admitted = self.omits(Omitted::Registration) || self.omits(Omitted::Admission);
        next
    }

    /// Looks at a node's registrations. Registers the client unless one conflicts; a holder in any case.
    fn look(&self, state: &State, number: usize, address: usize, id: Id) -> (Step, State) {
        let mut next = state.clone();
        let client = &mut next.clients[number];
        let mine = self.view(client, number);
        let (conflict, doubted) = self.judge_all(state, number, id, mine);
        let known_node = &mut client.known_nodes[address];
        known_node.conflict = conflict;
        known_node.doubted = doubted;
        if !conflict || client.holds() && !self.omits(Omitted::HoldersRegister) {
            let memory = &mut next.memories[id];
            let before = memory.registrations[number].replace(mine);
            if before != Some(mine) && !self.omits(Omitted::OldViewStays) {
                memory.previous[number] = memory.previous[number].or(before);
            }
        }
        if !conflict {
            let known_node = &mut client.known_nodes[address];
            known_node.registered = true;
            known_node.standing = match known_node.standing {
                Standing::None | Standing::Registered => Standing::Registered,
                Standing::Stood | Standing::Confirmed => Standing::Confirmed,
            };
            if self.has_resolved(state, number) {
                admit(client);
            }
        }
        if self.is_complete(&next, number) || all_confirmed(&next.clients[number]) {
            next.clients[number].settled = true;
        }
        (
            Step::Look {
                client: number,
                id,
                conflict,
            },
            next,
        )
    }

    /// Returns whether each connection leads to where its name leads. Otherwise, no look is complete.
    fn has_resolved(&self, state: &State, number: usize) -> bool {
        self.lists[number].iter().all(|address| {
            let connected = state.clients[number].known_nodes[address].connected;
            connected.is_none_or(|id| id == self.resolve(state, number, address))
        })
    }

    fn look_at_others(&self, state: State, number: usize, first: usize) -> State {
        let others = self.lists[number].iter().filter(|address| *address != first);
        others.fold(state, |state, address| {
            let known_node = state.clients[number].known_nodes[address];
            match known_node.connected.filter(|id| known_node.known == Some(*id)) {
                Some(id) => self.look(&state, number, address, id).1,
                None => state,
            }
        })
    }

    fn judge_all(&self, state: &State, number: usize, id: Id, mine: crate::state::View) -> (bool, Set) {
        let mut conflict = false;
        let mut all = Set::EMPTY;
        let memory = &state.memories[id];
        let current = memory.registrations.iter().enumerate();
        for (other, view) in current.chain(memory.previous.iter().enumerate()) {
            match view.filter(|_| other != number).map(|theirs| judge(mine, theirs)) {
                Some(Judgement::Conflict) => conflict |= !self.omits(Omitted::Conflict),
                Some(Judgement::Agree { doubted }) => all = all.union(doubted),
                None => {}
            }
        }
        (conflict, all)
    }
}

/// Lets the ids of the view count, once it is registered on all connected nodes.
fn admit(client: &mut Client) {
    let everywhere = client
        .known_nodes
        .iter()
        .all(|known_node| known_node.connected.is_none() || known_node.registered);
    if everywhere && !client.in_conflict() {
        for known_node in client
            .known_nodes
            .iter_mut()
            .filter(|known_node| known_node.connected.is_some())
        {
            known_node.admitted = true;
        }
    }
}

fn all_confirmed(client: &Client) -> bool {
    let mut connected = client
        .known_nodes
        .iter()
        .filter(|known_node| known_node.connected.is_some());
    connected.all(|known_node| known_node.standing == Standing::Confirmed)
}

fn others_registered(state: &State, number: usize, id: Id) -> bool {
    let registrations = state.memories[id].registrations.iter().enumerate();
    registrations
        .into_iter()
        .any(|(other, view)| other != number && view.is_some())
}
