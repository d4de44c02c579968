//! The worlds, and the expected results.
//!
//! Addresses and first memories count from 0. With three nodes, m3 is the first new memory.

use crate::rules::Omitted;
use crate::state::{Faults, Set};
use crate::world::World;

const SMALL: &[usize] = &[0, 1, 2];
const LARGE: &[usize] = &[0, 1, 2, 3, 4];

/// Two running clients with the same three nodes.
fn same(name: &'static str) -> World {
    World {
        running: true,
        ..World::new(name, &[SMALL, SMALL])
    }
}

/// Two clients with different lists, which start in any order.
fn lists(name: &'static str, first: &[usize], second: &[usize]) -> World {
    World::new(name, &[first, second])
}

/// Three nodes beside five. Node 2 is down for both clients at first, and B never reaches nodes 0 and 1.
fn late(name: &'static str) -> World {
    World {
        late: Set::of(&[2]),
        ..lists(name, SMALL, LARGE).unreachable(&[], &[0, 1])
    }
}

impl World {
    /// The first `count` addresses may lose their memories.
    fn lost(self, count: u8) -> World {
        World {
            frail: Set((1 << count) - 1),
            faults: Faults {
                lost: count,
                ..self.faults
            },
            ..self
        }
    }

    /// The first `count` addresses may lead to new servers; the old ones live.
    fn moved(self, count: u8) -> World {
        World {
            frail: Set((1 << count) - 1),
            faults: Faults {
                moved: count,
                ..self.faults
            },
            ..self
        }
    }

    /// The first address may lead back to an earlier server.
    fn led_back(self) -> World {
        World {
            faults: Faults {
                led_back: 1,
                ..self.faults
            },
            ..self
        }
    }

    fn restarted(self) -> World {
        World {
            faults: Faults {
                restarted: 1,
                ..self.faults
            },
            ..self
        }
    }

    fn cut(self) -> World {
        World {
            faults: Faults {
                cut: 1,
                ..self.faults
            },
            ..self
        }
    }

    fn stopped(self) -> World {
        World {
            faults: Faults {
                paused: 1,
                ..self.faults
            },
            ..self
        }
    }

    /// B's resolver names the old server as long as that lives.
    fn lied_to(self) -> World {
        World {
            lied_to: Set::of(&[1]),
            ..self
        }
    }

    fn unreachable(self, first: &[usize], second: &[usize]) -> World {
        World {
            unreachable: vec![Set::of(first), Set::of(second)],
            ..self
        }
    }

    /// A does not reach node 2, and B not node 1, so their registrations do not meet there.
    fn apart(self) -> World {
        self.unreachable(&[2], &[1])
    }

    fn each_look(self) -> World {
        World {
            looks_at_once: false,
            ..self
        }
    }

    fn larger(self) -> World {
        World {
            is_larger: true,
            ..self
        }
    }
}

/// Worlds in which the rules never let two clients hold the lock.
pub(crate) fn safe() -> Vec<World> {
    vec![
        same("one memory lost").lost(1),
        same("one address moved").moved(1),
        same("one address moved, B is lied to").moved(1).lied_to(),
        same("one memory lost, no shared node but that").lost(1).apart(),
        same("one address moved, no shared node but that")
            .moved(1)
            .apart(),
        same("one address moved and led back").moved(1).led_back(),
        same("one address moved and led back, no shared node but that")
            .moved(1)
            .led_back()
            .apart(),
        same("one address moved and led back, a client stopped")
            .moved(1)
            .led_back()
            .stopped()
            .larger(),
        lists("{0,1,2} beside {0,..,4}", SMALL, LARGE),
        lists("{0,..,4} beside {0,..,3,5}", LARGE, &[0, 1, 2, 3, 5]),
        lists("{0,1,2} beside {2,3,4}", SMALL, &[2, 3, 4]),
        World {
            frail: Set::of(&[2]),
            ..lists("{0,1,2} beside {2,3,4}, memory 2 lost", SMALL, &[2, 3, 4]).lost(1)
        }
        .larger(),
        late("{0,1,2} beside {0,..,4}, node 2 late"),
        late("{0,1,2} beside {0,..,4}, node 2 late, each look by itself")
            .each_look()
            .larger(),
        lists("{0,1,2} beside {0,..,4}, each look by itself", SMALL, LARGE)
            .each_look()
            .larger(),
        World {
            frail: Set::of(&[2]),
            ..lists(
                "{0,1,2} beside {0,..,4}, B reaches 2, 3, 4; memory 2 lost",
                SMALL,
                LARGE,
            )
            .lost(1)
            .unreachable(&[], &[0, 1])
        }
        .larger(),
        same("one memory lost, each look by itself")
            .lost(1)
            .each_look()
            .larger(),
        same("one address moved, B is lied to, each look by itself")
            .moved(1)
            .lied_to()
            .each_look()
            .larger(),
        same("one memory lost, a restart with all data")
            .lost(1)
            .restarted()
            .larger(),
        same("one memory lost, a client cut").lost(1).cut().larger(),
        same("one address moved, a client cut").moved(1).cut().larger(),
        same("one address moved, B is lied to, a client cut")
            .moved(1)
            .lied_to()
            .cut()
            .larger(),
        same("one memory lost, a client stopped")
            .lost(1)
            .stopped()
            .larger(),
        same("one address moved, a client stopped")
            .moved(1)
            .stopped()
            .larger(),
        same("one address moved, B is lied to, a client stopped")
            .moved(1)
            .lied_to()
            .stopped()
            .larger(),
        same("one address moved, no shared node, a client stopped")
            .moved(1)
            .apart()
            .stopped()
            .larger(),
        same("two memories lost").lost(2).larger(),
        same("two addresses moved").moved(2).larger(),
        same("two addresses moved, B is lied to")
            .moved(2)
            .lied_to()
            .larger(),
    ]
}

/// Worlds with weaker rules: two clients hold the lock.
pub(crate) fn weaker() -> Vec<World> {
    let lied = |name| same(name).moved(1).lied_to();
    let apart = |name| same(name).moved(1).apart();
    let mixed = |name| lists(name, SMALL, &[2, 3, 4]);
    vec![
        lied("ids not compared in grants").without(Omitted::IdInGrants),
        lied("ids not compared in renewals").without(Omitted::IdInRenewals),
        apart("no guard").without(Omitted::Guard),
        apart("the guard without P").without(Omitted::GuardForOldUsers),
        apart("renewals count in the first P").without(Omitted::FirstPart),
        lied("no registration, B is lied to").without(Omitted::Registration),
        mixed("no registration, lists that differ").without(Omitted::Registration),
        mixed("conflicts ignored").without(Omitted::Conflict),
        lied("votes before the registration")
            .cut()
            .without(Omitted::Admission)
            .larger(),
        lied("doubts ignored").without(Omitted::Doubt),
        lied("doubts ignored for renewals").without(Omitted::DoubtInRenewals),
        same("votes of a memory that was lost")
            .lost(1)
            .without(Omitted::StaleVotes),
        apart("the server that an address leads back to counts")
            .led_back()
            .without(Omitted::NewerUsed),
        late("a node counts at once").without(Omitted::Settling),
        late("a holder in conflict does not register").without(Omitted::HoldersRegister),
        lied("the old view is replaced at once")
            .cut()
            .without(Omitted::OldViewStays)
            .larger(),
        apart("no look after a stop, no shared node")
            .stopped()
            .without(Omitted::LooksEnd)
            .larger(),
        lied("no look after a stop, B is lied to")
            .stopped()
            .without(Omitted::LooksEnd)
            .larger(),
    ]
}

/// Known limits of the rules: two clients hold the lock.
pub(crate) fn uncovered() -> Vec<World> {
    let mixed = |name| lists(name, SMALL, &[2, 3, 4]);
    vec![
        same("one address moved, B is lied to, no shared node")
            .moved(1)
            .lied_to()
            .apart(),
        same("one address moved and led back, a client stopped, no shared node")
            .moved(1)
            .led_back()
            .stopped()
            .apart(),
        lists("{0,1,2} beside {0,..,4}, no shared node", SMALL, LARGE).unreachable(&[2], &[0, 1]),
        World {
            late: Set::of(&[2]),
            ..mixed("{0,1,2} beside {2,3,4}, node 2 down")
        },
    ]
}
