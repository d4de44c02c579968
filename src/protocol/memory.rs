//! Which memory a node is: the record that stands on it, and whether a server still is what its record says (M1, M2).
//!
//! A node is known by its memory, not by its address: by what one keyspace was told since it began. The record has a random
//! id of that memory and names the process that keeps it. Whatever empties, replaces or rolls back the data takes the record
//! away, or leaves one that names another process.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The format of records that this version writes and understands: their first character.
const FORMAT: &str = "1";
/// How many digits the time has in a record.
const TIME_DIGITS: usize = 16;
/// How far ahead of the node's clock a counter may be started, and one more, in microseconds.
const COUNTER_LEAD: i64 = 1_000_001;
/// By how much two readings of a node's clock may be out of order, in microseconds.
const CLOCK_TOLERANCE: i64 = 1_000_000;
/// Stands for "no former master", and for "this memory may lose what it acknowledged".
const NONE: &str = "-";
const DURABLE: &str = "+";

/// The random id of one memory: 128 bits, 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemoryId(u128);

impl From<u128> for MemoryId {
    fn from(random: u128) -> Self {
        MemoryId(random)
    }
}

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MemoryId {
    type Err = ();

    /// Reads what `Display` writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, ()> {
        let id = u128::from_str_radix(text, 16).map(MemoryId).map_err(|_| ())?;
        (id.to_string() == text).then_some(id).ok_or(())
    }
}

/// One life of a server process, and of the data that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// `run_id` of `INFO`.
    pub(crate) run_id: Arc<str>,
    /// `master_replid2` of `INFO`: the history that the data came from, if the process was a replica. `None` if it was not,
    /// or if it is so long ago that the server has forgotten.
    pub(crate) former_master: Option<Arc<str>>,
}

/// Whether everything that a server acknowledges is on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is.
    Full,
    /// It is not.
    Partial,
    /// The server does not tell.
    Unknown,
}

/// What stands on a node about its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: MemoryId,
    /// When the record was made: microseconds of the node's clock.
    pub(crate) since: i64,
    /// When the record was last given to another process; zero if it never was.
    resumed: i64,
    /// Everything acknowledged was found to be on disk.
    durable: bool,
    process: Process,
}

/// What else is seen of a server and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The memory is known to be elsewhere, or to have been put back: this is a copy, or an older state.
    pub(crate) is_taken: bool,
    /// The data has registrations that have not run out. A state from long ago has none.
    pub(crate) has_registrations: bool,
}

/// What a server turns out to be, beside the record that was found on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The memory that the record names, and nothing is to be written.
    Same,
    /// The memory that the record names: the record is to be replaced by this one.
    Renamed(Record),
    /// The memory that the record names, in another process: the record is to be replaced by this one, resumed now.
    Resumed(Record),
    /// A memory that begins now: it gets a record with a new id.
    New,
}

impl Record {
    /// The record of a memory that begins at `since`.
    pub(crate) fn new(id: MemoryId, since: i64, process: Process, durability: Durability) -> Record {
        Record {
            id,
            since,
            resumed: 0,
            durable: durability == Durability::Full,
            process,
        }
    }

    /// Judges a server on which this record was found.
    pub(crate) fn judge(&self, process: &Process, durability: Durability, look: Look) -> Finding {
        let restarted = self.process.run_id != process.run_id;
        let stays = match restarted {
            // A process whose data came from another server since was made a replica, and a master again.
            false => process.former_master.is_none() || process.former_master == self.process.former_master,
            // Restarted with all that it had acknowledged. A replica that was promoted has a former master.
            true => {
                let kept = self.durable && durability == Durability::Full && process.former_master.is_none();
                kept && look.has_registrations
            }
        };
        if look.is_taken || !stays {
            return Finding::New;
        }
        // A server that is seen not to keep everything is not believed after its next restart. A server that became durable
        // meanwhile is believed from its next record on.
        let durable = self.durable && durability != Durability::Partial;
        let renamed = Record {
            durable,
            process: process.clone(),
            ..*self
        };
        match renamed == *self {
            true => Finding::Same,
            false if restarted => Finding::Resumed(renamed),
            false => Finding::Renamed(renamed),
        }
    }

    /// What the record begins with: the part that each request is checked against.
    pub(crate) fn stamp(id: MemoryId) -> String {
        format!("{FORMAT} {id}")
    }

    /// A new record in two parts, between which the time belongs at which it is made.
    pub(crate) fn around_since(&self) -> (String, String) {
        let head = format!("{} ", Record::stamp(self.id));
        (head, format!(" {:0TIME_DIGITS$}{}", self.resumed, self.tail()))
    }

    /// A record in two parts, between which the time belongs at which it is resumed.
    pub(crate) fn around_resumed(&self) -> (String, String) {
        let head = format!("{} {:0TIME_DIGITS$} ", Record::stamp(self.id), self.since);
        (head, self.tail())
    }

    fn tail(&self) -> String {
        let former = self.process.former_master.as_deref().unwrap_or(NONE);
        let durable = if self.durable { DURABLE } else { NONE };
        format!(" {durable} {} {former}", self.process.run_id)
    }

    /// When the memory began, or was last found in another process. Microseconds of the node's clock.
    pub(crate) fn began_or_resumed(&self) -> i64 {
        self.since.max(self.resumed)
    }

    /// Whether the record was made, or resumed, after `now` by the node's clock: the clock was put back since, and a guard that
    /// counts from then could last for ever. Microseconds.
    pub(crate) fn is_from_after(&self, now: i64) -> bool {
        self.began_or_resumed() > now.saturating_add(CLOCK_TOLERANCE)
    }

    /// Returns the moment, on the node's clock, at which every client has looked again after a restart, if that takes
    /// `look_period` at most: what an older state has forgotten is known then. Microseconds.
    pub(crate) fn looked_at_from(&self, look_period: Duration) -> i64 {
        let period = i64::try_from(look_period.as_micros()).unwrap_or(i64::MAX);
        self.resumed.saturating_add(period)
    }

    /// Returns the moment, on the node's clock, from which no lock with a TTL of at most `guard` can live any more that was
    /// acknowledged before the record was made. Microseconds.
    pub(crate) fn trusted_from(&self, guard: Duration) -> i64 {
        let guard = i64::try_from(guard.as_micros()).unwrap_or(i64::MAX);
        self.since.saturating_add(guard)
    }

    /// The smallest value that a counter of this memory can have (F5): counters start from the time.
    ///
    /// A smaller one was brought back by a restart without the latest data. A counter that was lost with the memory before may
    /// have been started up to a second ahead of the clock, so this is beyond it.
    pub(crate) fn oldest_counter(&self) -> i64 {
        self.since.saturating_add(COUNTER_LEAD)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, tail) = self.around_resumed();
        write!(f, "{head}{:0TIME_DIGITS$}{tail}", self.resumed)
    }
}

impl FromStr for Record {
    type Err = ();

    /// Reads what `Display` writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [FORMAT, id, since, resumed, durable, run_id, former] = parts[..] else {
            return Err(());
        };
        let record = Record {
            id: id.parse()?,
            since: since.parse().map_err(|_| ())?,
            resumed: resumed.parse().map_err(|_| ())?,
            durable: durable == DURABLE,
            process: Process {
                run_id: run_id.into(),
                former_master: (former != NONE).then(|| former.into()),
            },
        };
        (record.to_string() == text).then_some(record).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Durability::{Full, Partial, Unknown};

    fn process(run_id: &str, former: Option<&str>) -> Process {
        Process {
            run_id: run_id.into(),
            former_master: former.map(Arc::from),
        }
    }

    fn record(durability: Durability, former: Option<&str>) -> Record {
        Record::new(
            MemoryId(7),
            1_700_000_000_000_000,
            process("run1", former),
            durability,
        )
    }

    /// Which servers are the memory that their record names, case by case.
    #[test]
    fn a_memory_ends_with_whatever_can_have_lost_a_part_of_it() {
        #[derive(Debug, PartialEq)]
        enum Is {
            Same,
            Renamed { durable: bool },
            Resumed,
            New,
        }
        const FORGETS: Is = Is::Renamed { durable: false };
        const KEEPS: Is = Is::Renamed { durable: true };
        let (never, once, again) = (None, Some("master"), Some("another"));
        // How the record says that the data is kept, and its former master; what the server says; what it is.
        let same_process = [
            ("still running", (Full, never), (Full, never), Is::Same),
            ("keeps nothing", (Partial, never), (Partial, never), Is::Same),
            (
                "turned out to keep nothing",
                (Full, never),
                (Partial, never),
                FORGETS,
            ),
            ("does not say", (Full, never), (Unknown, never), Is::Same),
            ("keeps it by now", (Partial, never), (Full, never), Is::Same),
            ("replica for a moment", (Full, never), (Full, once), Is::New),
            ("once more", (Full, once), (Full, again), Is::New),
            ("promoted before", (Full, once), (Full, once), Is::Same),
            ("long ago", (Full, once), (Full, never), KEEPS),
        ];
        let restarted = [
            ("with all data", (Full, never), (Full, never), Is::Resumed),
            ("had lost some", (Partial, never), (Full, never), Is::New),
            ("with weaker settings", (Full, never), (Partial, never), Is::New),
            ("does not say", (Full, never), (Unknown, never), Is::New),
            ("a replica, promoted", (Full, never), (Full, once), Is::New),
        ];
        let same_process = same_process.map(|case| ("run1", case));
        let restarted = restarted.map(|case| ("run2", case));
        for (run_id, (case, (written, former), (kept, came_from), expected)) in
            same_process.into_iter().chain(restarted)
        {
            let (found, server) = (record(written, former), process(run_id, came_from));
            let look = Look {
                is_taken: false,
                has_registrations: true,
            };
            let finding = found.judge(&server, kept, look);
            if let Finding::Renamed(record) | Finding::Resumed(record) = &finding {
                assert_eq!((record.id, record.since), (found.id, found.since), "{case}");
                assert_eq!(record.process, server, "{case}");
            }
            let is = match finding {
                Finding::Same => Is::Same,
                Finding::Renamed(record) => Is::Renamed {
                    durable: record.durable,
                },
                Finding::Resumed(_) => Is::Resumed,
                Finding::New => Is::New,
            };
            assert_eq!(is, expected, "{case}");
            // Whatever else it may be, it is a copy if the id is in use elsewhere.
            let copy = Look {
                is_taken: true,
                ..look
            };
            assert_eq!(found.judge(&server, kept, copy), Finding::New, "{case}");
            // An older state, or a server that nobody has used for long.
            let old = Look {
                has_registrations: false,
                ..look
            };
            let is_new = found.judge(&server, kept, old) == Finding::New;
            assert_eq!(is_new, expected == Is::New || run_id == "run2", "{case}");
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for (durability, former) in [(Full, None), (Partial, Some("abc"))] {
            let record = record(durability, former);
            let text = record.to_string();
            assert_eq!(text.parse(), Ok(record.clone()));
            assert_eq!(text[..34], Record::stamp(record.id));
            let (head, tail) = record.around_since();
            assert_eq!(text, format!("{head}1700000000000000{tail}"));
            let (head, tail) = record.around_resumed();
            assert_eq!(text, format!("{head}0000000000000000{tail}"));
        }
        let good = record(Full, None).to_string();
        for damaged in [
            "",
            "0",
            "1 7 0 0 + run -",
            &good.replacen('1', "2", 1),
            &good.replace(" + ", " "),
            &format!("{good} "),
            &good.replace("1700000000000000", "170000000000000"),
        ] {
            assert!(damaged.parse::<Record>().is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn a_memory_is_trusted_a_guard_after_it_began() {
        let record = record(Full, None);
        assert_eq!(record.trusted_from(Duration::ZERO), record.since);
        assert_eq!(
            record.trusted_from(Duration::from_secs(3)),
            record.since + 3_000_000
        );
        assert_eq!(record.trusted_from(Duration::MAX), i64::MAX);
        assert_eq!(record.looked_at_from(Duration::from_secs(3)), 3_000_000);
        assert!(record.oldest_counter() > record.since + 1_000_000);
        assert!(
            record.is_from_after(record.since - 2_000_000) && !record.is_from_after(record.since - 500_000)
        );
    }
}
