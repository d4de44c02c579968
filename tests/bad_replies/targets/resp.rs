//! As much of the Redis protocol as is needed to read honest replies, and to write any.

/// A reply, or an entry of one. Each kind begins with its byte, those of the newer protocol included: connections for
/// announcements use it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A status, an error, and whatever else is a line.
    Line(u8, Vec<u8>),
    Int(i64),
    /// Bytes that follow their length.
    Text(u8, Vec<u8>),
    Null,
    /// A list, a map, a message.
    List(u8, Vec<Value>),
}

impl Value {
    /// Reads the first reply in `buffer`. Returns it with its length; `None` if it is not complete.
    pub(crate) fn read(buffer: &[u8]) -> Option<(Value, usize)> {
        let end = buffer.windows(2).position(|pair| pair == b"\r\n")?;
        let (&kind, text) = buffer[..end].split_first()?;
        let mut at = end + 2;
        let number = || std::str::from_utf8(text).unwrap().parse::<i64>().unwrap();
        let value = match kind {
            b':' => Value::Int(number()),
            b'$' | b'*' if number() < 0 => Value::Null,
            b'$' | b'=' => {
                let length = number() as usize;
                let bytes = buffer.get(at..at + length + 2)?;
                at += bytes.len();
                Value::Text(kind, bytes[..length].to_vec())
            }
            b'*' | b'%' | b'>' | b'~' => {
                let count = if kind == b'%' { 2 * number() } else { number() };
                let mut items = Vec::new();
                for _ in 0..count {
                    let (item, length) = Value::read(buffer.get(at..)?)?;
                    items.push(item);
                    at += length;
                }
                Value::List(kind, items)
            }
            b'+' | b'-' | b'_' | b'#' | b',' | b'(' => Value::Line(kind, text.to_vec()),
            other => panic!("a server said {other}"),
        };
        Some((value, at))
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let line = |kind: u8, text: &[u8]| [&[kind], text, b"\r\n"].concat();
        let length = |kind: u8, length: usize| line(kind, length.to_string().as_bytes());
        match self {
            Value::Line(kind, text) => line(*kind, text),
            Value::Int(number) => line(b':', number.to_string().as_bytes()),
            Value::Text(kind, bytes) => [&length(*kind, bytes.len()), &bytes[..], b"\r\n"].concat(),
            Value::Null => line(b'$', b"-1"),
            Value::List(kind, items) => {
                let entries = if *kind == b'%' { 2 } else { 1 };
                let mut all = length(*kind, items.len() / entries);
                items.iter().for_each(|item| all.extend(item.write()));
                all
            }
        }
    }

    /// Returns the number of parts of the reply, itself included.
    pub(crate) fn parts(&mut self) -> usize {
        1 + match self {
            Value::List(_, items) => items.iter_mut().map(Value::parts).sum(),
            _ => 0,
        }
    }

    pub(crate) fn replace(&mut self, at: usize, new: Value) {
        let Some(mut at) = at.checked_sub(1) else {
            *self = new;
            return;
        };
        let Value::List(_, items) = self else {
            return;
        };
        for item in items {
            let parts = item.parts();
            if at < parts {
                return item.replace(at, new);
            }
            at -= parts;
        }
    }
}
