//! `quorlock locks`: lists the locks on the nodes, and who holds them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use quorlock::{ClientId, Holder, Inspection, Leak, LockStatus};
use serde_json::{Value, json};

use crate::args::Locks;
use crate::event::{Event, Weight};
use crate::exit::{self, Failure};
use crate::format::counted;
use crate::nodes::{look, not_listed, quorum};
use crate::report::{Report, escape_control_characters};
use crate::{holder, nodes, out};

/// Stands for all holders that their keys do not name.
const UNKNOWN: &str = "clients that their keys do not name (quorlock 0.1, or another library)";

pub(crate) async fn locks(arguments: Locks, report: &Report) -> Result<u8, Failure> {
    let redlock = look(&arguments.existing).await?;
    let mut locks = match arguments.leaked {
        true => redlock.locks_and_counters(&arguments.pattern),
        false => redlock.locks(&arguments.pattern),
    };
    let mut holders = Holders::default();
    let mut found = 0_u64;
    while let Some(lock) = locks.next().await {
        if arguments.leaked {
            let leaks = lock.leaks(!arguments.endless_counters);
            if leaks.is_empty() {
                continue;
            }
            if !out::print_one(
                report,
                || leak_document(&lock, &leaks),
                || leak_line(&lock, &leaks),
            )? {
                return Ok(exit::OK);
            }
        } else if arguments.holders {
            holders.count(&lock);
        } else if !out::print_one(report, || holder::lock_document(&lock), || line(&lock))? {
            return Ok(exit::OK);
        }
        found += 1;
    }
    if arguments.holders {
        for (holder, count) in holders.all() {
            out::print(
                report,
                || holder_document(holder, count),
                || holder_line(holder, count),
            )?;
        }
    }
    let faults: Vec<String> = locks
        .faults()
        .map(|(node, fault)| format!("{node}: {}", not_listed(fault)))
        .collect();
    let mut forgetful = nodes::forgetful(&redlock);
    forgetful.retain(|(node, _)| locks.faults().all(|(faulty, _)| faulty != node));
    nodes::warn_of_forgetful(&forgetful, report);
    let nodes = redlock.nodes().len();
    if !faults.is_empty() {
        report.event(&Event::Log {
            weight: Weight::Warning,
            text: &format!(
                "some nodes were not read to the end, so locks may be missing: {}",
                faults.join("; ")
            ),
        });
    }
    if nodes - faults.len() - forgetful.len() < quorum(nodes) {
        return Ok(exit::NO_QUORUM);
    }
    if found == 0 && !report.is_json() {
        let what = if arguments.leaked {
            "nothing is left behind"
        } else {
            "no locks"
        };
        out::print(report, || Value::Null, || format!("{what}\n"))?;
    }
    Ok(exit::OK)
}

/// Returns a lock and its holder as a line.
pub(crate) fn line(lock: &Inspection) -> String {
    escape_control_characters(&format!("{}: {}", lock.resource, holder::line(lock))) + "\n"
}

fn leak_line(lock: &Inspection, leaks: &[Leak]) -> String {
    let leaks: Vec<String> = leaks.iter().map(Leak::to_string).collect();
    let line = format!("{}: {}; {}", lock.resource, leaks.join("; "), holder::line(lock));
    escape_control_characters(&line) + "\n"
}

fn leak_document(lock: &Inspection, leaks: &[Leak]) -> Value {
    let mut document = holder::lock_document(lock);
    document["leaks"] = leaks.iter().map(leak_name).collect();
    document
}

pub(crate) fn leak_name(leak: &Leak) -> &'static str {
    match leak {
        Leak::Endless => "no_expiry",
        Leak::WrongType => "wrong_type",
        Leak::Partial => "partial",
        Leak::EndlessCounter => "counter_without_expiry",
        _ => "other",
    }
}

/// How many locks each client holds. Grows with the number of clients, not of locks.
#[derive(Default)]
struct Holders {
    known: BTreeMap<ClientId, (Holder, u64)>,
    unknown: u64,
}

impl Holders {
    fn count(&mut self, lock: &Inspection) {
        if lock.status != LockStatus::Held {
            return;
        }
        let Some(holder) = &lock.holder else {
            self.unknown += 1;
            return;
        };
        let (known, count) = self
            .known
            .entry(holder.client)
            .or_insert_with(|| (holder.clone(), 0));
        known.since = known.since.min(holder.since);
        known.info = known.info.take().or_else(|| holder.info.clone());
        *count += 1;
    }

    /// Returns the clients with the most locks first. `None` stands for all that do not tell.
    fn all(&self) -> Vec<(Option<&Holder>, u64)> {
        let mut all: Vec<_> = self
            .known
            .values()
            .map(|(holder, count)| (Some(holder), *count))
            .collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        if self.unknown > 0 {
            all.push((None, self.unknown));
        }
        all
    }
}

fn holder_line(holder: Option<&Holder>, count: u64) -> String {
    let locks = counted(count, "lock");
    let Some(holder) = holder else {
        return format!("{UNKNOWN}: {locks}\n");
    };
    let (name, since) = (holder.name(), holder::since(holder));
    format!(
        "{}: {locks}, the oldest since {since}\n",
        escape_control_characters(&name)
    )
}

fn holder_document(holder: Option<&Holder>, count: u64) -> Value {
    let oldest = holder
        .map(|holder| holder.since)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    json!({
        "holder": holder.map(holder::document), "locks": count,
        "oldest": holder.map(|_| humantime::format_rfc3339_millis(oldest).to_string()),
    })
}
