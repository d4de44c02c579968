//! A state of the model: memories, and what each client knows of them.

use std::hash::{Hash, Hasher};

pub(crate) const ADDRESSES: usize = 6;
pub(crate) const CLIENTS: usize = 3;

/// A memory's number is its id. The first memory of an address has the number of the address.
pub(crate) type Id = usize;

/// A small set of addresses or of memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(pub(crate) u16);

impl Set {
    pub(crate) const EMPTY: Set = Set(0);

    pub(crate) fn of(numbers: &[usize]) -> Set {
        numbers.iter().fold(Set::EMPTY, |set, number| set.with(*number))
    }

    pub(crate) fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    pub(crate) fn with(self, number: usize) -> Set {
        Set(self.0 | 1 << number)
    }

    pub(crate) fn without(self, number: usize) -> Set {
        Set(self.0 & !(1 << number))
    }

    pub(crate) fn union(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |number| self.has(*number))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The address is not in the list.
    Absent,
    /// The node behind the address was never reached.
    Unknown,
    Known(Id),
}

/// A client's list with the ids that it uses: four bits for each address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct View(u32);

impl View {
    pub(crate) fn new(places: impl Iterator<Item = Place>) -> View {
        View(places.enumerate().fold(0, |bits, (address, place)| {
            let code = match place {
                Place::Absent => 0,
                Place::Unknown => 1,
                Place::Known(id) => 2 + id as u32,
            };
            bits | code << (4 * address)
        }))
    }

    pub(crate) fn place(self, address: usize) -> Place {
        match self.0 >> (4 * address) & 15 {
            0 => Place::Absent,
            1 => Place::Unknown,
            code => Place::Known(code as usize - 2),
        }
    }

    /// Returns the addresses of the list.
    pub(crate) fn labels(self) -> impl Iterator<Item = (usize, Place)> {
        (0..ADDRESSES)
            .map(move |address| (address, self.place(address)))
            .filter(|(_, place)| *place != Place::Absent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Guard {
    /// The first P: no vote counts.
    First,
    /// Until W + P: renewals count.
    Second,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) address: u8,
    pub(crate) alive: bool,
    pub(crate) guard: Guard,
    /// The client that holds the lock's key.
    pub(crate) key: Option<u8>,
    /// The live registration of each client.
    pub(crate) registrations: [Option<View>; CLIENTS],
    /// The earlier view of each client. It stays while a lease depends on it.
    pub(crate) previous: [Option<View>; CLIENTS],
}

impl Memory {
    pub(crate) fn new(address: usize, guard: Guard) -> Memory {
        Memory {
            address: address as u8,
            alive: true,
            guard,
            key: None,
            registrations: [None; CLIENTS],
            previous: [None; CLIENTS],
        }
    }

    pub(crate) fn die(&mut self) {
        *self = Memory {
            alive: false,
            ..Memory::new(self.address.into(), Guard::Over)
        };
    }
}

/// The state of a client's registration on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Standing {
    #[default]
    None,
    Registered,
    /// It has stood for P: every client that reaches the node has looked.
    Stood,
    /// As `Stood`, and this client has looked again since.
    Confirmed,
}

/// A client's knowledge of the node behind one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownNode {
    /// The memory that the connection leads to.
    pub(crate) connected: Option<Id>,
    /// The id in the client's view. It stays when the connection is lost.
    pub(crate) known: Option<Id>,
    /// The view with this id was registered on all connected nodes.
    pub(crate) admitted: bool,
    /// The present view is registered on this node.
    pub(crate) registered: bool,
    pub(crate) standing: Standing,
    /// The last look at this node found a conflict.
    pub(crate) conflict: bool,
    /// The addresses for which the last look at this node found another memory.
    pub(crate) doubted: Set,
    /// The memory that voted in the attempt or renewal under way.
    pub(crate) vote: Option<Id>,
    /// The memory that voted in the lease's last confirmation.
    pub(crate) held: Option<Id>,
}

/// Hashes all fields as one number, because the search spends its time on hashing.
impl Hash for KnownNode {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let ids = [self.connected, self.known, self.vote, self.held];
        let bits = ids
            .iter()
            .fold(0, |bits, id| bits << 4 | id.map_or(0, |id| 1 + id as u64));
        let flags = [self.admitted, self.registered, self.conflict];
        let bits = flags.iter().fold(bits, |bits, flag| bits << 1 | u64::from(*flag));
        (bits << 18 | u64::from(self.doubted.0) << 2 | self.standing as u64).hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Acquiring,
    Holding,
    Renewing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) known_nodes: [KnownNode; ADDRESSES],
    pub(crate) phase: Phase,
    pub(crate) paused: bool,
    /// The client may take locks: it has seen the registrations of others (M8).
    pub(crate) settled: bool,
    /// Addresses that this client does not reach.
    pub(crate) cut: Set,
    /// Memories whose first P ended after the lease's last confirmation.
    pub(crate) confirmed_before: Set,
    /// Memories whose first P ended after the attempt or renewal began.
    pub(crate) begun_before: Set,
}

impl Client {
    pub(crate) fn holds(&self) -> bool {
        matches!(self.phase, Phase::Holding | Phase::Renewing)
    }

    pub(crate) fn in_conflict(&self) -> bool {
        self.known_nodes.iter().any(|known_node| known_node.conflict)
    }

    pub(crate) fn doubts(&self, address: usize) -> bool {
        self.known_nodes
            .iter()
            .any(|known_node| known_node.doubted.has(address))
    }

    /// Returns whether the lease was confirmed by a memory that the client no longer uses.
    pub(crate) fn rests_on_old_memory(&self) -> bool {
        self.known_nodes
            .iter()
            .any(|known_node| known_node.held.is_some() && known_node.held != known_node.known)
    }

    pub(crate) fn votes(&self) -> usize {
        self.known_nodes
            .iter()
            .filter(|known_node| known_node.vote.is_some())
            .count()
    }
}

/// The number of faults that may still happen, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A node loses its memory: `FLUSHALL`, a restart without data, a replica promoted.
    pub(crate) lost: u8,
    /// An address leads to a new, empty server; the old server lives.
    pub(crate) moved: u8,
    /// An address leads back to an older server, which has lived on.
    pub(crate) led_back: u8,
    /// A restart with all data.
    pub(crate) restarted: u8,
    /// A client is stopped, perhaps for ever.
    pub(crate) paused: u8,
    /// A link between a client and an address breaks.
    pub(crate) cut: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) memories: Vec<Memory>,
    pub(crate) clients: Vec<Client>,
    /// The memory behind each address.
    pub(crate) at: [Id; ADDRESSES],
    pub(crate) faults: Faults,
    /// Addresses that are down for all clients.
    pub(crate) down: Set,
}

impl State {
    pub(crate) fn holders(&self) -> usize {
        self.clients.iter().filter(|client| client.holds()).count()
    }

    /// Ends the lease or attempt of a client, and deletes its keys.
    pub(crate) fn end(&mut self, client: usize) {
        let ended = &mut self.clients[client];
        ended.phase = Phase::Idle;
        ended.confirmed_before = Set::EMPTY;
        ended.begun_before = Set::EMPTY;
        for known_node in &mut ended.known_nodes {
            known_node.vote = None;
            known_node.held = None;
        }
        for memory in &mut self.memories {
            memory.key = memory.key.filter(|owner| usize::from(*owner) != client);
        }
    }

    /// Removes what makes no difference any more, which leaves fewer states.
    pub(crate) fn tidy(&mut self) {
        for number in 0..self.clients.len() {
            if !self.clients[number].rests_on_old_memory() {
                self.memories
                    .iter_mut()
                    .for_each(|memory| memory.previous[number] = None);
            }
        }
        for id in 0..self.memories.len() {
            let memory = &mut self.memories[id];
            let address = usize::from(memory.address);
            let used = |client: &Client| client.known_nodes[address].connected == Some(id);
            if memory.alive
                && self.faults.led_back == 0
                && self.at[address] != id
                && !self.clients.iter().any(used)
            {
                memory.die();
            }
            let settled = memory.guard != Guard::Second;
            for client in &mut self.clients {
                if settled {
                    client.confirmed_before = client.confirmed_before.without(id);
                    client.begun_before = client.begun_before.without(id);
                }
            }
        }
    }
}
