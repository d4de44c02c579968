//! Checks the invariants of a run, in true time:
//!
//! * I1: leases on one resource never overlap.
//! * I2: a later lease has a larger token, and no two leases have the same.
//! * I3: the store accepts no write of a lease after one of a later lease.
//! * I4: no lease is held beyond its deadline, and its loss is reported by then.
//! * I5: a shutdown ends in time, and leaves neither keys nor tasks.
//! * I6: after all faults, every lock can be acquired.

use std::collections::BTreeMap;

use crate::client::Pause;
use crate::ledger::{End, Grant, Records};
use crate::plan::Plan;
use crate::store::{Write, WriteOutcome};

/// How late timers may be, in microseconds.
const TIMERS: i64 = 2_000;
/// How much later a loss may be reported after a suspension.
const CHECK_INTERVAL: i64 = 100_000;

/// Checks the writes that the store accepts (I3).
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// Of the leases whose writes were accepted: the latest start of an acquire, and its grant, by resource.
    youngest: BTreeMap<usize, (u64, usize)>,
}

impl Accepted {
    pub(crate) fn look(&mut self, records: &mut Records, write: Write, written: WriteOutcome) {
        if written == WriteOutcome::Stale {
            records.tally.count("stale write refused by the store");
            return;
        }
        records.tally.count("I3 checked");
        let (began, returned) = (
            records.grants[write.grant].began,
            records.grants[write.grant].returned,
        );
        let youngest = self
            .youngest
            .entry(write.resource)
            .or_insert((began, write.grant));
        if returned < youngest.0 {
            let (older, newer) = (&records.grants[write.grant], &records.grants[youngest.1]);
            let what = format!("I3: the store accepted a write by {older:?} after one by {newer:?}");
            records.violated(what);
        } else if began > youngest.0 {
            *youngest = (began, write.grant);
        }
    }
}

impl Grant {
    /// Returns until when the holder could take the lease for valid, in microseconds.
    fn end(&self) -> i64 {
        let announced = [self.ended.map(|(at, _)| at), self.lost.map(|(at, _)| at)];
        announced
            .into_iter()
            .flatten()
            .map(|at| at as i64 * 1_000)
            .fold(self.deadline, i64::min)
    }
}

pub(crate) fn history(records: &mut Records, plan: &Plan, pauses: &[Vec<Pause>]) {
    for resource in 0..plan.fenced.len() {
        let mut grants: Vec<Grant> = records
            .grants
            .iter()
            .filter(|grant| grant.resource == resource)
            .cloned()
            .collect();
        grants.sort_by_key(|grant| grant.returned);
        exclusion(records, plan, &grants);
        takeovers(records, &grants);
        if plan.counters_keep_order {
            order(records, grants);
        }
    }
    let grants = records.grants.clone();
    for grant in &grants {
        announcement(records, grant, plan, &pauses[grant.client]);
    }
}

/// Checks that leases do not overlap (I1).
fn exclusion(records: &mut Records, plan: &Plan, grants: &[Grant]) {
    let mut last: Option<&Grant> = None;
    for grant in grants {
        if let Some(before) = last
            && (grant.returned as i64 * 1_000) < before.end()
        {
            if plan.excludes() {
                records.violated(format!("I1: {grant:?} overlaps with {before:?}"));
            } else {
                records.tally.count("overlap, where allowed");
            }
        }
        if plan.excludes() {
            records.tally.count("I1 checked");
        }
        if last.is_none_or(|before| before.end() < grant.end()) {
            last = Some(grant);
        }
    }
}

fn takeovers(records: &mut Records, grants: &[Grant]) {
    for pair in grants.windows(2) {
        if pair[0].lost.is_some() || matches!(pair[0].ended, Some((_, End::Forgotten))) {
            records.tally.count("takeover after a loss");
        }
    }
}

/// Checks the order of tokens (I2).
fn order(records: &mut Records, mut grants: Vec<Grant>) {
    grants.retain(|grant| grant.token.is_some());
    let by_return = grants.clone();
    grants.sort_by_key(|grant| grant.began);
    let mut earlier = by_return.iter().peekable();
    let mut largest: Option<&Grant> = None;
    for grant in &grants {
        while let Some(before) = earlier.next_if(|before| before.returned < grant.began) {
            if largest.is_none_or(|largest| largest.token < before.token) {
                largest = Some(before);
            }
        }
        records.tally.count("I2 checked");
        if let Some(before) = largest.filter(|before| before.token >= grant.token) {
            records.violated(format!("I2: {grant:?} came after {before:?}"));
        }
    }
    grants.sort_by_key(|grant| grant.token);
    for pair in grants.windows(2) {
        if pair[0].token == pair[1].token {
            records.violated(format!("I2: the same token for {:?} and {:?}", pair[0], pair[1]));
        }
    }
}

/// Checks when the end of a lease was reported (I4).
fn announcement(records: &mut Records, grant: &Grant, plan: &Plan, pauses: &[Pause]) {
    if grant.lowered || matches!(grant.lost, Some((_, true))) {
        // Then the deadline may have passed before any answer showed the step.
        if plan.clocks_behave {
            records.violated(format!(
                "no clock was put forward, but the deadline of {grant:?} became earlier"
            ));
        }
        return;
    }
    let ended = grant.ended.map(|(at, _)| at);
    let Some(told) = grant.lost.map(|(at, _)| at).into_iter().chain(ended).min() else {
        return records.violated(format!("I4: the end of {grant:?} was not reported"));
    };
    let told = told as i64 * 1_000;
    let mut late = told - grant.deadline;
    for pause in pauses {
        let (from, to) = (pause.from as i64 * 1_000, pause.to as i64 * 1_000);
        late -= (told.min(to) - from.max(grant.deadline)).max(0);
        if pause.suspended && to <= told && to + CHECK_INTERVAL >= grant.deadline {
            late -= CHECK_INTERVAL;
        }
    }
    if late > TIMERS && !matches!(grant.ended, Some((_, End::Forgotten))) {
        records.violated(format!(
            "I4: the end of {grant:?} was reported {late} us too late, pauses {pauses:?}"
        ));
    }
}
