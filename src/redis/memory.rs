//! Finds out which memory a server is, and gives it a record if its memory begins now (M1).

use super::connection::Setup;
use super::endpoint::Endpoint;
use super::fault;
use super::probe::Facts;
use super::resp::{self, Value};
use crate::node::{Fault, Unfit};
use crate::options::{RECORD_SUFFIX, VIEWS_SUFFIX};
use crate::protocol::memory::{Durability, Finding, Look, MemoryId, Record};
use crate::sys::mutex::lock;

const RECORD: &str = include_str!("record.lua");

/// How often a record is judged again because another client has written one meanwhile.
const MOST_TRIES: u32 = 8;

/// The memory that a server turned out to be.
pub(super) struct Identity {
    pub(super) record: Record,
    /// The warning about how the server keeps what it acknowledges.
    pub(super) shortcoming: Option<String>,
    /// A time of the node's clock, behind two of ours between which it was read.
    pub(super) time: (i64, i64, i64),
}

/// Reads the record of a server that was just probed, or makes one.
pub(super) async fn identify(
    setup: &mut Setup,
    endpoint: &Endpoint,
    facts: &Facts,
) -> Result<Identity, Fault> {
    let known = endpoint.run_ids.check(endpoint.number, &facts.process.run_id);
    known.map_err(Fault::Unfit)?;
    let (durability, shortcoming) = durability(setup, facts).await;
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
            let is_disowned = *lock(&endpoint.disowned) == Some(record.id);
            let look = Look {
                is_taken: is_disowned
                    || endpoint.run_ids.is_taken(endpoint.number, record.id)
                    || endpoint.is_outdated(record.id, seen.time.2.saturating_sub(record.since), seen.time.1),
                has_registrations: seen.has_registrations,
            };
            // A guard that counts from a time to come could last for ever.
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
                tracing::debug!(node = &*endpoint.name, "restarted with all its data");
            }
            Finding::New => {
                let (head, tail) = new().around_since();
                args.extend([head, tail]);
                tracing::info!(
                    node = &*endpoint.name,
                    known = found.is_some(),
                    "memory begins: what the node was told before may be forgotten"
                );
            }
        }
        // Judged again as it is then, whoever has written it: what was written is found to be right.
        seen = exchange(setup, endpoint, args).await?;
    }
    Err(fault::disconnected(
        "its record does not stay as it was written".into(),
    ))
}

/// The record on a server, and what goes with it.
struct Seen {
    /// Empty if there is none.
    record: String,
    has_registrations: bool,
    /// As in [`Identity`].
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
        detail: "no record and time in the answer to the question for them".into(),
    }
}

/// Whether the server keeps everything that it acknowledges; if not, why it is not taken to, and what is to be done about it.
async fn durability(setup: &mut Setup, facts: &Facts) -> (Durability, Option<String>) {
    const ADVICE: &str = "use appendonly yes and appendfsync always";
    let partial = |why| (Durability::Partial, Some(why));
    if facts.forgets {
        return partial(format!(
            "appendonly is off: locks are forgotten in a restart; {ADVICE}"
        ));
    }
    // The pattern finds `no-appendfsync-on-rewrite`, too.
    let settings = match setup
        .ask(resp::command(&["CONFIG", "GET", "*appendfsync*"]))
        .await
    {
        Ok(Value::List(settings)) => settings,
        _ => Vec::new(),
    };
    let setting = |name| {
        let mut pairs = settings.chunks_exact(2);
        pairs.find(|pair| pair[0].as_str() == Some(name))?[1].as_str()
    };
    match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
        (Some("always"), Some("yes")) => partial(format!(
            "no-appendfsync-on-rewrite is yes: the latest locks may be forgotten in a crash; {ADVICE}, without it"
        )),
        (Some("always"), _) => (Durability::Full, None),
        (Some(policy), _) => partial(format!(
            "appendfsync is {policy}: the latest locks may be forgotten in a crash; {ADVICE}"
        )),
        (None, _) => (
            Durability::Unknown,
            Some(
                "whether appendfsync is always cannot be told (the user needs +config|get), so it is taken not to be"
                    .to_owned(),
            ),
        ),
    }
}
