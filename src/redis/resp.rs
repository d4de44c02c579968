//! The servers' protocol, RESP2, as far as lock connections need it. Strict, and with limits for length, number and depth.

use std::sync::Arc;

use tokio_util::bytes::{BufMut, BytesMut};

use super::fault;
use crate::node::Fault;

/// Longest line: a status, an error, a number.
const LONGEST_LINE: usize = 64 * 1_024;
/// Longest string, in bytes.
const LONGEST_TEXT: usize = 1_024 * 1_024;
/// Longest reply that is waited for, in bytes.
const LONGEST_REPLY: usize = 2 * LONGEST_TEXT;
/// Most entries of a reply, those of nested lists included.
const MOST_ENTRIES: usize = 4_096;
/// Most levels of lists within lists.
const DEEPEST: usize = 3;

/// A reply, or an entry of one.
#[cfg_attr(not(feature = "simulation"), allow(unreachable_pub))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A missing value.
    Nil,
    /// A number.
    Integer(i64),
    /// A status or a string.
    Text(Vec<u8>),
    /// An error's text.
    Error(String),
    /// A list.
    List(Vec<Value>),
}

impl Value {
    /// Returns the text. `None` for anything else, and for text that is not UTF-8.
    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns an error as the fault that it stands for.
    pub(super) fn into_result(self) -> Result<Value, Fault> {
        match self {
            Value::Error(message) => Err(fault::from_message(&message)),
            other => Ok(other),
        }
    }

    /// Returns the number. `None` for anything else.
    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// Names the kind of value in messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Integer(_) => "a number",
            Value::Text(_) => "a string",
            Value::Error(_) => "an error",
            Value::List(_) => "a list",
        }
    }
}

pub(super) fn command<W: AsRef<[u8]>>(words: &[W]) -> BytesMut {
    let mut command = BytesMut::new();
    head(words.len(), &mut command);
    words.iter().for_each(|text| word(text.as_ref(), &mut command));
    command
}

/// Encodes a call of a script by its text.
pub(super) fn eval(script: &str, keys: &[String], args: &[String]) -> BytesMut {
    let count = keys.len().to_string();
    let mut words = vec!["EVAL", script, &count];
    words.extend(keys.iter().chain(args).map(String::as_str));
    command(&words)
}

/// Appends the header of a command with this many words.
pub(super) fn head(words: usize, to: &mut BytesMut) {
    to.put_u8(b'*');
    digits(words as u64, to);
    to.extend_from_slice(b"\r\n");
}

pub(super) fn word(bytes: &[u8], to: &mut BytesMut) {
    to.put_u8(b'$');
    digits(bytes.len() as u64, to);
    to.extend_from_slice(b"\r\n");
    to.extend_from_slice(bytes);
    to.extend_from_slice(b"\r\n");
}

/// Appends a number in as many digits as it has.
pub(super) fn digits(number: u64, to: &mut BytesMut) {
    let start = to.len();
    let mut rest = number;
    loop {
        to.put_u8(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    to[start..].reverse();
}

/// Decodes the first reply in `bytes`. Returns it with its length; `None` if it is not complete. Fails as soon as the bytes
/// cannot be the beginning of a reply within the limits.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Value, usize)>, Fault> {
    let mut decoder = Decoder {
        bytes,
        at: 0,
        entries: 0,
    };
    match decoder.value(0) {
        Ok(value) => Ok(Some((value, decoder.at))),
        Err(Stop::Incomplete) if bytes.len() < LONGEST_REPLY => Ok(None),
        Err(Stop::Incomplete) => Err(Fault::Protocol {
            detail: "a reply that is too long".into(),
        }),
        Err(Stop::Invalid(detail)) => Err(Fault::Protocol {
            detail: Arc::from(detail),
        }),
    }
}

enum Stop {
    Incomplete,
    Invalid(&'static str),
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    entries: usize,
}

impl<'a> Decoder<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(Stop::Invalid("a reply of too many entries"));
        }
        let kind = *self.bytes.get(self.at).ok_or(Stop::Incomplete)?;
        match kind {
            b'+' | b'-' | b':' | b'$' | b'*' => {}
            // A TLS record: an alert, or the beginning of a handshake.
            0x15 | 0x16 => return Err(Stop::Invalid("it speaks TLS; write rediss:// in its URL")),
            _ => return Err(Stop::Invalid("it does not speak the Redis protocol")),
        }
        let line = self.line()?;
        match kind {
            b'+' => Ok(Value::Text(line.to_vec())),
            b'-' => Ok(Value::Error(String::from_utf8_lossy(line).into_owned())),
            b':' => Ok(Value::Integer(number(line)?)),
            b'$' => match length(line, LONGEST_TEXT)? {
                Some(length) => self.text(length),
                None => Ok(Value::Nil),
            },
            _ if depth == DEEPEST => Err(Stop::Invalid("lists that are nested too deep")),
            _ => match length(line, MOST_ENTRIES)? {
                Some(length) => (0..length)
                    .map(|_| self.value(depth + 1))
                    .collect::<Result<_, _>>()
                    .map(Value::List),
                None => Ok(Value::Nil),
            },
        }
    }

    /// Takes a line. Returns what is between its first byte and its end.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let reach = &rest[..rest.len().min(LONGEST_LINE)];
        match reach.iter().position(|byte| *byte == b'\n') {
            Some(end) if end >= 2 && rest[end - 1] == b'\r' => {
                self.at += end + 1;
                Ok(&rest[1..end - 1])
            }
            Some(_) => Err(Stop::Invalid("a line that does not end in CRLF")),
            None if reach.len() == LONGEST_LINE => Err(Stop::Invalid("a line that is too long")),
            None => Err(Stop::Incomplete),
        }
    }

    fn text(&mut self, length: usize) -> Result<Value, Stop> {
        let rest = &self.bytes[self.at..];
        let text = rest.get(..length + 2).ok_or(Stop::Incomplete)?;
        if &text[length..] != b"\r\n" {
            return Err(Stop::Invalid("a string of another length than announced"));
        }
        self.at += length + 2;
        Ok(Value::Text(text[..length].to_vec()))
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    std::str::from_utf8(line)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Stop::Invalid("not a number"))
}

/// Reads a length. `None` for a missing value.
fn length(line: &[u8], most: usize) -> Result<Option<usize>, Stop> {
    match number(line)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= most => Ok(Some(length)),
            _ => Err(Stop::Invalid("a length out of bounds")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn replies_are_decoded_and_nothing_behind_them() {
        for (bytes, value) in [
            ("+OK\r\n", text("OK")),
            ("-ERR no\r\n", Value::Error("ERR no".into())),
            (":-3\r\n", Value::Integer(-3)),
            ("$-1\r\n", Value::Nil),
            ("*-1\r\n", Value::Nil),
            ("$4\r\na\r\nb\r\n", text("a\r\nb")),
            ("*0\r\n", Value::List(vec![])),
            (
                "*2\r\n*3\r\n:1\r\n$1\r\nx\r\n:0\r\n:7\r\n",
                Value::List(vec![
                    Value::List(vec![Value::Integer(1), text("x"), Value::Integer(0)]),
                    Value::Integer(7),
                ]),
            ),
        ] {
            let more = format!("{bytes}+next\r\n");
            assert_eq!(decode(more.as_bytes()).unwrap(), Some((value, bytes.len())));
            for end in 0..bytes.len() {
                assert_eq!(
                    decode(&bytes.as_bytes()[..end]).unwrap(),
                    None,
                    "{bytes:?} to {end}"
                );
            }
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused_and_never_waited_for() {
        let deep = "*1\r\n".repeat(100_000);
        let long = format!("+{}", "x".repeat(LONGEST_LINE));
        let text = format!("$1000000\r\n{}\r\n", "x".repeat(1_000_000));
        let many = format!("*4\r\n{}", text.repeat(3));
        for bytes in [
            "HTTP/1.1 400\r\n",
            "\u{15}\u{3}\u{3}",
            "\r\n",
            "+a\n",
            ":x\r\n",
            ":\r\n",
            "$-2\r\n",
            "$99999999999\r\n",
            "*1000000\r\n",
            "$1\r\nab\r\n",
            ":+-1\r\n",
            &deep,
            &long,
            &many,
            "_\r\n",
            "%1\r\n",
        ] {
            assert!(decode(bytes.as_bytes()).is_err(), "{:.20}", bytes);
        }
    }

    #[test]
    fn commands_are_lists_of_strings() {
        let encoded = eval("return 1", &["a b".into()], &[String::new()]);
        let words = ["EVAL", "return 1", "1", "a b", ""].map(text);
        assert_eq!(
            decode(&encoded),
            Ok(Some((Value::List(words.into()), encoded.len())))
        );
    }
}
