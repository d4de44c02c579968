//! As much of the Redis protocol as is needed to read honest replies, and to write any.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Value>),
    /// Maps, messages and the like of RESP3, which connections for announcements use.
    Items(u8, Vec<Value>),
    Line(u8, Vec<u8>),
    Verbatim(Vec<u8>),
}

impl Value {
    /// Returns the first reply in `buffer` and its length; `None` if it is not complete.
    pub(crate) fn read(buffer: &[u8]) -> Option<(Value, usize)> {
        let end = buffer.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, text) = buffer[..end].split_first()?;
        let start = end + 2;
        let number = || std::str::from_utf8(text).unwrap().parse::<i64>().unwrap();
        Some(match kind {
            b'+' => (Value::Simple(text.to_vec()), start),
            b'-' => (Value::Error(text.to_vec()), start),
            b':' => (Value::Int(number()), start),
            b'$' | b'*' if number() < 0 => (Value::Null, start),
            b'$' => {
                let end = start + number() as usize;
                (Value::Bulk(buffer.get(start..end)?.to_vec()), end + 2).complete(buffer)?
            }
            b'*' => {
                let (mut items, mut at) = (Vec::new(), start);
                for _ in 0..number() {
                    let (item, length) = Value::read(buffer.get(at..)?)?;
                    items.push(item);
                    at += length;
                }
                (Value::Array(items), at)
            }
            b'=' => {
                let end = start + number() as usize;
                (Value::Verbatim(buffer.get(start..end)?.to_vec()), end + 2).complete(buffer)?
            }
            b'%' | b'>' | b'~' => {
                let count = if *kind == b'%' { 2 * number() } else { number() };
                let (mut items, mut at) = (Vec::new(), start);
                for _ in 0..count {
                    let (item, length) = Value::read(buffer.get(at..)?)?;
                    items.push(item);
                    at += length;
                }
                (Value::Items(*kind, items), at)
            }
            b'_' | b'#' | b',' | b'(' => (Value::Line(*kind, text.to_vec()), start),
            other => panic!("a server said {other}"),
        })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let line = |kind: &str, text: &[u8]| [kind.as_bytes(), text, b"\r\n"].concat();
        match self {
            Value::Simple(text) => line("+", text),
            Value::Error(text) => line("-", text),
            Value::Int(number) => line(":", number.to_string().as_bytes()),
            Value::Null => line("$", b"-1"),
            Value::Bulk(bytes) => [line("$", bytes.len().to_string().as_bytes()), line("", bytes)].concat(),
            Value::Verbatim(bytes) => {
                [line("=", bytes.len().to_string().as_bytes()), line("", bytes)].concat()
            }
            Value::Line(kind, text) => [&[*kind][..], text, b"\r\n"].concat(),
            Value::Items(kind, items) => {
                let count = if *kind == b'%' {
                    items.len() / 2
                } else {
                    items.len()
                };
                let mut all = [&[*kind][..], count.to_string().as_bytes(), b"\r\n"].concat();
                items.iter().for_each(|item| all.extend(item.write()));
                all
            }
            Value::Array(items) => {
                let mut all = line("*", items.len().to_string().as_bytes());
                items.iter().for_each(|item| all.extend(item.write()));
                all
            }
        }
    }

    /// Returns the number of parts of the reply, itself included.
    pub(crate) fn parts(&mut self) -> usize {
        1 + match self {
            Value::Array(items) | Value::Items(_, items) => items.iter_mut().map(Value::parts).sum(),
            _ => 0,
        }
    }

    pub(crate) fn replace(&mut self, at: usize, new: Value) {
        let Some(mut at) = at.checked_sub(1) else {
            *self = new;
            return;
        };
        let (Value::Array(items) | Value::Items(_, items)) = self else {
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

trait Complete: Sized {
    fn complete(self, buffer: &[u8]) -> Option<Self>;
}

impl Complete for (Value, usize) {
    fn complete(self, buffer: &[u8]) -> Option<Self> {
        (self.1 <= buffer.len()).then_some(self)
    }
}
