//! What can go wrong.

use std::ops::Range;
use std::time::Duration;

use crate::worker::{LOOK_PERIOD, TTL};

/// Which faults a trial has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Those that locks are promised to survive.
    Promised,
    /// Besides them, those that break what the promise builds on: clocks are set.
    Anything,
    /// The restart guard is off, and counters are lost. An emptied node stays away until all that it forgot has expired.
    StayAway,
    /// The restart guard is off, counters are lost, and nodes are emptied at any time: two holders are possible.
    AtAnyTime,
}

impl Manners {
    /// Whether clients have the restart guard on.
    pub(crate) fn is_guarded(self) -> bool {
        matches!(self, Manners::Promised | Manners::Anything)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A server ends, and comes back with its data;
    Killed,
    /// without them: the restart guard has to keep it from voting;
    Emptied,
    /// with more data than it can load in no time.
    Loading,
    /// A server neither runs nor ends for a while.
    Stopped,
    /// No connections to a node.
    CutOff,
    /// Nothing gets to a node, nor back; only one of both.
    Silent,
    RequestsHeld,
    AnswersHeld,
    /// Each answer is later than the node's budget.
    Slowed,
    /// All connections to a node are reset at once.
    ConnectionsDropped,
    /// A node answers with errors: OOM, READONLY, MISCONF,
    OutOfMemory,
    ReadOnly,
    CannotPersist,
    /// WRONGTYPE for each lock that was free,
    WrongType,
    /// and takes no connections.
    ConnectionLimit,
    /// On all nodes at once.
    ScriptsFlushed,
    ClientsKilled,
    /// A process that holds locks stops for longer than they last; it ends, and another one is started.
    WorkerStopped,
    WorkerKilled,
    /// A node is emptied while it runs; so are three at once.
    Flushed,
    MajorityFlushed,
    /// A node becomes a replica of another server, takes over its data, and becomes a master again.
    ReplicaFlipped,
    /// A node is restarted with a copy of its data that is older than one look period.
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

/// By how much clocks are off at most. A key that was set before its clock is set back lives longer by this.
pub(crate) const STEP: Duration = Duration::from_secs(3);
const LITTLE_STEP: Duration = Duration::from_millis(600);

/// What a fault does, as far as it matters for what else may be wrong at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One node, for a while.
    Node,
    /// Nodes, for a moment: as many votes as before.
    Moment,
    Worker,
}

impl Fault {
    pub(crate) fn all(manners: Manners) -> &'static [Fault] {
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
        match manners {
            Manners::Promised => &ALL[..PROMISED],
            Manners::Anything => &ALL,
            Manners::StayAway => &UNGUARDED[..5],
            Manners::AtAnyTime => &UNGUARDED,
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

    /// How many nodes lose their memory: they are left out of new locks until the restart guard ends.
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
    pub(crate) fn millis(self, manners: Manners) -> Range<u64> {
        let (look, ttl) = (LOOK_PERIOD.as_millis() as u64, TTL.as_millis() as u64);
        match self {
            // All that the node forgot expires within a TTL.
            Fault::Emptied if manners == Manners::StayAway => ttl + 100..ttl + 300,
            // Leases that the node granted end while it is away.
            Fault::CountersLost => ttl + 200..ttl + 400,
            // What was forgotten matters as long as a lease lives.
            Fault::Emptied | Fault::VolumesSwapped => 100..300,
            // The copy is to be older than every client's last look.
            Fault::BackupRestored => 2 * look..6 * look,
            // Some end before the guard of the new server does, and some after it.
            Fault::AddressMoved => 500..5_000,
            _ => 100..1_500,
        }
    }

    /// By how many microseconds the clock is off.
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
