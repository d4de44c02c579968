//! A Redis keyspace in memory: the lock script's commands with Redis' answers, on a clock that the caller sets.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

type Bytes = Arc<[u8]>;
type Error = Cow<'static, str>;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resp {
    Nil,
    Status(&'static str),
    Integer(i64),
    Bulk(Bytes),
    Error(Error),
    Array(Vec<Resp>),
}

/// Why the server refuses commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trouble {
    #[default]
    None,
    /// The server is a replica.
    ReadOnly,
    OutOfMemory,
    /// The user may not run this command.
    Forbidden(&'static str),
}

/// Effects of a command besides its reply.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Channels and messages.
    pub(crate) published: Vec<(Bytes, Bytes)>,
    /// Keys that were found to have expired.
    pub(crate) expired: Vec<Bytes>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Data,
    /// In milliseconds.
    expires: Option<i64>,
}

#[derive(Clone, Debug)]
enum Data {
    Text(Bytes),
    /// The number of items.
    List(i64),
}

type Entries = BTreeMap<Bytes, Entry>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot(Arc<Entries>);

#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    entries: Arc<Entries>,
    /// In microseconds. May be set back.
    pub(crate) now: i64,
    pub(crate) trouble: Trouble,
    /// By channel.
    pub(crate) subscribers: BTreeMap<String, u32>,
    pub(crate) effects: Effects,
}

const WRONG_TYPE: Error = Cow::Borrowed("WRONGTYPE Operation against a key holding the wrong kind of value");
const NOT_AN_INTEGER: Error = Cow::Borrowed("ERR value is not an integer or out of range");
const OVERFLOW: Error = Cow::Borrowed("ERR increment or decrement would overflow");
const SYNTAX: Error = Cow::Borrowed("ERR syntax error");

impl Keyspace {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.entries.clone())
    }

    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        self.entries = snapshot.0;
    }

    pub(crate) fn sweep(&mut self) {
        let keys: Vec<Bytes> = self.entries.keys().cloned().collect();
        keys.iter().for_each(|key| {
            self.live(key);
        });
    }

    /// Returns the strings that have not expired.
    pub(crate) fn strings(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        self.entries
            .iter()
            .filter_map(move |(key, entry)| match &entry.value {
                Data::Text(value) if !self.is_over(entry) => Some((text(key)?, text(value)?)),
                _ => None,
            })
    }

    /// Returns the string at `key`; `None` if there is none, or it has expired.
    pub(crate) fn string(&self, key: &str) -> Option<&str> {
        let entry = self.entries.get(key.as_bytes())?;
        match &entry.value {
            Data::Text(value) if !self.is_over(entry) => std::str::from_utf8(value).ok(),
            _ => None,
        }
    }

    /// Runs one command.
    pub(crate) fn execute(&mut self, call: &[impl AsRef<[u8]>]) -> Resp {
        let Some((name, args)) = call.split_first() else {
            return Resp::Error("ERR Please specify at least one argument for this redis.call() call".into());
        };
        let name = name.as_ref().to_ascii_uppercase();
        self.refusal(&name)
            .map_or_else(|| self.run(&name, args), Err)
            .unwrap_or_else(Resp::Error)
    }

    fn refusal(&self, name: &[u8]) -> Option<Error> {
        let adds = matches!(name, b"SET" | b"INCR" | b"INCRBY" | b"RPUSH");
        let writes = adds || matches!(name, b"DEL" | b"PEXPIRE" | b"PERSIST");
        match self.trouble {
            Trouble::ReadOnly if writes => {
                Some("READONLY You can't write against a read only replica.".into())
            }
            Trouble::OutOfMemory if adds => {
                Some("OOM command not allowed when used memory > 'maxmemory'.".into())
            }
            Trouble::Forbidden(command) if name == command.as_bytes() => {
                Some("ERR The user executing the script can't run this command or subcommand".into())
            }
            _ => None,
        }
    }

    fn run<A: AsRef<[u8]>>(&mut self, name: &[u8], args: &[A]) -> Result<Resp, Error> {
        Ok(match (name, args) {
            (b"TIME", []) => {
                let number = |number: i64| Resp::Bulk(number.to_string().into_bytes().into());
                Resp::Array(vec![number(self.now / 1_000_000), number(self.now % 1_000_000)])
            }
            (b"SET", [key, value, options @ ..]) => self.set(key.as_ref(), value.as_ref(), options)?,
            (b"GET", [key]) => self.text(key.as_ref())?.map_or(Resp::Nil, Resp::Bulk),
            (b"MGET", [_, ..]) => {
                let get = |key: &A| self.text(key.as_ref()).ok().flatten();
                Resp::Array(
                    args.iter()
                        .map(get)
                        .map(|it| it.map_or(Resp::Nil, Resp::Bulk))
                        .collect(),
                )
            }
            (b"DEL", [_, ..]) => Resp::Integer(self.count(args, |this, key| {
                this.live(key).is_some() && this.entries_mut().remove(key).is_some()
            })),
            (b"EXISTS", [_, ..]) => Resp::Integer(self.count(args, |this, key| this.live(key).is_some())),
            (b"INCR", [key]) => Resp::Integer(self.add(key.as_ref(), 1)?),
            (b"INCRBY", [key, by]) => {
                let by = integer(by.as_ref()).ok_or(NOT_AN_INTEGER)?;
                Resp::Integer(self.add(key.as_ref(), by)?)
            }
            (b"RPUSH", [key, _, ..]) => Resp::Integer(self.push(key.as_ref(), args.len() as i64 - 1)?),
            (b"PTTL", [key]) => Resp::Integer(match self.live(key.as_ref()).map(|entry| entry.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(expires)) => (expires - self.millis()).max(0),
            }),
            (b"PEXPIRE", [key, ttl]) => {
                let ttl = integer(ttl.as_ref()).ok_or(NOT_AN_INTEGER)?;
                let expires =
                    (self.millis().checked_add(ttl)).ok_or("ERR invalid expire time in 'pexpire' command")?;
                let is_there = self.live(key.as_ref()).is_some();
                if is_there && ttl <= 0 {
                    self.entries_mut().remove(key.as_ref());
                } else if let Some(entry) = self.entries_mut().get_mut(key.as_ref()) {
                    entry.expires = Some(expires);
                }
                Resp::Integer(is_there.into())
            }
            (b"PERSIST", [key]) => {
                self.live(key.as_ref());
                let entry = self.entries_mut().get_mut(key.as_ref());
                let expires = entry.and_then(|entry| entry.expires.take());
                Resp::Integer(expires.is_some().into())
            }
            (b"PUBLISH", [channel, message]) => {
                let (channel, message) = (channel.as_ref(), message.as_ref());
                self.effects.published.push((channel.into(), message.into()));
                Resp::Integer(self.subscribers(channel))
            }
            _ => return Err("ERR unknown command, or wrong number of arguments".into()),
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[impl AsRef<[u8]>]) -> Result<Resp, Error> {
        let (mut only_if_free, mut expires) = (false, None);
        let mut options = options.iter().map(AsRef::as_ref);
        while let Some(option) = options.next() {
            if option.eq_ignore_ascii_case(b"NX") {
                only_if_free = true;
            } else if option.eq_ignore_ascii_case(b"PX") {
                let ttl = integer(options.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
                let at = self.millis().checked_add(ttl).filter(|_| ttl > 0);
                expires = Some(at.ok_or("ERR invalid expire time in 'set' command")?);
            } else {
                return Err(SYNTAX);
            }
        }
        if self.live(key).is_some() && only_if_free {
            return Ok(Resp::Nil);
        }
        let value = Data::Text(value.into());
        self.entries_mut().insert(key.into(), Entry { value, expires });
        Ok(Resp::Status("OK"))
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self.live(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Data::Text(value)) => Ok(Some(value.clone())),
            Some(Data::List(_)) => Err(WRONG_TYPE),
        }
    }

    /// Keeps the expiry.
    fn add(&mut self, key: &[u8], by: i64) -> Result<i64, Error> {
        let number = match self.text(key)? {
            Some(text) => integer(&text).ok_or(NOT_AN_INTEGER)?,
            None => 0,
        };
        let sum = number.checked_add(by).ok_or(OVERFLOW)?;
        let value = Data::Text(sum.to_string().into_bytes().into());
        self.put(key, value);
        Ok(sum)
    }

    fn push(&mut self, key: &[u8], count: i64) -> Result<i64, Error> {
        let before = match self.live(key).map(|entry| &entry.value) {
            None => 0,
            Some(Data::List(items)) => *items,
            Some(Data::Text(_)) => return Err(WRONG_TYPE),
        };
        self.put(key, Data::List(before + count));
        Ok(before + count)
    }

    /// Keeps the expiry.
    fn put(&mut self, key: &[u8], value: Data) {
        match self.entries_mut().get_mut(key) {
            Some(entry) => entry.value = value,
            None => {
                let entry = Entry { value, expires: None };
                self.entries_mut().insert(key.into(), entry);
            }
        }
    }

    fn count<A: AsRef<[u8]>>(&mut self, keys: &[A], is: impl Fn(&mut Self, &[u8]) -> bool) -> i64 {
        keys.iter().filter(|key| is(self, key.as_ref())).count() as i64
    }

    /// Returns the entry at `key`. One that has expired is removed first.
    fn live(&mut self, key: &[u8]) -> Option<&Entry> {
        if self.entries.get(key).is_some_and(|entry| self.is_over(entry)) {
            self.entries_mut().remove(key);
            self.effects.expired.push(key.into());
        }
        self.entries.get(key)
    }

    fn is_over(&self, entry: &Entry) -> bool {
        entry.expires.is_some_and(|expires| self.millis() > expires)
    }

    fn millis(&self) -> i64 {
        self.now / 1_000
    }

    fn subscribers(&self, channel: &[u8]) -> i64 {
        let known = std::str::from_utf8(channel).ok();
        known
            .and_then(|channel| self.subscribers.get(channel))
            .map_or(0, |count| i64::from(*count))
    }

    fn entries_mut(&mut self) -> &mut Entries {
        Arc::make_mut(&mut self.entries)
    }
}

/// As strict as Redis: each number has one spelling.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() < text.len() => None,
        [b'0', _, ..] | [b'+', ..] => None,
        _ => std::str::from_utf8(text).ok()?.parse().ok(),
    }
}
