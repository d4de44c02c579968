//! The faults of a trial.

use std::ops::Range;
use std::time::Duration;

use crate::worker::{LOOK_PERIOD, TTL};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultModel {
    /// Faults that locks are promised to survive.
    Promised,
    /// Also faults that break the promise's assumptions: clocks are set.
    Anything,
    /// The restart guard is off, and counters are lost. An emptied node stays away until all that it forgot has expired.
    StayAway,
    /// The restart guard is off, counters are lost, and nodes are emptied at any time: two holders are possible.
    AtAnyTime,
}

impl FaultModel {
    /// Whether clients have the restart guard on.
    pub(crate) fn is_guarded(self) -> bool {
        matches!(self, FaultModel::Promised | FaultModel::Anything)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A server is killed, and restarts with its data.
    Killed,
    /// A server is killed, and restarts without data. The restart guard keeps it from voting.
    Emptied,
    /// A server restarts with so much data that loading takes a while.
    Loading,
    /// A server process is stopped for a while.
    Stopped,
    /// No connections to a node are possible.
    CutOff,
    /// No data reaches a node or comes from it; or only one of both.
    Silent,
    RequestsHeld,
    AnswersHeld,
    /// Each answer is later than the node budget.
    Slowed,
    ConnectionsDropped,
    /// A node answers with an error: OOM, READONLY, MISCONF.
    OutOfMemory,
    ReadOnly,
    CannotPersist,
    /// A node answers WRONGTYPE for each lock that was free.
    WrongType,
    /// A node accepts no more connections.
    ConnectionLimit,
    /// On all nodes at once, scripts are flushed or connections killed.
    ScriptsFlushed,
    ClientsKilled,
    /// A process that holds locks is stopped for longer than they last; or killed, and replaced.
    WorkerStopped,
    WorkerKilled,
    /// One running node is flushed, or three at once.
    Flushed,
    MajorityFlushed,
    /// A node becomes a replica of another server, takes over its data, and becomes a master again.
    ReplicaFlipped,
    /// A node is restarted with a copy of its data that is older than a look period.
    BackupRestored,
    /// Two nodes are restarted, each with the data of the other.
    VolumesSwapped,
    /// A node's address leads to a new server and later back, while both servers run.
    AddressMoved,
    /// A process with another list of nodes competes for the same locks.
    ListsMixed,
    /// A node's counters are lost, and start again ahead of the others'. After some grants, the node stops: tokens rise
    /// without it.
    CountersLost,
    /// All nodes lose their counters at once.
    AllCountersLost,

    /// A node's clock is set, by more than a TTL or by less, and later set right.
    ClockForward,
    ClockForwardALittle,
    ClockBack,
    ClockBackALittle,
}

/// The largest step of a clock. A key that was set before the clock is set back lives longer by this.
pub(crate) const STEP: Duration = Duration::from_secs(3);
const LITTLE_STEP: Duration = Duration::from_millis(600);

/// What a fault affects, which decides the faults that are possible at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One node, for a while.
    Node,
    /// Nodes, for a moment. They vote again at once.
    Moment,
    Worker,
}

impl Fault {
    pub(crate) fn all(model: FaultModel) -> &'static [Fault] {
        use Fault::*;
        const PROMISED: usize = 26;
        const UNGUARDED: [Fault; 6] = [
            Killed,
            Stopped,
            Emptied,
            CountersLost,
            AllCountersLost,
            MajorityFlushed,
        ];
        const ALL: [Fault; 30] = [
            Killed,
            Emptied,
            Loading,
            Stopped,
            CutOff,
            Silent,
            RequestsHeld,
            AnswersHeld,
            Slowed,
            ConnectionsDropped,
            OutOfMemory,
            ReadOnly,
            CannotPersist,
            WrongType,
            ConnectionLimit,
            ScriptsFlushed,
            ClientsKilled,
            WorkerStopped,
            WorkerKilled,
            Flushed,
            MajorityFlushed,
            ReplicaFlipped,
            BackupRestored,
            VolumesSwapped,
            AddressMoved,
            ListsMixed,
            ClockForward,
            ClockForwardALittle,
            ClockBack,
            ClockBackALittle,
        ];
        match model {
            FaultModel::Promised => &ALL[..PROMISED],
            FaultModel::Anything => &ALL,
            FaultModel::StayAway => &UNGUARDED[..5],
            FaultModel::AtAnyTime => &UNGUARDED,
        }
    }

    pub(crate) fn scope(self) -> Scope {
        match self {
            Fault::WorkerStopped | Fault::WorkerKilled | Fault::ListsMixed => Scope::Worker,
            Fault::ConnectionsDropped
            | Fault::ScriptsFlushed
            | Fault::ClientsKilled
            | Fault::AllCountersLost
            | Fault::Flushed
            | Fault::MajorityFlushed => Scope::Moment,
            _ => Scope::Node,
        }
    }

    /// Returns how many nodes lose their memory. They give no new locks until the restart guard ends.
    pub(crate) fn forgetting(self) -> usize {
        match self {
            Fault::Emptied
            | Fault::ReadOnly
            | Fault::Flushed
            | Fault::ReplicaFlipped
            | Fault::BackupRestored
            | Fault::AddressMoved => 1,
            Fault::VolumesSwapped => 2,
            Fault::MajorityFlushed => 3,
            _ => 0,
        }
    }

    /// For how many milliseconds it lasts, at least and at most.
    pub(crate) fn millis(self, model: FaultModel) -> Range<u64> {
        let (look, ttl) = (LOOK_PERIOD.as_millis() as u64, TTL.as_millis() as u64);
        match self {
            // All that the node forgot expires within a TTL.
            Fault::Emptied if model == FaultModel::StayAway => ttl + 100..ttl + 300,
            // Leases that the node granted end while it is away.
            Fault::CountersLost => ttl + 200..ttl + 400,
            // What was forgotten matters as long as a lease lives.
            Fault::Emptied | Fault::VolumesSwapped => 100..300,
            // The copy must be older than every client's last look.
            Fault::BackupRestored => 2 * look..6 * look,
            // Shorter or longer than the guard of the new server.
            Fault::AddressMoved => 500..5_000,
            _ => 100..1_500,
        }
    }

    /// Returns the step in microseconds. `None` if the fault sets no clock.
    pub(crate) fn shift(self) -> Option<i64> {
        let micros = |step: Duration| step.as_micros() as i64;
        match self {
            Fault::ClockForward => Some(micros(STEP)),
            Fault::ClockForwardALittle => Some(micros(LITTLE_STEP)),
            Fault::ClockBack => Some(-micros(STEP)),
            Fault::ClockBackALittle => Some(-micros(LITTLE_STEP)),
            _ => None,
        }
    }
}
