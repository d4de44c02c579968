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
    /// Whoever looked found that everything acknowledged is on disk.
    durable: bool,
    process: Process,
}

/// What a server turns out to be, beside the record that was found on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The memory that the record names, and nothing is to be written.
    Same,
    /// The memory that the record names: the record is to be replaced by this one.
    Renamed(Record),
    /// A memory that begins now: it gets a record with a new id.
    New,
}

impl Record {
    /// The record of a memory that begins at `since`.
    pub(crate) fn new(id: MemoryId, since: i64, process: Process, durability: Durability) -> Record {
        Record {
            id,
            since,
            durable: durability == Durability::Full,
            process,
        }
    }

    /// Judges a server on which this record was found.
    ///
    /// `in_use` says that another node of the set has the id: one of the two has a copy of the other's data.
    pub(crate) fn judge(&self, process: &Process, durability: Durability, in_use: bool) -> Finding {
        let stays = match self.process.run_id == process.run_id {
            // A process whose data came from another server since: it was made a replica, and a master again.
            true => process.former_master.is_none() || process.former_master == self.process.former_master,
            // Restarted with all that it had acknowledged. A replica that was promoted has a former master.
            false => self.durable && durability == Durability::Full && process.former_master.is_none(),
        };
        if in_use || !stays {
            return Finding::New;
        }
        // A server that is seen not to keep everything is not believed after its next restart. Nor is one that became better
        // meanwhile: its next record is.
        let durable = self.durable && durability != Durability::Partial;
        let renamed = Record {
            durable,
            process: process.clone(),
            ..*self
        };
        match renamed == *self {
            true => Finding::Same,
            false => Finding::Renamed(renamed),
        }
    }

    /// What the record begins with: the part that each request is checked against.
    pub(crate) fn stamp(id: MemoryId) -> String {
        format!("{FORMAT} {id}")
    }

    /// The record in two parts, between which the time belongs.
    pub(crate) fn around_time(&self) -> (String, String) {
        let former = self.process.former_master.as_deref().unwrap_or(NONE);
        let durable = if self.durable { DURABLE } else { NONE };
        let head = format!("{} ", Record::stamp(self.id));
        (head, format!(" {durable} {} {former}", self.process.run_id))
    }

    /// From when on, by the node's clock, nothing is held any more that the node acknowledged longer than `guard` before its
    /// record was made. Microseconds.
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
        let (head, tail) = self.around_time();
        write!(f, "{head}{:0TIME_DIGITS$}{tail}", self.since)
    }
}

impl FromStr for Record {
    type Err = ();

    /// Reads what `Display` writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [FORMAT, id, since, durable, run_id, former] = parts[..] else {
            return Err(());
        };
        let record = Record {
            id: id.parse()?,
            since: since.parse().map_err(|_| ())?,
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
            New,
        }
        const DURABLE: Is = Is::Renamed { durable: true };
        let cases = [
            // The process that the record names.
            ("still running", Full, None, ("run1", None), Full, Is::Same),
            (
                "still running, keeps nothing",
                Partial,
                None,
                ("run1", None),
                Partial,
                Is::Same,
            ),
            (
                "turned out to keep nothing",
                Full,
                None,
                ("run1", None),
                Partial,
                Is::Renamed { durable: false },
            ),
            ("does not say", Full, None, ("run1", None), Unknown, Is::Same),
            (
                "keeps everything only by now",
                Partial,
                None,
                ("run1", None),
                Full,
                Is::Same,
            ),
            // Its data came from another server meanwhile.
            (
                "replica for a moment",
                Full,
                None,
                ("run1", Some("other")),
                Full,
                Is::New,
            ),
            (
                "again",
                Full,
                Some("other"),
                ("run1", Some("third")),
                Full,
                Is::New,
            ),
            (
                "promoted before the record",
                Full,
                Some("other"),
                ("run1", Some("other")),
                Full,
                Is::Same,
            ),
            (
                "that is forgotten after an hour",
                Full,
                Some("other"),
                ("run1", None),
                Full,
                DURABLE,
            ),
            // Another process.
            (
                "restarted with all data",
                Full,
                None,
                ("run2", None),
                Full,
                DURABLE,
            ),
            (
                "restarted, had lost some",
                Partial,
                None,
                ("run2", None),
                Full,
                Is::New,
            ),
            (
                "restarted with weaker settings",
                Full,
                None,
                ("run2", None),
                Partial,
                Is::New,
            ),
            (
                "restarted, does not say",
                Full,
                None,
                ("run2", None),
                Unknown,
                Is::New,
            ),
            (
                "a replica was promoted",
                Full,
                None,
                ("run2", Some("run1's")),
                Full,
                Is::New,
            ),
        ];
        for (case, written, former, (run_id, came_from), now, expected) in cases {
            let found = record(written, former);
            let is = match found.judge(&process(run_id, came_from), now, false) {
                Finding::Same => Is::Same,
                Finding::Renamed(record) => {
                    assert_eq!((record.id, record.since), (found.id, found.since), "{case}");
                    assert_eq!(record.process, process(run_id, came_from), "{case}");
                    Is::Renamed {
                        durable: record.durable,
                    }
                }
                Finding::New => Is::New,
            };
            assert_eq!(is, expected, "{case}");
            // Whatever else it may be, it is a copy if the id is in use elsewhere.
            let copy = found.judge(&process(run_id, came_from), now, true);
            assert_eq!(copy, Finding::New, "{case}");
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for (durability, former) in [(Full, None), (Partial, Some("abc"))] {
            let record = record(durability, former);
            let text = record.to_string();
            assert_eq!(text.parse(), Ok(record.clone()));
            assert_eq!(text[..34], Record::stamp(record.id));
            let (head, tail) = record.around_time();
            assert_eq!(text, format!("{head}1700000000000000{tail}"));
        }
        let good = record(Full, None).to_string();
        for damaged in [
            "",
            "0",
            "1 7 0 + run -",
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
    }
}
