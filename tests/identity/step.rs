//! The possible steps, and their names in a trace.

use crate::state::Id;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    // The lock.
    Grant { client: usize, id: Id },
    Extend { client: usize, id: Id },
    Heal { client: usize, id: Id },
    Lapse { id: Id },
    AbandonRenewal { client: usize },
    End { client: usize },
    // A client's knowledge.
    Start { client: usize },
    Connect { client: usize, id: Id },
    Learn { client: usize, id: Id },
    Follow { client: usize, id: Id },
    Look { client: usize, id: Id, conflict: bool },
    Forget { client: usize, address: usize },
    // Time.
    FirstPartOver { id: Id },
    GuardOver { id: Id },
    RegistrationStood { client: usize, id: Id },
    RegistrationEnds { client: usize, id: Id },
    // Faults.
    Lose { address: usize },
    Move { address: usize },
    LeadBack { address: usize, id: Id },
    Restart { address: usize },
    Pause { client: usize },
    Resume { client: usize },
    Cut { client: usize, address: usize },
    Mend { client: usize, address: usize },
    ComeUp { address: usize },
}

struct Client(usize);

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0 as u8))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |client: &usize| Client(*client);
        match self {
            Step::Grant { client, id } => write!(f, "m{id} grants {}", who(client)),
            Step::Extend { client, id } => write!(f, "m{id} extends {}'s key", who(client)),
            Step::Heal { client, id } => write!(f, "m{id} is given {}'s key", who(client)),
            Step::Lapse { id } => write!(f, "the key on m{id} expires"),
            Step::AbandonRenewal { client } => write!(f, "{} abandons a renewal", who(client)),
            Step::End { client } => write!(f, "the lease or attempt of {} ends", who(client)),
            Step::Start { client } => write!(f, "{} starts", who(client)),
            Step::Connect { client, id } => write!(f, "{} connects to m{id}", who(client)),
            Step::Learn { client, id } => write!(f, "{} learns of m{id}", who(client)),
            Step::Follow { client, id } => write!(f, "{} resolves the name anew: m{id}", who(client)),
            Step::Look { client, id, conflict } => {
                let outcome = if *conflict {
                    "finds a conflict"
                } else {
                    "registers"
                };
                write!(f, "{} {outcome} on m{id}", who(client))
            }
            Step::Forget { client, address } => {
                write!(f, "{} forgets what was registered at {address}", who(client))
            }
            Step::FirstPartOver { id } => write!(f, "m{id}: the first P of the guard is over"),
            Step::GuardOver { id } => write!(f, "m{id}: the guard is over"),
            Step::RegistrationStood { client, id } => {
                write!(f, "{}'s registration on m{id} has stood for P", who(client))
            }
            Step::RegistrationEnds { client, id } => {
                write!(f, "{}'s registration on m{id} ends", who(client))
            }
            Step::Lose { address } => write!(f, "address {address}: the memory is lost, a new one begins"),
            Step::Move { address } => write!(f, "address {address}: a new server, the old one lives"),
            Step::LeadBack { address, id } => write!(f, "address {address}: leads back to m{id}"),
            Step::Restart { address } => write!(f, "address {address}: a restart with all data"),
            Step::Pause { client } => write!(f, "{} is stopped", who(client)),
            Step::Resume { client } => write!(f, "{} goes on", who(client)),
            Step::Cut { client, address } => write!(f, "{} is cut from address {address}", who(client)),
            Step::Mend { client, address } => write!(f, "{} reaches address {address} again", who(client)),
            Step::ComeUp { address } => write!(f, "address {address} comes up"),
        }
    }
}
