//! What a lying server sends instead of the truth.

use super::bytes::Bytes;
use super::resp::Value;

#[derive(Debug)]
pub(crate) struct ForgedReply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) then: Afterwards,
}

impl ForgedReply {
    /// Says this, and goes on.
    pub(crate) fn says(bytes: Vec<u8>) -> ForgedReply {
        ForgedReply {
            bytes,
            then: Afterwards::GoOn,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Afterwards {
    GoOn,
    /// The server neither sends nor reads any more.
    Silence,
    Close,
}

/// The number of kinds of lies. The first byte of a lie selects its kind, and the corpus has each of them.
const KINDS: u8 = 17;

const ERRORS: [&str; 16] = [
    "ERR unknown command 'EVALSHA', with args beginning with: 'x'",
    "MOVED 1 127.0.0.1:1",
    "ASK 1 127.0.0.1:1",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair",
    "NOSCRIPT No matching script. Please use EVAL.",
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "MASTERDOWN Link with MASTER is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN Hash slot not served",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "",
    "Canceled channel closed not initialized",
];
/// Sent as they are, to connections with RESP3 and without.
const RESP3: [&str; 20] = [
    "_\r\n",
    "#t\r\n",
    ",1.5\r\n",
    ",nan\r\n",
    "(3492890328409238509324850943850943825024385\r\n",
    "=15\r\ntxt:Some string\r\n",
    "!21\r\nSYNTAX invalid syntax\r\n",
    "~2\r\n:1\r\n:1\r\n",
    "%1\r\n+a\r\n:1\r\n",
    "%1000000000\r\n",
    "~1000000000\r\n",
    ">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n",
    "|1\r\n+ttl\r\n:1\r\n:1\r\n",
    "$?\r\n;4\r\nHell\r\n;0\r\n",
    "*?\r\n:1\r\n.\r\n",
    "%?\r\n+a\r\n:1\r\n.\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
    "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    "+QUEUED\r\n",
];
const LENGTHS: [i64; 8] = [1_000_000_000, -2, i64::MAX, 1 << 32, 536_870_912, 1, i64::MIN, 3];
/// Deeper nesting is in `tests/bad_replies/memory.rs`.
const DEEPEST: usize = 60;

pub(crate) fn forge(bytes: &mut Bytes<'_>, truth: &Value) -> ForgedReply {
    let says = ForgedReply::says;
    let mut truth = truth.clone();
    match bytes.byte() % KINDS {
        0 => says(truth.write()),
        // One part becomes another number.
        1 => {
            let at = usize::from(bytes.byte()) % truth.parts();
            truth.replace(at, Value::Int(bytes.number()));
            says(truth.write())
        }
        2 => {
            let at = usize::from(bytes.byte()) % truth.parts();
            truth.replace(at, thing(bytes));
            says(truth.write())
        }
        3 => {
            let code = ERRORS[usize::from(bytes.byte()) % ERRORS.len()];
            says(Value::Line(b'-', code.into()).write())
        }
        4 => says(RESP3[usize::from(bytes.byte()) % RESP3.len()].into()),
        // Announced, and not sent.
        5 => {
            let kind = ['$', '*', '%', '~', '=', '>'][usize::from(bytes.byte()) % 6];
            let length = LENGTHS[usize::from(bytes.byte()) % LENGTHS.len()];
            ForgedReply {
                bytes: format!("{kind}{length}\r\n").into_bytes(),
                then: if bytes.flag() {
                    Afterwards::GoOn
                } else {
                    Afterwards::Silence
                },
            }
        }
        6 => {
            let mut said = truth.write();
            said.truncate(usize::from(bytes.byte()) % (said.len() + 1));
            let then = [Afterwards::Silence, Afterwards::Close][usize::from(bytes.byte() % 2)];
            ForgedReply { bytes: said, then }
        }
        // A second reply, which answers no request.
        7 => says([truth.write(), truth.write()].concat()),
        8 => says([truth.write(), thing(bytes).write()].concat()),
        9 => {
            let depth = usize::from(bytes.byte()) % DEEPEST;
            says(
                (0..depth)
                    .fold(truth, |inner, _| Value::List(b'*', vec![inner]))
                    .write(),
            )
        }
        // A list of another length.
        10 => {
            if let Value::List(b'*', items) = &mut truth {
                let item = items.first().cloned().unwrap_or(Value::Null);
                items.resize(usize::from(bytes.byte()) % 8, item);
            }
            says(truth.write())
        }
        // Another time: the last two items of a list.
        11 => {
            if let Value::List(b'*', items) = &mut truth {
                let count = items.len();
                for item in items.iter_mut().skip(count.saturating_sub(2)) {
                    *item = Value::Text(b'$', bytes.number().to_string().into());
                }
            }
            says(truth.write())
        }
        // Another value of a field of INFO.
        12 => {
            let name = [
                "uptime_in_seconds",
                "run_id",
                "redis_version",
                "aof_enabled",
                "role",
                "redis_mode",
                "loading",
            ];
            let name = name[usize::from(bytes.byte()) % name.len()];
            let value = thing(bytes);
            says(with_field(&truth, name, &value).write())
        }
        13 => says(thing(bytes).write()),
        14 => ForgedReply {
            bytes: Vec::new(),
            then: if bytes.flag() {
                Afterwards::Close
            } else {
                Afterwards::Silence
            },
        },
        // Arbitrary bytes.
        15 => {
            let count = usize::from(bytes.byte());
            says(bytes.take(count).to_vec())
        }
        _ => {
            let count = usize::from(bytes.byte());
            says(Value::Text(b'$', bytes.take(count).to_vec()).write())
        }
    }
}

fn thing(bytes: &mut Bytes<'_>) -> Value {
    match bytes.byte() % 8 {
        0 => Value::Null,
        1 => Value::Int(bytes.number()),
        2 => Value::Text(b'$', bytes.number().to_string().into()),
        3 => Value::Text(b'$', vec![0xff, 0xfe, 0x00, 0xc3]),
        4 => Value::List(b'*', Vec::new()),
        5 => Value::List(b'*', vec![Value::Null; usize::from(bytes.byte())]),
        6 => Value::Line(b'+', b"OK".to_vec()),
        _ => Value::Text(b'$', vec![b'x'; usize::from(bytes.byte()) * 257]),
    }
}

fn with_field(info: &Value, name: &str, value: &Value) -> Value {
    let Value::Text(b'$', text) = info else {
        return info.clone();
    };
    let value = match value {
        Value::Text(b'$', text) | Value::Line(b'+', text) => String::from_utf8_lossy(text).into_owned(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    };
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| match line.split_once(':') {
        Some((field, _)) if field == name => format!("{field}:{value}\r\n"),
        _ => format!("{line}\r\n"),
    };
    Value::Text(b'$', text.lines().map(line).collect::<String>().into_bytes())
}
