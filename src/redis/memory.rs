//! Finds out which memory a server is, and gives it a record if its memory begins now (M1).

use super::connection::Setup;
use super::endpoint::Endpoint;
use super::fault;
use super::probe::Facts;
use super::resp::{self, Value};
use crate::doctor::{self, Info};
use crate::node::{Fault, Unfit};
use crate::options::{RECORD_SUFFIX, VIEWS_SUFFIX};
use crate::protocol::memory::{Finding, Look, MemoryId, Record};
use crate::sys::mutex::lock;

const RECORD: &str = include_str!("record.lua");

/// Most times that a record is judged. Another client may write one meanwhile.
const MOST_TRIES: u32 = 8;

pub(super) struct Identity {
    pub(super) record: Record,
    /// Why the server may lose what it has acknowledged. `None` if it keeps everything.
    pub(super) shortcoming: Option<doctor::Finding>,
    /// Our times before and after the node's clock was read, and its reading.
    pub(super) time: (i64, i64, i64),
}

/// Reads the record of a server that is being probed, or makes one.
pub(super) async fn identify(
    setup: &mut Setup,
    endpoint: &Endpoint,
    info: &Info,
    facts: &Facts,
) -> Result<Identity, Fault> {
    let known = endpoint.run_ids.check(endpoint.number, &facts.process.run_id);
    known.map_err(Fault::Unfit)?;
    let (durability, shortcoming) = doctor::settings::durability(info, &fsync_settings(setup).await);
    let new = || {
        Record::new(
            MemoryId::from(uuid::Uuid::new_v4().as_u128()),
            0,
            facts.process.clone(),
            durability,
        )
    };
    let mut seen = exchange(setup, endpoint, Vec::new()).await?;
    for _ in 0..MOST_TRIES {
        let found = match seen.record.parse::<Record>() {
            Ok(record) => Some(record),
            Err(()) if seen.record.is_empty() => None,
            Err(()) => {
                return Err(Fault::Unfit(Unfit::OtherRecord {
                    key: format!("{}{RECORD_SUFFIX}", endpoint.prefix).into(),
                }));
            }
        };
        let finding = found.as_ref().map_or(Finding::New, |record| {
            let is_rejected = *lock(&endpoint.rejected_memory) == Some(record.id);
            let look = Look {
                is_taken: is_rejected
                    || endpoint
                        .run_ids
                        .is_taken(endpoint.number, &facts.process.run_id, record.id)
                    || endpoint.is_outdated(record.id, seen.time.2.saturating_sub(record.since), seen.time.1),
                has_registrations: seen.has_registrations,
            };
            // A guard that counts from a time in the future could last for ever.
            match record.is_from_after(seen.time.2) {
                true => Finding::New,
                false => record.judge(&facts.process, durability, look),
            }
        });
        let mut args = vec![seen.record.clone()];
        match finding {
            Finding::Same => {
                return Ok(Identity {
                    record: found.unwrap_or_else(new),
                    shortcoming,
                    time: seen.time,
                });
            }
            Finding::Renamed(record) => args.push(record.to_string()),
            Finding::Resumed(record) => {
                let (head, tail) = record.around_resumed();
                args.extend([head, tail]);
                tracing::debug!(
                    node = &*endpoint.name,
                    "restarted with all its data: gives new locks again after a look period"
                );
            }
            Finding::New => {
                let (head, tail) = new().around_since();
                args.extend([head, tail]);
                tracing::info!(
                    node = &*endpoint.name,
                    known = found.is_some(),
                    "memory begins: the node may have forgotten locks, so the restart guard leaves it out"
                );
            }
        }
        // Judge again: the record is the one just written, which is right, or another client's.
        seen = exchange(setup, endpoint, args).await?;
    }
    Err(fault::disconnected(
        "its record keeps changing: other clients or programs write it, too".into(),
    ))
}

struct Seen {
    /// Empty if there is none.
    record: String,
    has_registrations: bool,
    time: (i64, i64, i64),
}

/// Reads the record, or replaces it if it is still the one that was read.
async fn exchange(setup: &mut Setup, endpoint: &Endpoint, args: Vec<String>) -> Result<Seen, Fault> {
    let sent = endpoint.time.now();
    let key = |suffix| format!("{}{suffix}", endpoint.prefix);
    let keys = [key(RECORD_SUFFIX), key(VIEWS_SUFFIX)];
    let answer = setup.ask(resp::eval(RECORD, &keys, &args)).await;
    let Value::List(parts) = answer.map_err(fault::of_first_script)? else {
        return Err(nonsense());
    };
    let [record, Value::Integer(registrations), Value::Integer(now)] = &parts[..] else {
        return Err(nonsense());
    };
    Ok(Seen {
        record: record.as_str().ok_or_else(nonsense)?.to_owned(),
        has_registrations: *registrations == 1,
        time: (sent, endpoint.time.now(), *now),
    })
}

fn nonsense() -> Fault {
    Fault::Protocol {
        detail: "an answer to the record script without record and time".into(),
    }
}

/// Returns the settings with `appendfsync` in their name. An empty list: the server does not show them.
pub(super) async fn fsync_settings(setup: &mut Setup) -> Vec<(String, String)> {
    // The pattern also matches `no-appendfsync-on-rewrite`.
    let Ok(Value::List(settings)) = setup
        .ask(resp::command(&["CONFIG", "GET", "*appendfsync*"]))
        .await
    else {
        return Vec::new();
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pairs = settings.chunks_exact(2);
    pairs
        .filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?)))
        .collect()
}
