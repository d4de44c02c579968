//! Judges one node.

use std::time::Duration;

use super::facts::{NodeFacts, ServerFacts};
use super::faults::{self, GIVE_MEMORY, REPAIR_DISK};
use super::finding::{Finding, Severity};
use super::info::Info;
use super::rights::{self, Need, SELECT};
use super::settings;
use crate::node::Fault;

/// A limit that is used up to this percentage is nearly reached.
const NEARLY_FULL: u64 = 90;
/// A node should answer in this part of its budget: load makes answers slower by far.
const ROOM: u32 = 10;
/// A write may take this part of the budget: it waits for the disk.
const ROOM_FOR_WRITES: u32 = 3;
const FASTER_DISK: &str = "use a faster disk, which no other program uses";

/// Returns the findings about one node. `budget` is how long it may take to answer.
pub(super) fn judge(node: &NodeFacts, budget: Duration, prefix: &str) -> Vec<Finding> {
    // A server that may not vote needs no other correction first.
    if let Some(fault @ Fault::Unfit(_)) = &node.down {
        return vec![faults::of(fault)];
    }
    let mut findings = refusals(node);
    match &node.server {
        Ok(server) => {
            // A server that refuses everything is told so once.
            let refuses_all = node.down.is_some() && !findings.is_empty();
            let found = of_server(server, node, budget, prefix).into_iter();
            findings.extend(found.filter(|finding| !refuses_all || finding.severity != Severity::Unknown));
        }
        Err(fault) if findings.is_empty() => {
            findings.push(Finding::unknown("the settings of the server", fault, "ask again"));
        }
        Err(_) => {}
    }
    findings
}

/// Returns the findings about why the node gives no locks.
fn refusals(node: &NodeFacts) -> Vec<Finding> {
    let lacks_rights = node.server.as_ref().is_ok_and(|server| {
        let mut lacks = server.lacks.iter();
        lacks.any(|lack| lack.need == Need::Locks)
    });
    let refused = node.write.as_ref().err();
    let mut faults: Vec<&Fault> = match &node.down {
        Some(fault) => vec![fault],
        None => node.left_out.iter().chain(refused).collect(),
    };
    // Missing rights are named one by one, and other lists are told once for the whole set.
    faults.retain(|fault| match fault {
        Fault::NoPermission { .. } => !lacks_rights,
        Fault::OtherNodes(_) => false,
        _ => true,
    });
    faults.into_iter().map(faults::of).collect()
}

fn of_server(server: &ServerFacts, node: &NodeFacts, budget: Duration, prefix: &str) -> Vec<Finding> {
    let mut findings = rights::judge(&server.lacks, prefix);
    // Without it, nothing else was asked.
    if server.lacks.iter().any(|lack| lack.name == SELECT) {
        return findings;
    }
    match &server.info {
        Some(info) => {
            let (_, durability) = settings::durability(info, &server.fsync);
            let is_told = |finding: &Finding| findings.iter().any(|found| found.code == finding.code);
            let durability = durability.filter(|finding| !is_told(finding));
            findings.extend(durability);
            findings.extend(settings::eviction(info));
            findings.extend(persistence(info, node));
            findings.extend(memory(info, node));
            findings.extend(connections(info));
            findings.extend(replicas(info));
        }
        None => findings.push(Finding::unknown(
            "persistence, eviction, memory and replicas",
            "INFO was refused",
            "correct the rights of the user, and ask again",
        )),
    }
    findings.extend(speed(server, node, budget));
    findings.extend(disk(server, budget));
    findings.extend(fail_over(server));
    if !server.elsewhere.is_empty() {
        let others = server.elsewhere.join(", ");
        findings.push(Finding::error(
            "several_servers",
            format!("its name leads to other servers, too: {others}"),
            "let all addresses of the name lead to one server",
        ));
    }
    findings
}

/// Returns the findings about writes to disk that failed. A refused write has told the consequence already.
fn persistence(info: &Info, node: &NodeFacts) -> Vec<Finding> {
    if matches!(node.write, Err(Fault::CannotPersist)) {
        return Vec::new();
    }
    let failed = |field: &str| info.text(field).is_some_and(|status| status != "ok");
    let advice = REPAIR_DISK;
    let mut findings = Vec::new();
    if failed("aof_last_write_status") {
        let seen = "the last write to the append-only file failed (aof_last_write_status): locks are refused, or \
                    forgotten in a restart";
        findings.push(Finding::error("aof_write_failed", seen, advice));
    }
    if failed("aof_last_bgrewrite_status") {
        let seen = "the append-only file could not be rewritten (aof_last_bgrewrite_status): it grows until the \
                    disk is full";
        findings.push(Finding::warning("aof_rewrite_failed", seen, advice));
    }
    if failed("rdb_last_bgsave_status") {
        let seen = "the last snapshot failed (rdb_last_bgsave_status): while snapshots are on, the server \
                    refuses all writes, unless stop-writes-on-bgsave-error is no";
        let advice = format!("turn snapshots off (save \"\"), then take one by hand (BGSAVE); or {advice}");
        findings.push(Finding::warning("snapshot_failed", seen, advice));
    }
    findings
}

/// Warns before the server is out of memory.
fn memory(info: &Info, node: &NodeFacts) -> Option<Finding> {
    let most = info.number("maxmemory").filter(|most| *most > 0)?;
    let used = info.number("used_memory")?;
    let is_told = matches!(node.write, Err(Fault::OutOfMemory));
    (!is_told && is_nearly(used, most)).then(|| {
        let seen = format!(
            "{} % of maxmemory are used: a full server refuses locks",
            used.saturating_mul(100) / most
        );
        Finding::warning("memory_nearly_full", seen, GIVE_MEMORY)
    })
}

/// Warns before the server refuses connections.
fn connections(info: &Info) -> Option<Finding> {
    let (open, most) = (info.number("connected_clients")?, info.number("maxclients")?);
    is_nearly(open, most).then(|| {
        let seen = format!("{open} of {most} connections are open (maxclients): further clients are refused");
        let advice = "raise maxclients: each process needs three connections";
        Finding::warning("connections_nearly_full", seen, advice)
    })
}

fn is_nearly(used: u64, most: u64) -> bool {
    most > 0 && used.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL)
}

fn replicas(info: &Info) -> Option<Finding> {
    let replicas = info.number("connected_slaves").filter(|replicas| *replicas > 0)?;
    Some(Finding::warning(
        "replicas_connected",
        format!(
            "it has {replicas} connected: a promoted replica lacks its master's latest locks",
            replicas = counted(replicas, "replica")
        ),
        "disconnect them, and put no fail-over in front of the node",
    ))
}

fn fail_over(server: &ServerFacts) -> Option<Finding> {
    match server.sentinels {
        None => Some(Finding::unknown(
            "whether a sentinel watches it",
            "PUBSUB NUMSUB was refused",
            "give the user +pubsub|numsub to have it checked",
        )),
        Some(0) => None,
        Some(_) => Some(Finding::warning(
            "watched_by_sentinel",
            "a sentinel watches it: after a fail-over it is a replica, and gives no locks",
            "remove it from the sentinels' configuration (SENTINEL REMOVE)",
        )),
    }
}

fn speed(server: &ServerFacts, node: &NodeFacts, budget: Duration) -> Option<Finding> {
    let advice = "use a longer TTL or nearer nodes, and look for slow commands (SLOWLOG)";
    let took = server.round_trip;
    let shown = |took: Duration| humantime::format_duration(Duration::from_micros(as_micros(took)));
    if took * ROOM > budget {
        let seen = format!(
            "a round trip takes {}, and a node has {} (a tenth of the TTL)",
            shown(took),
            shown(budget)
        );
        return Some(match took < budget {
            true => Finding::warning("slow_answers", seen, advice),
            false => Finding::error("slow_answers", seen, advice),
        });
    }
    let written = *node.write.as_ref().ok()?;
    (written * ROOM_FOR_WRITES > budget).then(|| {
        let seen = format!(
            "a write took {}, and a node has {} (a tenth of the TTL)",
            shown(written),
            shown(budget)
        );
        Finding::warning("slow_write", seen, FASTER_DISK)
    })
}

fn disk(server: &ServerFacts, budget: Duration) -> Option<Finding> {
    let delayed = server
        .info
        .as_ref()
        .and_then(|info| info.number("aof_delayed_fsync"));
    if let Some(delayed) = delayed.filter(|delayed| *delayed > 0) {
        let seen = format!(
            "the disk was too slow {} (aof_delayed_fsync)",
            counted(delayed, "time")
        );
        let advice = format!("{FASTER_DISK}; CONFIG RESETSTAT forgets it");
        return Some(Finding::warning("slow_disk", seen, advice));
    }
    let Some(delays) = &server.delays else {
        return Some(Finding::unknown(
            "whether its disk is slow",
            "LATENCY LATEST was refused",
            "give the user +latency|latest to have it checked",
        ));
    };
    let limit = i64::try_from((budget / ROOM_FOR_WRITES).as_millis()).unwrap_or(i64::MAX);
    let slow = delays
        .iter()
        .find(|(event, longest)| event.starts_with("aof-") && *longest > limit);
    slow.map(|(event, longest)| {
        let seen = format!("a write to its disk took {longest} ms (LATENCY: {event})");
        let advice = format!("{FASTER_DISK}; LATENCY RESET forgets the delay");
        Finding::warning("slow_disk", seen, advice)
    })
}

pub(super) fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
