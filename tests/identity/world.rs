//! A world: clients, their lists, and the faults that may happen.

use crate::rules::Omitted;
use crate::state::{ADDRESSES, Client, Faults, Guard, Id, Memory, Place, Set, Standing, State, View};

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) omitted: Vec<Omitted>,
    pub(crate) lists: Vec<Set>,
    /// The clients run already, and are registered everywhere. Otherwise, they start at any time.
    pub(crate) running: bool,
    /// Clients whose resolver names the old server as long as that lives.
    pub(crate) lied_to: Set,
    /// The addresses that each client never reaches.
    pub(crate) unreachable: Vec<Set>,
    /// Addresses that are down at first, and come up for all clients at once.
    pub(crate) late: Set,
    pub(crate) faults: Faults,
    /// Addresses whose nodes and links may fail.
    pub(crate) frail: Set,
    /// A client looks at all nodes in one step, which leaves fewer interleavings.
    pub(crate) looks_at_once: bool,
    /// Runs only with `make model`.
    pub(crate) is_larger: bool,
}

impl World {
    pub(crate) fn new(name: &'static str, lists: &[&[usize]]) -> World {
        World {
            name,
            omitted: Vec::new(),
            lists: lists.iter().map(|list| Set::of(list)).collect(),
            running: false,
            lied_to: Set::EMPTY,
            unreachable: vec![Set::EMPTY; lists.len()],
            late: Set::EMPTY,
            faults: Faults::default(),
            frail: Set::EMPTY,
            looks_at_once: true,
            is_larger: false,
        }
    }

    pub(crate) fn without(mut self, omitted: Omitted) -> World {
        self.omitted.push(omitted);
        self
    }

    pub(crate) fn omits(&self, rule: Omitted) -> bool {
        self.omitted.contains(&rule)
    }

    pub(crate) fn start(&self) -> State {
        let addresses = self.lists.iter().fold(Set::EMPTY, |all, list| all.union(*list));
        let highest = addresses.iter().max().unwrap_or(0);
        let mut state = State {
            memories: (0..=highest)
                .map(|address| Memory::new(address, Guard::Over))
                .collect(),
            clients: vec![Client::default(); self.lists.len()],
            at: std::array::from_fn(|address| address),
            faults: self.faults,
            down: self.late,
        };
        for (client, unreachable) in state.clients.iter_mut().zip(&self.unreachable) {
            client.cut = *unreachable;
        }
        if self.running {
            self.connect_all(&mut state);
        }
        state
    }

    fn connect_all(&self, state: &mut State) {
        for number in 0..self.lists.len() {
            let client = &mut state.clients[number];
            client.settled = true;
            for address in self.lists[number]
                .iter()
                .filter(|address| !client.cut.has(*address))
            {
                let known_node = &mut client.known_nodes[address];
                known_node.connected = Some(address);
                known_node.known = Some(address);
                known_node.admitted = true;
                known_node.registered = true;
                known_node.standing = Standing::Confirmed;
            }
            let view = self.view(client, number);
            for address in self.lists[number].iter() {
                if state.clients[number].known_nodes[address].registered {
                    state.memories[address].registrations[number] = Some(view);
                }
            }
        }
    }

    pub(crate) fn view(&self, client: &Client, number: usize) -> View {
        View::new((0..ADDRESSES).map(|address| {
            match (self.lists[number].has(address), client.known_nodes[address].known) {
                (false, _) => Place::Absent,
                (true, None) => Place::Unknown,
                (true, Some(id)) => Place::Known(id),
            }
        }))
    }

    /// Returns the memory to which an address leads a client.
    pub(crate) fn resolve(&self, state: &State, number: usize, address: usize) -> Id {
        let known = state.clients[number].known_nodes[address].known;
        let old = known.filter(|id| self.lied_to.has(number) && state.memories[*id].alive);
        // A client that never knew another server is led to the first one.
        let first = self.lied_to.has(number) && known.is_none() && state.memories[address].alive;
        old.or(first.then_some(address)).unwrap_or(state.at[address])
    }

    pub(crate) fn quorum(&self, number: usize) -> usize {
        self.lists[number].len() as usize / 2 + 1
    }
}
