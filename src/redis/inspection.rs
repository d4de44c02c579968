//! Reads what a node has of locks, and lists its keys (H4).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::pipeline::Pipeline;
use super::resp::{self, Value};
use crate::node::{Counter, Fault, KeyPage, KeyState, KeyValue, OwnerToken};
use crate::period::{self, DoneMark};

const INSPECT: &str = include_str!("inspect.lua");
const ENTRIES: usize = 6;
/// The size of a page, approximately: reading it takes the server well below a tenth of a millisecond.
const PAGE: &str = "64";

/// Reads the state of each key.
pub(super) async fn inspect(pipeline: &Pipeline, keys: &[Arc<str>]) -> Result<Vec<KeyState>, Fault> {
    let names: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
    let Value::List(entries) = pipeline.ask_one(resp::eval(INSPECT, &names, &[])).await? else {
        return Err(nonsense());
    };
    entries
        .chunks(ENTRIES)
        .map(|entries| state(entries).ok_or_else(nonsense))
        .collect()
}

/// Lists keys that match a pattern: those of one page.
pub(super) async fn scan(pipeline: &Pipeline, pattern: &str, from: u64) -> Result<KeyPage, Fault> {
    let from = from.to_string();
    let command = resp::command(&["SCAN", &from, "MATCH", pattern, "COUNT", PAGE]);
    let Value::List(answer) = pipeline.ask_one(command).await? else {
        return Err(nonsense());
    };
    let [cursor, Value::List(keys)] = &answer[..] else {
        return Err(nonsense());
    };
    let next: u64 = cursor
        .as_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(nonsense)?;
    // No lock has a name that is not UTF-8.
    let keys = keys.iter().filter_map(Value::as_str).map(Arc::from).collect();
    Ok(KeyPage::new(keys, Some(next).filter(|next| *next != 0)))
}

fn state(entries: &[Value]) -> Option<KeyState> {
    let [kind, text, remaining, counter, counter_remaining, done] = entries else {
        return None;
    };
    let value = match kind.as_i64()? {
        0 => KeyValue::Free,
        1 => value(text)?,
        2 => KeyValue::WrongType,
        _ => return None,
    };
    let counter = match counter.as_str()? {
        "" => None,
        count => Some(Counter::new(count.parse().ok(), lifetime(counter_remaining)?)),
    };
    let done_until = mark(done.as_str()?)
        .filter(|mark| mark.is_plausible(SystemTime::now()))
        .and_then(|mark| period::moment(mark.end_ms));
    let state = KeyState::new(value, lifetime(remaining)?, counter);
    Some(KeyState { done_until, ..state })
}

/// Reads the mark of a period. `None` if it is none.
fn mark(text: &str) -> Option<DoneMark> {
    let (end, length) = text.split_once(':')?;
    Some(DoneMark {
        end_ms: end.parse().ok()?,
        length_ms: length.parse().ok()?,
    })
}

fn value(text: &Value) -> Option<KeyValue> {
    let Value::Text(bytes) = text else { return None };
    let text = String::from_utf8_lossy(bytes);
    Some(match OwnerToken::from_value(&text) {
        Some(owner) => KeyValue::Owner(owner),
        None => KeyValue::Other(text.into()),
    })
}

/// Returns the time of a PTTL. `Some(None)` for a key that never expires, or is missing.
fn lifetime(pttl: &Value) -> Option<Option<Duration>> {
    let millis = pttl.as_i64()?;
    Some(u64::try_from(millis).ok().map(Duration::from_millis))
}

fn nonsense() -> Fault {
    Fault::Protocol {
        detail: "not an answer to an inspection".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn keys_are_read_as_they_are() {
        let owner = OwnerToken::random();
        let ms = |millis| Some(Duration::from_millis(millis));
        for (entries, expected) in [
            (
                [
                    Value::Integer(0),
                    text(""),
                    Value::Integer(-2),
                    text(""),
                    Value::Integer(-2),
                    text("5000:1000"),
                ],
                KeyState {
                    done_until: Some(UNIX_EPOCH + Duration::from_secs(5)),
                    ..KeyState::new(KeyValue::Free, None, None)
                },
            ),
            (
                [
                    Value::Integer(1),
                    text(&owner.value()),
                    Value::Integer(5),
                    text("17"),
                    Value::Integer(-1),
                    // No clock is so far ahead.
                    text("253402300799000:1000"),
                ],
                KeyState::new(KeyValue::Owner(owner), ms(5), Some(Counter::new(Some(17), None))),
            ),
            (
                [
                    Value::Integer(1),
                    text("me"),
                    Value::Integer(-1),
                    text("?"),
                    Value::Integer(9),
                    text("x"),
                ],
                KeyState::new(
                    KeyValue::Other("me".into()),
                    None,
                    Some(Counter::new(None, ms(9))),
                ),
            ),
            (
                [
                    Value::Integer(2),
                    text(""),
                    Value::Integer(-1),
                    text(""),
                    Value::Integer(-2),
                    text("18446744073709551615:1000"),
                ],
                KeyState::new(KeyValue::WrongType, None, None),
            ),
        ] {
            assert_eq!(state(&entries), Some(expected), "{entries:?}");
        }
        let mut short = vec![Value::Integer(0), text("")];
        assert_eq!(state(&short), None);
        short.extend([text("x"), text(""), text(""), text("")]);
        assert_eq!(state(&short), None);
    }
}
