//! The events of a run.

use quorlock::simulation::lock_script::Announcement;

use crate::connections::{Answer, Call};
use crate::memory::MemoryId;
use crate::plan::Trouble;
use crate::server::Memory;
use crate::store::{Write, WriteOutcome};

#[derive(Debug)]
pub(crate) enum Event {
    Arrive(usize, Call),
    Answered(usize, Call, Answer, Option<i64>),
    Lost {
        client: usize,
        server: usize,
        connection: u32,
    },
    /// Checks whether a connection hangs.
    Doubt(usize, Call),
    Dial {
        client: usize,
        server: usize,
    },
    Dialled {
        client: usize,
        server: usize,
        run: u32,
        sent_local: i64,
    },
    /// A client's next look is due (M3).
    Look {
        client: usize,
        server: usize,
    },
    /// The look reaches the server. The client expects that memory, in that run.
    Looks {
        client: usize,
        server: usize,
        connection: u32,
        taken_for: Option<(MemoryId, u32)>,
        sent_local: i64,
    },
    Looked {
        client: usize,
        server: usize,
        connection: u32,
        found: Option<MemoryId>,
        sent_local: i64,
    },
    Subscribe(usize, usize, u64),
    /// The client learns that it listens.
    Subscribed(usize, usize, u64),
    /// The client learns that it no longer listens.
    ListenersLost(usize, usize),
    Announced(usize, usize, u64, Announcement),
    Write(usize, u64, Write),
    WriteOutcome(usize, u64, WriteOutcome),
    Trouble(Trouble),
    Restart {
        server: usize,
        memory: Memory,
    },
    Continue {
        server: usize,
        run: u32,
    },
    Mend {
        client: usize,
        server: usize,
    },
    Resume {
        client: usize,
    },
    Audit {
        client: usize,
    },
    /// The client's last phase begins.
    Finish {
        client: usize,
    },
    /// Only lets time pass.
    Tick,
}

impl Event {
    /// Returns the client that the event concerns; `None` for all.
    pub(super) fn client(&self) -> Option<usize> {
        match self {
            Event::Arrive(client, _)
            | Event::Answered(client, ..)
            | Event::Doubt(client, _)
            | Event::Subscribe(client, ..)
            | Event::Subscribed(client, ..)
            | Event::ListenersLost(client, ..)
            | Event::Announced(client, ..)
            | Event::Write(client, ..)
            | Event::WriteOutcome(client, ..)
            | Event::Lost { client, .. }
            | Event::Look { client, .. }
            | Event::Looks { client, .. }
            | Event::Looked { client, .. }
            | Event::Dial { client, .. }
            | Event::Dialled { client, .. }
            | Event::Mend { client, .. }
            | Event::Resume { client }
            | Event::Audit { client }
            | Event::Finish { client } => Some(*client),
            Event::Trouble(_) | Event::Restart { .. } | Event::Continue { .. } | Event::Tick => None,
        }
    }
}
