//! Which memory a node is, and whether a server still is the memory that its record names (M1, M2).
//!
//! A node is known by its memory, not by its address: what one keyspace was told since it began. The record has the memory's
//! random id and names its process. If the data is emptied, replaced or rolled back, the record is gone or names another one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The first character of records: the format that this version writes and reads.
const FORMAT: &str = "1";
const TIME_DIGITS: usize = 16;
/// How far ahead of the node's clock a counter may start, plus one, in microseconds.
const COUNTER_LEAD: i64 = 1_000_001;
/// How far two readings of a node's clock may be out of order, in microseconds.
const CLOCK_TOLERANCE: i64 = 1_000_000;
/// In a record: no former master, or a memory that is not durable.
const NONE: &str = "-";
const DURABLE: &str = "+";

/// The random id of a memory: 128 bits, 32 hexadecimal digits.
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

    /// Accepts only the text that `Display` writes.
    fn from_str(text: &str) -> Result<Self, ()> {
        let id = u128::from_str_radix(text, 16).map(MemoryId).map_err(|_| ())?;
        (id.to_string() == text).then_some(id).ok_or(())
    }
}

/// A server process, and where its data came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// `run_id` of `INFO`.
    pub(crate) run_id: Arc<str>,
    /// `master_replid2` of `INFO`: the replication history of the data, if the process was a replica. `None` if it was not, or
    /// the server has forgotten.
    pub(crate) former_master: Option<Arc<str>>,
}

/// Whether everything that a server has acknowledged is on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Everything is.
    Full,
    /// Some of it may not be.
    Partial,
    /// The server does not tell.
    Unknown,
}

/// The record of a node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: MemoryId,
    /// When the record was made, in microseconds of the node's clock.
    pub(crate) since: i64,
    /// When the record was last given to another process; zero if never.
    resumed: i64,
    /// Whether everything acknowledged was found to be on disk.
    durable: bool,
    process: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The data is a copy, or an older state: the memory is known to be elsewhere, or to have been put back.
    pub(crate) is_taken: bool,
    /// The data has registrations that have not expired. An old state has none.
    pub(crate) has_registrations: bool,
}

/// What a server is, compared with the record on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The recorded memory. Nothing is to be written.
    Same,
    /// The recorded memory. This record replaces the old one.
    Renamed(Record),
    /// The recorded memory in another process. This record replaces the old one, resumed now.
    Resumed(Record),
    /// A memory that begins now. It gets a record with a new id.
    New,
}

impl Record {
    pub(crate) fn new(id: MemoryId, since: i64, process: Process, durability: Durability) -> Record {
        Record {
            id,
            since,
            resumed: 0,
            durable: durability == Durability::Full,
            process,
        }
    }

    /// Judges the server on which this record was found.
    pub(crate) fn judge(&self, process: &Process, durability: Durability, look: Look) -> Finding {
        let restarted = self.process.run_id != process.run_id;
        let stays = match restarted {
            // A new former master shows that the process was a replica meanwhile: its data came from another server.
            false => process.former_master.is_none() || process.former_master == self.process.former_master,
            // The restart must have kept everything acknowledged. A former master shows a promoted replica.
            true => {
                let kept = self.durable && durability == Durability::Full && process.former_master.is_none();
                kept && look.has_registrations
            }
        };
        if look.is_taken || !stays {
            return Finding::New;
        }
        // A server that was once seen not to be durable counts as such after its next restart. A server that has become durable
        // counts as durable only with its next new record.
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

    /// Returns the beginning of the record, which each request is checked against.
    pub(crate) fn stamp(id: MemoryId) -> String {
        format!("{FORMAT} {id}")
    }

    /// Returns a new record in two parts; the time at which it is made goes between them.
    pub(crate) fn around_since(&self) -> (String, String) {
        let head = format!("{} ", Record::stamp(self.id));
        (head, format!(" {:0TIME_DIGITS$}{}", self.resumed, self.tail()))
    }

    /// Returns the record in two parts; the time at which it is resumed goes between them.
    pub(crate) fn around_resumed(&self) -> (String, String) {
        let head = format!("{} {:0TIME_DIGITS$} ", Record::stamp(self.id), self.since);
        (head, self.tail())
    }

    fn tail(&self) -> String {
        let former = self.process.former_master.as_deref().unwrap_or(NONE);
        let durable = if self.durable { DURABLE } else { NONE };
        format!(" {durable} {} {former}", self.process.run_id)
    }

    /// Returns when the memory began or was last resumed, in microseconds of the node's clock.
    pub(crate) fn began_or_resumed(&self) -> i64 {
        self.since.max(self.resumed)
    }

    /// Returns whether the record is from after `now`, in microseconds of the node's clock. The clock was then put back, and a
    /// guard that counts from the record could last for ever.
    pub(crate) fn is_from_after(&self, now: i64) -> bool {
        self.began_or_resumed() > now.saturating_add(CLOCK_TOLERANCE)
    }

    /// Returns when every client has looked again after a restart, in microseconds of the node's clock, if that takes
    /// `look_period` at most. Clients have noticed an older state by then.
    pub(crate) fn looked_at_from(&self, look_period: Duration) -> i64 {
        let period = i64::try_from(look_period.as_micros()).unwrap_or(i64::MAX);
        self.resumed.saturating_add(period)
    }

    /// Returns when all locks from before the record have expired, in microseconds of the node's clock, if no TTL is longer
    /// than `guard`.
    pub(crate) fn trusted_from(&self, guard: Duration) -> i64 {
        let guard = i64::try_from(guard.as_micros()).unwrap_or(i64::MAX);
        self.since.saturating_add(guard)
    }

    /// Returns the smallest value that a counter of this memory can have: counters start from the time (F5).
    ///
    /// A smaller counter came back with older data. Lost counters may have started a second ahead of the clock, so this value is
    /// larger.
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

    /// Accepts only the text that `Display` writes.
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
        // The case; the record's durability and former master; the server's; the finding.
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
            let copy = Look {
                is_taken: true,
                ..look
            };
            assert_eq!(found.judge(&server, kept, copy), Finding::New, "{case}");
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
