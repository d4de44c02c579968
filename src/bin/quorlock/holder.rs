//! A lock and its holder, for people and for programs.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use quorlock::node::Fault;
use quorlock::{Holder, Inspection, KeyState, KeyValue, LockStatus, NodeInspection};
use serde_json::{Value, json};

use crate::format::{millis, short, time, utc};

/// Returns the holder in words, with the time since its attempt began, by this machine's clock.
pub(crate) fn words(holder: &Holder) -> String {
    format!("{}, since {}", holder.name(), since(holder))
}

/// Returns the time since the holder's attempt began. `None` if that is later than now, by this machine's clock.
pub(crate) fn age(holder: &Holder) -> Option<Duration> {
    SystemTime::now().duration_since(holder.since).ok()
}

pub(crate) fn since(holder: &Holder) -> String {
    let since = humantime::format_rfc3339_seconds(holder.since);
    // Whole seconds: the clocks of two machines differ.
    let ago = age(holder)
        .map(|ago| Duration::from_secs(ago.as_secs()))
        .filter(|ago| !ago.is_zero());
    ago.map_or_else(
        || since.to_string(),
        |ago| format!("{since} ({} ago)", short(ago)),
    )
}

pub(crate) fn document(holder: &Holder) -> Value {
    let info = holder.info.as_deref();
    json!({
        "client": holder.client.to_string(), "since": time(holder.since), "is_this_client": holder.is_this_client,
        "name": info.map(|info| &info.name), "host": info.map(|info| &info.host), "pid": info.map(|info| info.pid),
        "version": info.map(|info| &info.version), "locks": info.map(|info| info.locks),
    })
}

/// Returns one line: who holds the lock, until when, on how many nodes.
pub(crate) fn line(lock: &Inspection) -> String {
    let mut line = match (lock.status, &lock.holder) {
        (LockStatus::Held, Some(holder)) => format!("held by {}", words(holder)),
        (LockStatus::Held, None) if wrong_type(lock) => "not usable: data that is no lock".to_owned(),
        (LockStatus::Held, None) => "held by an unknown client (quorlock 0.1, or another library)".to_owned(),
        (status, Some(holder)) => format!("{status}; keys of {}", words(holder)),
        (status, None) => status.to_string(),
    };
    if lock.keys() > 0 {
        let end = match lock.remaining() {
            Some(left) => format!("expires in {} unless renewed", short(left)),
            None => "has no expiry: never ends by itself".to_owned(),
        };
        let _ = write!(line, ", {end}, on {} of {} nodes", lock.keys(), lock.nodes.len());
    }
    if let Some(counter) = lock.counter() {
        let last = if lock.status == LockStatus::Held {
            ""
        } else {
            "last "
        };
        let _ = write!(line, ", {last}token {counter}");
    }
    if lock.status == LockStatus::Free && lock.counter().is_none() && lock.done_until().is_none() {
        line.push_str(" (no node knows this name)");
    }
    if let Some(until) = lock.done_until() {
        let _ = write!(line, ", done until {}", utc(until));
    }
    line
}

fn wrong_type(lock: &Inspection) -> bool {
    let mut states = lock.nodes.iter().filter_map(|node| node.key.as_ref().ok());
    states.any(|state| state.value == KeyValue::WrongType)
}

/// Returns the object for programs.
pub(crate) fn lock_document(lock: &Inspection) -> Value {
    let status = match lock.status {
        LockStatus::Free => "free",
        LockStatus::Held => "held",
        LockStatus::Partial => "partial",
        _ => "unknown",
    };
    json!({
        "resource": &*lock.resource, "status": status, "holder": lock.holder.as_ref().map(document),
        "owner": lock.owner().map(|owner| owner.value()), "keys": lock.keys(),
        "remaining_ms": lock.remaining().map(millis), "fencing_token": lock.counter(),
        "done_until": lock.done_until().map(time),
        "nodes": lock.nodes.iter().map(node_document).collect::<Vec<_>>(),
    })
}

fn node_document(node: &NodeInspection) -> Value {
    match &node.key {
        Ok(state) => json!({
            "node": &*node.node, "key": kind(&state.value), "owner": owner(state),
            "remaining_ms": state.remaining.map(millis), "counter": state.counter.and_then(|counter| counter.value),
            "counter_remaining_ms": state.counter.and_then(|counter| counter.remaining).map(millis),
        }),
        Err(trouble) => {
            json!({"node": &*node.node, "key": null, "reason": trouble.kind(), "trouble": trouble.to_string()})
        }
    }
}

fn kind(value: &KeyValue) -> &'static str {
    match value {
        KeyValue::Free => "free",
        KeyValue::Owner(_) => "owner",
        KeyValue::WrongType => "wrong_type",
        _ => "other",
    }
}

fn owner(state: &KeyState) -> Option<String> {
    match &state.value {
        KeyValue::Owner(owner) => Some(owner.value()),
        KeyValue::Other(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Returns a node's key in words.
pub(crate) fn node_line(node: &NodeInspection) -> String {
    let state = match &node.key {
        Ok(state) => state,
        Err(trouble) => return unknown(trouble),
    };
    let mut line = match &state.value {
        KeyValue::Free => "free".to_owned(),
        KeyValue::Owner(owner) => format!("owner {}", owner.value()),
        KeyValue::WrongType => "data that is no lock".to_owned(),
        KeyValue::Other(text) => format!("another library's lock, or data: {text:?}"),
        _ => "something unknown".to_owned(),
    };
    match state.remaining {
        Some(left) => {
            let _ = write!(line, ", expires in {}", short(left));
        }
        None if state.is_endless() => line.push_str(", no expiry"),
        None => {}
    }
    if let Some(counter) = state.counter.and_then(|counter| counter.value) {
        let _ = write!(line, ", counter {counter}");
    }
    line
}

fn unknown(trouble: &Fault) -> String {
    format!("unknown: {trouble}")
}
