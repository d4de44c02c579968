//! The part of the Redis protocol (RESP2) that a testbed needs: one command, one answer.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A server's answer to a raw command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A status such as `OK` or `PONG`.
    Simple(String),
    /// The server's error message: it refused or could not execute the command.
    Error(String),
    /// An integer.
    Int(i64),
    /// Bytes; `None` is nil, for a missing value.
    Bulk(Option<Vec<u8>>),
    /// A list; `None` is a nil list.
    Array(Option<Vec<Value>>),
}

impl Value {
    /// Returns the text of a status, an error, or bytes that are UTF-8. `None` for everything else, nil included.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Simple(text) | Value::Error(text) => Some(text),
            Value::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns the integer, also if it is text, as from `GET`. `None` for everything else.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(int) => Some(*int),
            Value::Bulk(Some(_)) | Value::Simple(_) => self.as_str()?.parse().ok(),
            _ => None,
        }
    }

    /// Returns the items of a list. `None` for everything else, nil included.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(Some(items)) => Some(items),
            _ => None,
        }
    }

    /// Returns whether the answer is nil.
    pub fn is_nil(&self) -> bool {
        matches!(self, Value::Bulk(None) | Value::Array(None))
    }

    /// Returns whether the answer is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }
}

pub(crate) async fn call<S>(stream: &mut S, args: &[impl AsRef<[u8]>]) -> io::Result<Value>
where
    S: AsyncBufRead + AsyncWrite + Unpin + Send,
{
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    read(stream, 0).await
}

async fn read<S: AsyncBufRead + Unpin + Send>(stream: &mut S, depth: usize) -> io::Result<Value> {
    if depth > 32 {
        return Err(not_resp("nested too deeply"));
    }
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let Some(kind) = line.chars().next() else {
        return Err(not_resp("an empty line"));
    };
    let rest = &line[kind.len_utf8()..];
    match kind {
        '+' => Ok(Value::Simple(rest.to_owned())),
        '-' => Ok(Value::Error(rest.to_owned())),
        ':' => Ok(Value::Int(number(rest)?)),
        '$' => {
            let Ok(length) = usize::try_from(number(rest)?) else {
                return Ok(Value::Bulk(None));
            };
            let mut bytes = Vec::new();
            (&mut *stream).take(length as u64).read_to_end(&mut bytes).await?;
            let mut end = [0; 2];
            stream.read_exact(&mut end).await?;
            Ok(Value::Bulk(Some(bytes)))
        }
        '*' => {
            let Ok(length) = usize::try_from(number(rest)?) else {
                return Ok(Value::Array(None));
            };
            let mut items = Vec::new();
            for _ in 0..length {
                items.push(Box::pin(read(stream, depth + 1)).await?);
            }
            Ok(Value::Array(Some(items)))
        }
        _ => Err(not_resp(line)),
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| not_resp(text))
}

fn not_resp(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP: {what:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parse(bytes: &[u8]) -> io::Result<Value> {
        let mut stream = bytes;
        read(&mut stream, 0).await
    }

    #[tokio::test]
    async fn reads_every_kind() {
        let bulk = |text: &str| Value::Bulk(Some(text.as_bytes().to_vec()));
        assert_eq!(parse(b"+PONG\r\n").await.unwrap(), Value::Simple("PONG".into()));
        assert_eq!(
            parse(b"-ERR no\r\n").await.unwrap(),
            Value::Error("ERR no".into())
        );
        assert_eq!(parse(b":-3\r\n").await.unwrap().as_int(), Some(-3));
        assert_eq!(parse(b"$4\r\na\r\nb\r\n").await.unwrap(), bulk("a\r\nb"));
        assert!(parse(b"$-1\r\n").await.unwrap().is_nil());
        assert!(parse(b"*-1\r\n").await.unwrap().is_nil());
        let list = parse(b"*2\r\n$1\r\n7\r\n*1\r\n:1\r\n").await.unwrap();
        assert_eq!(
            list,
            Value::Array(Some(vec![bulk("7"), Value::Array(Some(vec![Value::Int(1)]))]))
        );
        assert_eq!(list.as_array().unwrap()[0].as_int(), Some(7));
    }

    #[tokio::test]
    async fn refuses_what_is_not_resp_or_ends_early() {
        for bytes in [
            &b"HTTP/1.1 200\r\n"[..],
            b"",
            b"+OK",
            b"$4\r\nab",
            b":x\r\n",
            b"\r\n",
            "é\r\n".as_bytes(),
        ] {
            assert!(parse(bytes).await.is_err(), "{bytes:?}");
        }
        assert!(parse(&b"*1\r\n".repeat(40)).await.is_err());
    }
}
