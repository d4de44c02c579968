//! The results of a trial, and whether they keep the promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Client;

use crate::event::FaultEvent;
use crate::fault::{Fault, FaultModel};
use crate::history::resources;
use crate::number;
use crate::order::{Grant, in_order};
use crate::overlaps::{Span, overlaps};
use crate::workers::INTRUDERS;

type Counts = BTreeMap<String, usize>;

pub(crate) struct Report {
    model: FaultModel,
    faults: BTreeMap<Fault, usize>,
    lasted: Duration,
    grants: usize,
    /// How many tokens took a second round.
    raised: i64,
    /// To processes with another list of nodes.
    intruded: usize,
    endings: Counts,
    failures: Counts,
    node_faults: Counts,
    /// Overlaps, by the faults that explain them.
    explained: Counts,
    /// Descriptions of all other overlaps.
    unexplained: Vec<String>,
    writes: usize,
    /// Writes that the fenced table refused: after the end of the lease, and before.
    refused: (usize, usize),
    unfenced: (i64, i64),
    left: Leftovers,
}

/// The number of locks that had keys on some node although no process held them.
pub(crate) struct Leftovers {
    /// When all processes had cleaned up and ended.
    pub(crate) behind: usize,
    /// When the keys of leaked leases had expired, too.
    pub(crate) finally: usize,
}

impl Report {
    /// Panics if tokens are out of order, or a stale write was accepted: no fault excuses that.
    pub(crate) async fn make(
        history: &Client,
        model: FaultModel,
        lasted: Duration,
        faults: BTreeMap<Fault, usize>,
        events: &[FaultEvent],
        left: Leftovers,
    ) -> Report {
        let resources = resources(model.is_guarded());
        tokens_in_order(history, resources).await;
        no_stale_write(history, resources).await;
        let mut report = Report {
            model,
            faults,
            lasted,
            grants: 0,
            raised: number(history, "SELECT count(*) FROM leases WHERE raised").await,
            intruded: 0,
            endings: count(
                history,
                "SELECT coalesce(ending, 'its process ended') FROM leases",
            )
            .await,
            failures: count(history, "SELECT reason FROM failures").await,
            node_faults: count(history, "SELECT unnest(faults) FROM failures").await,
            explained: Counts::new(),
            unexplained: Vec::new(),
            writes: 0,
            refused: (0, 0),
            unfenced: (0, 0),
            left,
        };
        let spans = spans(history).await;
        report.grants = spans.len();
        report.intruded = spans.iter().filter(|span| span.is_intruder).count();
        for overlap in overlaps(&spans) {
            let reasons = overlap.explanations(events, model);
            if reasons.is_empty() {
                report.unexplained.push(overlap.story(events));
            } else {
                let reasons: Vec<String> = reasons.iter().map(|fault| format!("{fault:?}")).collect();
                *report.explained.entry(reasons.join(" + ")).or_default() += 1;
            }
        }
        for row in history
            .query("SELECT value IS NULL, in_time FROM writes", &[])
            .await
            .unwrap()
        {
            report.writes += 1;
            match (row.get(0), row.get(1)) {
                (true, true) => report.refused.1 += 1,
                (true, false) => report.refused.0 += 1,
                (false, _) => {}
            }
        }
        let lost = "SELECT sum(writes)::BIGINT, sum(writes - value)::BIGINT FROM unfenced";
        let row = history.query_one(lost, &[]).await.unwrap();
        report.unfenced = (row.get(0), row.get(1));
        report
    }

    /// Asserts that the locks have kept their promises.
    pub(crate) fn check(&self) {
        let few = &self.unexplained[..self.unexplained.len().min(5)];
        assert!(few.is_empty(), "{}", few.join("\n"));
        if self.model == FaultModel::Promised {
            assert_eq!(self.refused.1, 0, "refused, though the lock was held");
            assert_eq!(self.intruded, 0, "a process with another list of nodes got locks");
        }
        if !self.model.is_guarded() {
            assert!(self.raised > 0, "no second round was ever needed");
            let known = |reason: &String| ["Held", "NoQuorum", "TooLate"].contains(&reason.as_str());
            assert!(
                self.failures.keys().all(known),
                "other failures: {:?}",
                self.failures
            );
        }
        assert_eq!(self.left.behind, 0, "processes ended without cleaning up");
        assert_eq!(self.left.finally, 0, "keys are left on the nodes");
    }

    /// Asserts that faults were reported by name (R5). In a long trial, each of these occurs.
    pub(crate) fn check_names(&self) {
        const NAMES: [&str; 9] = [
            "CannotPersist",
            "Disconnected",
            "Loading",
            "OutOfMemory",
            "Restarted",
            "Server: ERR max number of clients reached",
            "Timeout",
            "Unfit",
            "WrongType",
        ];
        for name in NAMES {
            assert!(
                self.node_faults.contains_key(name),
                "no attempt has reported {name}"
            );
        }
    }
}

/// Returns how often each text occurs in the result.
async fn count(history: &Client, query: &str) -> Counts {
    let mut counts = Counts::new();
    for row in history.query(query, &[]).await.unwrap() {
        *counts.entry(row.get(0)).or_default() += 1;
    }
    counts
}

async fn spans(history: &Client) -> Vec<Span> {
    // A lease that was lost before its deadline ended before its holder learned of that. Its keys are deleted at once, so another
    // client may have acquired the lock by then.
    let query = "
        SELECT resource, token, granters, worker, start,
            CASE WHEN ending IN ('lost: Gone', 'lost: ClockPutForward') THEN seen ELSE least(until, ended) END
        FROM leases ORDER BY start";
    let rows = history.query(query, &[]).await.unwrap();
    let span = |row: &tokio_postgres::Row| Span {
        resource: row.get(0),
        token: row.get(1),
        granters: row.get(2),
        is_intruder: row.get::<_, i64>(3) >= INTRUDERS as i64,
        start: row.get(4),
        end: row.get(5),
    };
    rows.iter().map(span).collect()
}

async fn tokens_in_order(history: &Client, resources: i32) {
    let query = "SELECT token, began, won FROM leases WHERE resource = $1 ORDER BY won";
    for resource in 0..resources {
        let rows = history.query(query, &[&resource]).await.unwrap();
        let grant = |row: &tokio_postgres::Row| Grant {
            token: row.get(0),
            began: row.get(1),
            won: row.get(2),
        };
        let grants: Vec<Grant> = rows.iter().map(grant).collect();
        assert!(
            grants.len() > 10,
            "only {} grants, which shows too little",
            grants.len()
        );
        in_order(&grants);
    }
}

/// I3: in the order in which the writes came about, no token is lower than one before it, and none is missing.
async fn no_stale_write(history: &Client, resources: i32) {
    let query = "SELECT value, token FROM writes WHERE resource = $1 AND value IS NOT NULL ORDER BY value";
    for resource in 0..resources {
        let rows = history.query(query, &[&resource]).await.unwrap();
        let writes: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert!(
            (1..).zip(&writes).all(|(number, (value, _))| number == *value),
            "a fenced write is lost"
        );
        let stale = writes.windows(2).find(|pair| pair[0].1 > pair[1].1);
        assert!(stale.is_none(), "a stale write was accepted: {stale:?}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = self.faults.iter();
        let faults = faults
            .map(|(fault, times)| (format!("{fault:?}"), *times))
            .collect();
        table(f, "faults", &faults)?;
        line(f, "grants", self.grants)?;
        let minutes = self.lasted.as_secs_f64() / 60.0;
        line(f, "grants a minute", (self.grants as f64 / minutes) as u64)?;
        line(f, "grants that took a second round", self.raised)?;
        line(f, "grants to other lists of nodes", self.intruded)?;
        table(f, "how leases ended", &self.endings)?;
        table(f, "attempts that failed", &self.failures)?;
        table(f, "nodes that could not vote then", &self.node_faults)?;
        line(f, "writes to each of two tables", self.writes)?;
        line(f, "refused by the fenced table: too late", self.refused.0)?;
        line(f, "refused although the lock was held", self.refused.1)?;
        line(f, "stale writes that it accepted", 0)?;
        line(f, "updates lost in the unfenced table", self.unfenced.1)?;
        table(f, "overlaps of leases that faults explain", &self.explained)?;
        line(
            f,
            "overlaps of leases without explanation",
            self.unexplained.len(),
        )?;
        line(f, "tokens issued twice, or out of order", 0)?;
        line(f, "locks left by processes that cleaned up", self.left.behind)?;
        line(f, "locks left on nodes", self.left.finally)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{name:<44}{value:>9}")
}

fn table(f: &mut fmt::Formatter<'_>, name: &str, counts: &Counts) -> fmt::Result {
    line(f, name, counts.values().sum::<usize>())?;
    for (what, times) in counts {
        line(f, &format!("    {what}"), times)?;
    }
    Ok(())
}
