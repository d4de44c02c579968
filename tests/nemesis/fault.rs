//! What can go wrong.

use std::time::Duration;

/// Which faults a trial has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Those that locks are promised to survive.
    Promised,
    /// Besides them, those that break what the promise builds on: clocks are set, and nodes forget without a restart.
    Anything,
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

    /// A node forgets, and nobody can notice; so do three at once.
    Flushed,
    MajorityFlushed,
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
        const PROMISED: usize = 19;
        const ALL: [Fault; 25] = [
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
            ClockForward,
            ClockForwardALittle,
            ClockBack,
            ClockBackALittle,
        ];
        match manners {
            Manners::Promised => &ALL[..PROMISED],
            Manners::Anything => &ALL,
        }
    }

    pub(crate) fn scope(self) -> Scope {
        match self {
            Fault::WorkerStopped | Fault::WorkerKilled => Scope::Worker,
            Fault::ConnectionsDropped
            | Fault::ScriptsFlushed
            | Fault::ClientsKilled
            | Fault::Flushed
            | Fault::MajorityFlushed => Scope::Moment,
            _ => Scope::Node,
        }
    }

    /// How many nodes lose their memory.
    pub(crate) fn forgetting(self) -> usize {
        match self {
            Fault::Emptied | Fault::Flushed => 1,
            Fault::MajorityFlushed => 3,
            _ => 0,
        }
    }

    /// Nodes that come back from it do not vote before the restart guard's window has passed.
    pub(crate) fn is_guarded(self) -> bool {
        matches!(self, Fault::Emptied | Fault::ReadOnly)
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
