//! Encodes requests as arguments of the lock script, and decodes its answers.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::bytes::{BufMut, BytesMut};

use super::fault;
use super::resp::{self, Value};
use crate::node::{
    Action, Announcement, Fault, Fencing, LONGEST_SLOT, OwnerToken, ReleaseKind, ReleaseNotice, Reply,
    Request, Sender, Successor, Turn, WaitNotice, WaiterId,
};
use crate::options::RECORD_SUFFIX;
use crate::period::DoneMark;
use crate::protocol::memory::Record;
use crate::protocol::token::FencingToken;

pub(super) const LOCK: &str = include_str!("lock.lua");

// The script's replies. Counters are positive, and NOTIFIED never answers a request for a counter.
const NOTIFIED: i64 = 1;
const DONE: i64 = 0;
const TOO_LATE: i64 = -1;
const MISSING: i64 = -2;
const FOREIGN: i64 = -3;
const OTHER_MEMORY: i64 = -4;
const TOO_EARLY: i64 = -5;

/// The largest number of 16 digits. As a moment, it is in the year 2286.
const LATEST: i64 = 9_999_999_999_999_999;

/// What each call over a connection says of the memory that the connection leads to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) record_key: Arc<str>,
    /// The beginning of the record, and the suffix of this database's channels.
    pub(super) stamp: Arc<str>,
    pub(super) record: Record,
    /// With a guard, a new memory counts for nothing during this time. Every client looks at its nodes again within it.
    pub(super) look_period: Duration,
}

impl Target {
    pub(super) fn new(prefix: &str, database: u8, record: Record, look_period: Duration) -> Target {
        Target {
            record_key: format!("{prefix}{RECORD_SUFFIX}").into(),
            stamp: format!("{}{}", Record::stamp(record.id), channel_suffix(database)).into(),
            record,
            look_period,
        }
    }

    /// Returns the first moment, on the node's clock, at which the node gives a lock with this guard.
    pub(super) fn locks_from(&self, guard: Option<Duration>) -> i64 {
        guard.map_or(0, |guard| {
            let trusted = self.record.trusted_from(guard.saturating_add(self.look_period));
            trusted.max(self.record.looked_at_from(self.look_period))
        })
    }

    /// Returns the first moment at which the node's confirmation of an extension counts.
    pub(super) fn renewals_from(&self, guarded: bool) -> i64 {
        match guarded {
            true => self.record.trusted_from(self.look_period),
            false => 0,
        }
    }

    /// Returns the fault of a node that counts only from `earliest` on, while its clock shows `now`. `None` if it counts already.
    pub(super) fn too_early(&self, earliest: i64, now: i64) -> Option<Fault> {
        let micros = |span: i64| Duration::from_micros(u64::try_from(span).unwrap_or(0));
        (now < earliest).then(|| Fault::Restarted {
            ago: micros(now.saturating_sub(self.record.began_or_resumed())),
            remaining: micros(earliest.saturating_sub(now)),
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) request: &'a Request,
    /// The last moment at which the request may set a key or let it live on, in microseconds of the node's clock (A9).
    pub(super) latest: i64,
}

impl Item<'_> {
    /// Returns whether the script reads the time for the request.
    fn is_timed(&self) -> bool {
        matches!(
            self.request.action,
            Action::Acquire { .. } | Action::Heal { .. } | Action::Extend { .. }
        )
    }

    /// Returns the first moment at which the request counts on this memory.
    fn earliest(&self, target: &Target) -> i64 {
        match self.request.action {
            Action::Acquire { guard, .. } => target.locks_from(guard),
            Action::Extend { guarded, .. } => target.renewals_from(guarded),
            _ => 0,
        }
    }
}

/// Appends a call of the script, by its digest or else by its text, with a key and a packed string for each request.
pub(super) fn encode<'a>(
    digest: Option<&str>,
    target: &Target,
    items: impl ExactSizeIterator<Item = Item<'a>> + Clone,
    to: &mut BytesMut,
) {
    let keys = items.len() + 1;
    resp::head(3 + 2 * keys, to);
    match digest {
        Some(digest) => {
            resp::word(b"EVALSHA", to);
            resp::word(digest.as_bytes(), to);
        }
        None => {
            resp::word(b"EVAL", to);
            resp::word(LOCK.as_bytes(), to);
        }
    }
    let mut packed = BytesMut::with_capacity(LONGEST);
    resp::digits(keys as u64, &mut packed);
    resp::word(&packed, to);
    items
        .clone()
        .for_each(|item| resp::word(item.request.key.as_bytes(), to));
    resp::word(target.record_key.as_bytes(), to);
    for item in items {
        packed.clear();
        pack(&item, target, &mut packed);
        resp::word(&packed, to);
    }
    resp::word(target.stamp.as_bytes(), to);
}

/// Longest packed request: a heal with fencing.
const LONGEST: usize = 1 + 36 + 6 * DIGITS + 20;

/// Digits of each number in a packed request: the operation's letter, the owner token, numbers, then the TTL.
const DIGITS: usize = 16;

fn pack(item: &Item<'_>, target: &Target, to: &mut BytesMut) {
    let mut head = |operation| {
        to.put_u8(operation);
        to.extend_from_slice(&item.request.owner.text());
    };
    let times = |to: &mut BytesMut| {
        padded(item.latest.clamp(0, LATEST) as u64, to);
        padded(item.earliest(target).clamp(0, LATEST) as u64, to);
    };
    match item.request.action {
        Action::Acquire {
            ttl, fencing: None, ..
        }
        | Action::Heal { ttl, fencing: None } => {
            head(b's');
            times(to);
            resp::digits(millis(ttl) as u64, to);
        }
        Action::Acquire {
            ttl,
            fencing: Some(fencing),
            ..
        } => {
            head(b'a');
            times(to);
            start(fencing, target, to);
            resp::digits(millis(ttl) as u64, to);
        }
        Action::Heal {
            ttl,
            fencing: Some((fencing, token)),
        } => {
            head(b'm');
            times(to);
            start(fencing, target, to);
            padded(token.get(), to);
            resp::digits(millis(ttl) as u64, to);
        }
        Action::Raise { token } => {
            head(b'f');
            padded(token.get(), to);
        }
        Action::Extend { ttl, .. } => {
            head(b'e');
            times(to);
            resp::digits(millis(ttl) as u64, to);
        }
        Action::Release { counter, notice, .. } => {
            let keep = item.request.action.keeps_for();
            head(if keep.is_some() { b'k' } else { b'r' });
            padded(counter.map_or(0, FencingToken::get), to);
            if let Some(keep) = keep {
                // Rounded up, so that the key is never gone early.
                padded((millis(keep) + 1).clamp(0, LATEST) as u64, to);
            }
            if let Some(ReleaseNotice { kind, turn }) = notice {
                to.put_u8(letter(kind));
                if let Some(Turn { from, next }) = turn {
                    sender(from, to);
                    if let Some(Successor { id, slot }) = next {
                        let _ = write!(to, "{:016x}{:03}", id.0, slot_millis(slot));
                    }
                }
            }
        }
        Action::Mark { set } => {
            head(b'd');
            let (mark, life, last) = set.map_or((DoneMark::default(), 0, 0), |set| {
                (set.mark, millis(set.ttl).min(LATEST), set.latest_plausible_ms)
            });
            for number in [mark.end_ms, mark.length_ms, life as u64, last] {
                padded(number, to);
            }
        }
        Action::Announce(WaitNotice { from, slot }) => {
            to.put_u8(b'w');
            sender(from, to);
            let _ = write!(to, "{:03}", slot_millis(slot));
        }
    }
}

fn letter(kind: ReleaseKind) -> u8 {
    match kind {
        ReleaseKind::Free => b'f',
        ReleaseKind::HandedOver => b'p',
        ReleaseKind::Abandoned => b'g',
    }
}

/// Appends a process: its number in 16 hexadecimal digits, its count of announcements in 8. A slot has 3 decimal digits (ms).
fn sender(Sender { id, count }: Sender, to: &mut BytesMut) {
    let _ = write!(to, "{:016x}{count:08x}", id.0);
}

fn slot_millis(slot: Duration) -> u128 {
    slot.min(LONGEST_SLOT).as_millis()
}

/// Returns the channel of a lock's announcements. It names the database, because all databases share their channels.
pub(super) fn channel(key: &str, database: u8) -> String {
    format!("{key}#free{}", channel_suffix(database))
}

fn channel_suffix(database: u8) -> String {
    match database {
        0 => String::new(),
        database => format!("@{database}"),
    }
}

/// Reads an announcement. `None` if the text is something else: any client may publish there.
pub(super) fn announced(text: &str) -> Option<Announcement> {
    let mut rest = text;
    let kind = match field(&mut rest, 1)? {
        "f" => ReleaseKind::Free,
        "p" => ReleaseKind::HandedOver,
        "g" => ReleaseKind::Abandoned,
        "w" => {
            let (from, slot) = (read_sender(&mut rest)?, read_slot(&mut rest)?);
            return rest
                .is_empty()
                .then_some(Announcement::Wait(WaitNotice { from, slot }));
        }
        _ => return None,
    };
    let owner = OwnerToken::from_value(field(&mut rest, 36)?)?;
    // There is no turn if the lock was abandoned, or if an earlier version announced the release.
    let turn = match rest.is_empty() {
        true => None,
        false => Some(Turn {
            from: read_sender(&mut rest)?,
            next: match rest.is_empty() {
                true => None,
                false => Some(Successor {
                    id: read_id(&mut rest)?,
                    slot: read_slot(&mut rest)?,
                }),
            },
        }),
    };
    rest.is_empty()
        .then_some(Announcement::Release(owner, ReleaseNotice { kind, turn }))
}

/// Takes bytes off the text. `None` if there are too few.
fn field<'a>(rest: &mut &'a str, length: usize) -> Option<&'a str> {
    let (field, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(field)
}

fn read_sender(rest: &mut &str) -> Option<Sender> {
    let id = read_id(rest)?;
    let count = u32::try_from(number(field(rest, 8)?, 16)?).ok()?;
    Some(Sender { id, count })
}

fn read_id(rest: &mut &str) -> Option<WaiterId> {
    number(field(rest, 16)?, 16).map(WaiterId)
}

fn read_slot(rest: &mut &str) -> Option<Duration> {
    let slot = Duration::from_millis(number(field(rest, 3)?, 10)?);
    (slot <= LONGEST_SLOT).then_some(slot)
}

/// Reads a number of digits only, without a sign.
fn number(digits: &str, radix: u32) -> Option<u64> {
    let is_digit = |digit: char| digit.is_digit(radix) && !digit.is_ascii_uppercase();
    digits
        .chars()
        .all(is_digit)
        .then(|| u64::from_str_radix(digits, radix).ok())?
}

/// Appends how a counter is started: seed, oldest counter, retention.
fn start(fencing: Fencing, target: &Target, to: &mut BytesMut) {
    padded(fencing.seed.get(), to);
    // At least 2: INCR makes 1 of a missing counter, which must count as too old.
    padded(target.record.oldest_counter().clamp(2, LATEST) as u64, to);
    padded(fencing.retention.map_or(0, millis).min(LATEST) as u64, to);
}

/// Appends a number of [`DIGITS`] digits.
fn padded(number: u64, to: &mut BytesMut) {
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    to.extend_from_slice(&digits);
}

pub(super) fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}

/// The script's answer: a reply for each request, and the node's time in microseconds if the script has read it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) replies: Vec<Result<Reply, Fault>>,
    pub(super) node_time: Option<i64>,
}

/// Decodes the script's answer to `items`. A malformed answer is a fault of the node.
pub(super) fn read<'a>(
    answer: Value,
    target: &Target,
    items: impl ExactSizeIterator<Item = Item<'a>> + Clone,
) -> Result<Answer, Fault> {
    let Value::List(mut entries) = answer else {
        return Err(nonsense(format!("{} instead of a list", answer.kind())));
    };
    // The time follows the replies, if a request needs it.
    let timed = items.clone().any(|item| item.is_timed());
    if entries.len() != items.len() + usize::from(timed) {
        let count = entries.len();
        return Err(nonsense(format!("{count} entries for {} requests", items.len())));
    }
    let node_time = match entries.pop_if(|_| timed) {
        Some(Value::Integer(time)) => Some(time),
        Some(other) => return Err(nonsense(format!("{} instead of the time", other.kind()))),
        None => None,
    };
    let replies = entries
        .into_iter()
        .zip(items)
        .map(|(entry, item)| match (entry, node_time) {
            (Value::Integer(TOO_EARLY), Some(now)) => Err(target
                .too_early(item.earliest(target), now)
                .unwrap_or_else(|| nonsense("refused as too early, but it was not".into()))),
            (entry, _) => reply_of(entry, item.request),
        })
        .collect();
    Ok(Answer { replies, node_time })
}

fn reply_of(entry: Value, request: &Request) -> Result<Reply, Fault> {
    let (sets, counts) = match request.action {
        Action::Acquire { fencing, .. } => (true, fencing.is_some()),
        Action::Heal { fencing, .. } => (true, fencing.is_some()),
        _ => (false, false),
    };
    let needs_key = !sets && !matches!(request.action, Action::Announce(_));
    match (entry, request.action) {
        (Value::Text(error), _) => Err(fault::from_message(&String::from_utf8_lossy(&error))),
        (Value::Integer(OTHER_MEMORY), action) if !matches!(action, Action::Release { .. }) => {
            Err(Fault::OtherMemory)
        }
        (Value::Integer(TOO_LATE), action) if sets || matches!(action, Action::Extend { .. }) => {
            Err(Fault::TooLate)
        }
        (Value::Integer(DONE), _) if sets && !counts => Ok(Reply::Granted { counter: None }),
        // The key was held at the SET, and gone at the GET.
        (Value::Integer(MISSING), _) if sets => Ok(Reply::Held {
            remaining: Some(Duration::ZERO),
            holder: None,
        }),
        (Value::List(held), _) if sets => match held.as_slice() {
            [Value::Integer(left), holder] => Ok(Reply::Held {
                remaining: match left {
                    -1 => None,
                    // -2: the key was held, and is gone by now.
                    left => Some(Duration::from_millis(u64::try_from(*left).unwrap_or(0))),
                },
                holder: holder.as_str().and_then(OwnerToken::from_value),
            }),
            _ => Err(nonsense(
                "a held key without its remaining time and its holder".into(),
            )),
        },
        (Value::Integer(number), _) if counts => counter_of(number).map(|counter| Reply::Granted {
            counter: Some(counter),
        }),
        (Value::Integer(DONE), Action::Extend { .. }) => Ok(Reply::Extended),
        (Value::Integer(code @ (DONE | NOTIFIED)), Action::Release { .. }) => Ok(Reply::Released {
            notified: code == NOTIFIED,
        }),
        (Value::Integer(DONE | NOTIFIED), Action::Announce(_)) => Ok(Reply::Announced),
        (Value::Integer(DONE), Action::Mark { .. }) => Ok(Reply::Mark { mark: None }),
        (Value::List(mark), Action::Mark { .. }) => match mark.as_slice() {
            [Value::Integer(end_ms @ 1..), Value::Integer(length_ms @ 1..)] => Ok(Reply::Mark {
                mark: Some(DoneMark {
                    end_ms: *end_ms as u64,
                    length_ms: *length_ms as u64,
                }),
            }),
            _ => Err(nonsense("no mark of a period".into())),
        },
        (Value::Integer(MISSING), _) if needs_key => Ok(Reply::Missing),
        (Value::Integer(FOREIGN), _) if needs_key => Ok(Reply::Foreign),
        (Value::Integer(number), Action::Raise { .. }) => {
            counter_of(number).map(|counter| Reply::Raised { counter })
        }
        (other, action) => Err(nonsense(format!("{} in answer to {action:?}", other.kind()))),
    }
}

/// Reads a counter. Fails if it is no valid token, so that none is issued from it (F6).
fn counter_of(number: i64) -> Result<FencingToken, Fault> {
    FencingToken::try_from(number).map_err(|error| nonsense(format!("fencing counter {number}: {error}")))
}

fn nonsense(detail: String) -> Fault {
    Fault::Protocol {
        detail: Arc::from(detail),
    }
}
