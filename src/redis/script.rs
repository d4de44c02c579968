//! The one script: how requests become its arguments, and its answer replies.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;

use super::fault;
use crate::node::{Action, Fault, Fencing, News, OwnerToken, Reply, Request};
use crate::protocol::token::FencingToken;

pub(super) const LOCK: &str = include_str!("lock.lua");

// Counters are positive.
const DONE: i64 = 0;
const TOO_LATE: i64 = -1;
const MISSING: i64 = -2;
const FOREIGN: i64 = -3;

/// The largest number of 16 digits. As a moment, it is in the year 2286.
const LATEST: i64 = 9_999_999_999_999_999;

/// One request on its way to a node.
#[derive(Debug)]
pub(super) struct Item<'a> {
    pub(super) request: &'a Request,
    /// A9: the last moment at which an acquire may act, in microseconds of the node's clock.
    pub(super) latest: i64,
    /// F5: counters below this are from before the node's last start, in microseconds of its clock.
    pub(super) oldest_counter: i64,
    /// The plain SET went ahead; what is left is to ask who holds the key.
    pub(super) only_ask: bool,
}

/// Arguments of `EVALSHA` or `EVAL`: digest or text, the number of keys, the keys, and a packed string for each request.
pub(super) fn arguments(script: Value, items: &[Item<'_>]) -> Vec<Value> {
    let mut args = Vec::with_capacity(2 + 2 * items.len());
    args.push(script);
    args.push(Value::Integer(items.len() as i64));
    args.extend(items.iter().map(|item| Value::from(&*item.request.key)));
    args.extend(items.iter().map(|item| Value::from(packed(item))));
    args
}

fn packed(item: &Item<'_>) -> String {
    let owner = item.request.owner.value();
    let latest = item.latest.clamp(0, LATEST);
    match item.request.action {
        Action::Acquire { .. } if item.only_ask => format!("h{owner}"),
        Action::Acquire {
            ttl, fencing: None, ..
        } => format!("s{owner}{latest:016}{}", millis(ttl)),
        Action::Acquire {
            ttl,
            fencing: Some(fencing),
            ..
        } => format!(
            "a{owner}{latest:016}{start}{ttl}",
            start = start(fencing, item),
            ttl = millis(ttl)
        ),
        Action::Heal { ttl, fencing: None } => format!("s{owner}{latest:016}{}", millis(ttl)),
        Action::Heal {
            ttl,
            fencing: Some((fencing, token)),
        } => format!(
            "m{owner}{latest:016}{start}{token:016}{ttl}",
            start = start(fencing, item),
            token = token.get(),
            ttl = millis(ttl),
        ),
        Action::Raise { token } => format!("f{owner}{:016}", token.get()),
        Action::Extend { ttl } => format!("e{owner}{}", millis(ttl)),
        Action::Release { counter, news } => {
            let news = news.map_or('-', announcement);
            match counter {
                Some(counter) => format!("r{owner}{news}{:016}", counter.get()),
                None => format!("r{owner}{news}"),
            }
        }
    }
}

fn announcement(news: News) -> char {
    match news {
        News::Free => 'f',
        News::PassedOn => 'p',
    }
}

/// Where the releases of a lock are announced.
pub(super) fn channel(key: &str) -> String {
    format!("{key}#free")
}

/// What was published there, if it is an announcement.
pub(super) fn announced(message: &str) -> Option<(OwnerToken, News)> {
    let known = [News::Free, News::PassedOn];
    let (news, owner) = message.split_at_checked(1)?;
    let news = known
        .into_iter()
        .find(|known| news.starts_with(announcement(*known)))?;
    Some((OwnerToken::from_value(owner)?, news))
}

/// How a counter is started: seed, oldest counter, retention.
fn start(fencing: Fencing, item: &Item<'_>) -> String {
    format!(
        "{seed:016}{oldest:016}{retention:016}",
        seed = fencing.seed.get(),
        // Two at least: a counter that was missing shows 1.
        oldest = item.oldest_counter.clamp(2, LATEST),
        retention = fencing.retention.map_or(0, millis).min(LATEST),
    )
}

pub(super) fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}

/// The script's answer: a reply for each request, and the node's time in microseconds where it was looked at.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) replies: Vec<Result<Reply, Fault>>,
    pub(super) node_time: Option<i64>,
}

/// Reads the script's answer to `items`; an answer that makes no sense is a fault of the node.
pub(super) fn read(answer: Value, items: &[Item<'_>]) -> Result<Answer, Fault> {
    let Value::Array(mut entries) = answer else {
        return Err(nonsense(format!("{:?} instead of a list", answer.kind())));
    };
    let node_time = match entries.len().checked_sub(items.len()) {
        Some(0) => None,
        Some(2) => {
            let micros = entries.pop().unwrap_or(Value::Null);
            let seconds = entries.pop().unwrap_or(Value::Null);
            Some(time_of(&seconds, &micros)?)
        }
        _ => {
            return Err(nonsense(format!(
                "{} entries for {} requests",
                entries.len(),
                items.len()
            )));
        }
    };
    let replies = entries
        .into_iter()
        .zip(items)
        .map(|(entry, item)| reply_of(entry, item.request))
        .collect();
    Ok(Answer { replies, node_time })
}

/// `TIME`'s two strings as microseconds.
pub(super) fn time_of(seconds: &Value, micros: &Value) -> Result<i64, Fault> {
    let parse = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    parse(seconds)
        .zip(parse(micros))
        .and_then(|(seconds, micros)| seconds.checked_mul(1_000_000)?.checked_add(micros))
        .ok_or_else(|| nonsense("time is not two numbers".into()))
}

fn reply_of(entry: Value, request: &Request) -> Result<Reply, Fault> {
    let (sets, counts) = match request.action {
        Action::Acquire { fencing, .. } => (true, fencing.is_some()),
        Action::Heal { fencing, .. } => (true, fencing.is_some()),
        _ => (false, false),
    };
    match (entry, request.action) {
        (Value::String(error), _) => Err(fault::from_message(&error)),
        (Value::Integer(TOO_LATE), _) if sets => Err(Fault::TooLate),
        (Value::Integer(DONE), _) if sets && !counts => Ok(Reply::Granted { counter: None }),
        // It was held when the plain SET came, and no longer is.
        (Value::Integer(MISSING), _) if sets => Ok(Reply::Held {
            remaining: Some(Duration::ZERO),
            holder: None,
            listeners: 0,
        }),
        (Value::Array(held), _) if sets => match held.as_slice() {
            [Value::Integer(left), holder, Value::Integer(listeners)] => Ok(Reply::Held {
                remaining: match left {
                    -1 => None,
                    // -2: gone since it was found held. It was held.
                    left => Some(Duration::from_millis(u64::try_from(*left).unwrap_or(0))),
                },
                holder: holder.as_str().and_then(|value| OwnerToken::from_value(&value)),
                listeners: u32::try_from(*listeners).unwrap_or(0),
            }),
            _ => Err(nonsense("held, but not for how long, and by whom".into())),
        },
        (Value::Integer(number), _) if counts => counter_of(number).map(|counter| Reply::Granted {
            counter: Some(counter),
        }),
        (Value::Integer(DONE), Action::Extend { .. }) => Ok(Reply::Extended),
        (Value::Integer(told @ 0..), Action::Release { .. }) => Ok(Reply::Released {
            listeners: u32::try_from(told).unwrap_or(u32::MAX),
        }),
        (Value::Integer(MISSING), _) => Ok(Reply::Missing),
        (Value::Integer(FOREIGN), _) => Ok(Reply::Foreign),
        (Value::Integer(number), Action::Raise { .. }) => {
            counter_of(number).map(|counter| Reply::Raised { counter })
        }
        (other, action) => Err(nonsense(format!("{:?} for {action:?}", other.kind()))),
    }
}

/// F6: what is no token is never issued as one.
fn counter_of(number: i64) -> Result<FencingToken, Fault> {
    FencingToken::try_from(number).map_err(|error| nonsense(format!("fencing counter {number}: {error}")))
}

fn nonsense(detail: String) -> Fault {
    Fault::Protocol {
        detail: Arc::from(detail),
    }
}
