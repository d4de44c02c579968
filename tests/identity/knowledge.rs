//! How clients learn: they connect, resolve names again, and look at registrations.

use crate::judge::{Judgement, judge};
use crate::rules::Omitted;
use crate::state::{Client, Guard, Id, Seat, Set, Standing, State};
use crate::step::Step;
use crate::world::World;

impl World {
    pub(crate) fn knowledge_steps(&self, state: &State, number: usize, steps: &mut Vec<(Step, State)>) {
        let client = &state.clients[number];
        if client.paused {
            return;
        }
        if client.seats.iter().all(|seat| seat.known.is_none()) {
            steps.push((Step::Start { client: number }, self.started(state, number)));
            return;
        }
        for address in self.lists[number].iter() {
            let seat = &client.seats[address];
            let named = self.resolve(state, number, address);
            match seat.connected {
                None if !client.cut.has(address) && !state.down.has(address) => {
                    let step = Step::Connect {
                        client: number,
                        id: named,
                    };
                    steps.push((step, self.connected(state, number, address, named)));
                }
                Some(id) if seat.known != Some(id) => {
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
            let is_over = seat.known.is_none_or(|id| !others_registered(state, number, id));
            if seat.connected.is_none() && (seat.conflict || seat.doubted != Set::EMPTY) && is_over {
                let mut next = state.clone();
                let seat = &mut next.clients[number].seats[address];
                seat.conflict = false;
                seat.doubted = Set::EMPTY;
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
        let is_older = state.clients[number].seats[address]
            .known
            .is_some_and(|known| id < known);
        if is_older && state.memories[id].guard != Guard::First && !self.omits(Omitted::NewerUsed) {
            let next = self.begun_anew(state, address);
            let id = next.at[address];
            return self.connected(&next, number, address, id);
        }
        let mut next = state.clone();
        let client = &mut next.clients[number];
        if client.seats[address].known != Some(id) {
            client.seats[address] = Seat {
                vote: client.seats[address]
                    .vote
                    .filter(|_| self.omits(Omitted::StaleVotes)),
                held: client.seats[address].held,
                known: Some(id),
                ..Seat::default()
            };
            // The view has changed, and must be registered again everywhere.
            for seat in &mut client.seats {
                seat.registered = false;
                seat.doubted = seat.doubted.without(address);
            }
        }
        let seat = &mut client.seats[address];
        seat.connected = Some(id);
        seat.admitted = self.omits(Omitted::Registration) || self.omits(Omitted::Admission);
        next
    }

    /// Looks at a node's registrations. Registers the client unless one conflicts; a holder in any case.
    fn look(&self, state: &State, number: usize, address: usize, id: Id) -> (Step, State) {
        let mut next = state.clone();
        let client = &mut next.clients[number];
        let mine = self.view(client, number);
        let (conflict, doubted) = self.judge_all(state, number, id, mine);
        let seat = &mut client.seats[address];
        seat.conflict = conflict;
        seat.doubted = doubted;
        if !conflict || client.holds() && !self.omits(Omitted::HoldersRegister) {
            let memory = &mut next.memories[id];
            let before = memory.registrations[number].replace(mine);
            if before != Some(mine) && !self.omits(Omitted::OldViewStays) {
                memory.previous[number] = memory.previous[number].or(before);
            }
        }
        if !conflict {
            let seat = &mut client.seats[address];
            seat.registered = true;
            seat.standing = match seat.standing {
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
            let connected = state.clients[number].seats[address].connected;
            connected.is_none_or(|id| id == self.resolve(state, number, address))
        })
    }

    fn look_at_others(&self, state: State, number: usize, first: usize) -> State {
        let others = self.lists[number].iter().filter(|address| *address != first);
        others.fold(state, |state, address| {
            let seat = state.clients[number].seats[address];
            match seat.connected.filter(|id| seat.known == Some(*id)) {
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
        .seats
        .iter()
        .all(|seat| seat.connected.is_none() || seat.registered);
    if everywhere && !client.in_conflict() {
        for seat in client.seats.iter_mut().filter(|seat| seat.connected.is_some()) {
            seat.admitted = true;
        }
    }
}

fn all_confirmed(client: &Client) -> bool {
    let mut connected = client.seats.iter().filter(|seat| seat.connected.is_some());
    connected.all(|seat| seat.standing == Standing::Confirmed)
}

fn others_registered(state: &State, number: usize, id: Id) -> bool {
    let registrations = state.memories[id].registrations.iter().enumerate();
    registrations
        .into_iter()
        .any(|(other, view)| other != number && view.is_some())
}
