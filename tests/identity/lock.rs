//! Steps of the lock: grants, renewals, heals, and their ends.
//!
//! There is no clock: a lease, or an attempt's leftovers, may end at any time. A vote counts at once, because a later reply would
//! have the same effect. A lost message is a step that is not taken.

use crate::rules::Omitted;
use crate::state::{Client, Guard, Id, KnownNode, Memory, Phase, Set, Standing, State};
use crate::step::Step;
use crate::world::World;

impl World {
    pub(crate) fn lock_steps(&self, state: &State, number: usize, steps: &mut Vec<(Step, State)>) {
        let client = &state.clients[number];
        if client.phase != Phase::Idle {
            let mut next = state.clone();
            next.end(number);
            steps.push((Step::End { client: number }, next));
        }
        if client.phase == Phase::Renewing {
            let mut next = state.clone();
            let renewing = &mut next.clients[number];
            renewing.phase = Phase::Holding;
            renewing.begun_before = Set::EMPTY;
            renewing
                .known_nodes
                .iter_mut()
                .for_each(|known_node| known_node.vote = None);
            steps.push((Step::AbandonRenewal { client: number }, next));
        }
        self.lapses(state, number, steps);
        if client.paused {
            return;
        }
        for address in self.lists[number].iter() {
            let known_node = &client.known_nodes[address];
            let Some(id) = known_node.connected else { continue };
            let memory = &state.memories[id];
            let is_free = memory.key.is_none();
            let is_ours = memory.key == Some(number as u8);
            let asks_for_votes = !client.holds() && known_node.vote.is_none();
            if asks_for_votes && is_free && self.grant_counts(state, number, address, memory) {
                let step = Step::Grant { client: number, id };
                steps.push((step, self.voted(state, number, address, id, Phase::Acquiring)));
            }
            let renews = client.holds() && known_node.vote.is_none();
            if renews && is_ours && self.extension_counts(client, address, memory) {
                let step = Step::Extend { client: number, id };
                steps.push((step, self.voted(state, number, address, id, Phase::Renewing)));
            }
            if client.holds() && is_free && known_node.known == Some(id) {
                let mut next = state.clone();
                next.memories[id].key = Some(number as u8);
                steps.push((Step::Heal { client: number, id }, next));
            }
        }
    }

    /// Lets keys expire before their lease, on nodes that did not take part in its last confirmation.
    fn lapses(&self, state: &State, number: usize, steps: &mut Vec<(Step, State)>) {
        for (id, memory) in state.memories.iter().enumerate() {
            let client = &state.clients[number];
            let known_node = &client.known_nodes[usize::from(memory.address)];
            let counted = known_node.held == Some(id) || known_node.vote == Some(id);
            if memory.key == Some(number as u8) && client.holds() && !counted {
                let mut next = state.clone();
                next.memories[id].key = None;
                steps.push((Step::Lapse { id }, next));
            }
        }
    }

    fn grant_counts(&self, state: &State, number: usize, address: usize, memory: &Memory) -> bool {
        if memory.guard != Guard::Over {
            return false;
        }
        let client = &state.clients[number];
        let known_node = &client.known_nodes[address];
        if self.omits(Omitted::IdInGrants) {
            return true;
        }
        self.id_counts(known_node)
            && !client.in_conflict()
            && (self.omits(Omitted::Doubt) || !client.doubts(address))
            && self.has_settled(state, number, known_node)
    }

    fn extension_counts(&self, client: &Client, address: usize, memory: &Memory) -> bool {
        if memory.guard == Guard::First && !self.omits(Omitted::FirstPart) {
            return false;
        }
        if self.omits(Omitted::IdInRenewals) {
            return true;
        }
        let ignores_doubt = self.omits(Omitted::Doubt) || self.omits(Omitted::DoubtInRenewals);
        self.id_counts(&client.known_nodes[address]) && (ignores_doubt || !client.doubts(address))
    }

    fn id_counts(&self, known_node: &KnownNode) -> bool {
        known_node.known == known_node.connected && known_node.admitted
    }

    /// Returns whether the node counts for new locks. A client that is not registered on all its nodes must have been registered
    /// there for P.
    fn has_settled(&self, state: &State, number: usize, known_node: &KnownNode) -> bool {
        let settled = || state.clients[number].settled;
        let stood = || self.is_complete(state, number) || known_node.standing == Standing::Confirmed;
        self.omits(Omitted::Settling) || self.omits(Omitted::Registration) || settled() && stood()
    }

    /// Returns whether the client is registered on all its nodes, none of which began within P.
    pub(crate) fn is_complete(&self, state: &State, number: usize) -> bool {
        self.lists[number].iter().all(|address| {
            let known_node = &state.clients[number].known_nodes[address];
            let is_young = |id: Id| state.memories[id].guard == Guard::First;
            known_node.registered && !known_node.connected.is_some_and(is_young)
        })
    }

    /// Counts a vote. A quorum of votes confirms the lease.
    fn voted(&self, state: &State, number: usize, address: usize, id: Id, phase: Phase) -> State {
        let mut next = state.clone();
        next.memories[id].key = Some(number as u8);
        let client = &mut next.clients[number];
        client.phase = phase;
        client.known_nodes[address].vote = Some(id);
        if client.votes() >= self.quorum(number) {
            client.phase = Phase::Holding;
            client.confirmed_before = client.begun_before;
            client.begun_before = Set::EMPTY;
            for known_node in &mut client.known_nodes {
                known_node.held = known_node.vote.take();
            }
        }
        next
    }
}
