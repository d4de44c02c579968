//! Reads what makes a server fit or unfit for locks, over a connection of its own. Nothing that lasts is written.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fred::types::config::{Config, ServerConfig};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};
use tokio_util::bytes::BytesMut;

use super::address::Addresses;
use super::connection::Setup;
use super::node_config::NodeConfig;
use super::resp::{self, Value};
use super::write_probe::ProbeKey;
use super::{fault, memory};
use crate::doctor::{CHANNEL, Clock, Info, KEY, Lack, MISSING, Need, RIGHTS, SELECT, ServerFacts};
use crate::node::Fault;
use crate::options::{RECORD_SUFFIX, literal};
use crate::protocol::memory::Record;

/// How often the round trip is measured.
const ROUND_TRIPS: usize = 3;
/// The name of the connection, in the server's list of clients.
const CLIENT_NAME: &str = "quorlock/doctor";
/// Sentinels announce themselves here, and listen, on each master that they watch.
const SENTINELS: &str = "__sentinel__:hello";
/// The host of all servers on this machine.
const THIS_MACHINE: &str = "this machine";

/// Examines all servers. Each one may take `limit`.
pub(crate) async fn examine(
    configs: &[NodeConfig],
    prefix: &str,
    limit: Duration,
) -> Vec<Result<ServerFacts, Fault>> {
    let one = |config: &NodeConfig| {
        let config = config.clone();
        async move {
            let examined = timeout(limit, examine_one(&config, prefix, limit)).await;
            examined.unwrap_or_else(|_| Err(fault::disconnected("no answer in time".into())))
        }
    };
    join_all(configs.iter().map(one)).await
}

async fn examine_one(node: &NodeConfig, prefix: &str, limit: Duration) -> Result<ServerFacts, Fault> {
    let addresses = Addresses::new(node.config(), limit);
    let found = addresses.find().await?;
    let peer = addresses.choose(found.clone()).await?;
    let (config, _) = node.current().await?;
    let mut setup = match Setup::open(&config, peer, CLIENT_NAME).await {
        // The user may log in, but not select the database.
        Err(Fault::NoPermission { .. }) => return Ok(without_database()),
        opened => opened?,
    };
    let (round_trip, clock) = clock(&mut setup).await?;
    let record = resp::command(&["GET", &format!("{prefix}{RECORD_SUFFIX}")]);
    let commands = vec![
        resp::command(&["INFO"]),
        record,
        resp::command(&["LATENCY", "LATEST"]),
        resp::command(&["PUBSUB", "NUMSUB", SENTINELS]),
    ];
    let mut replies = setup.exchange(commands).await?.into_iter();
    let mut reply = || replies.next().unwrap_or(Value::Nil);
    let info = reply().as_str().map(Info::read);
    let record: Option<Record> = reply().as_str().and_then(|record| record.parse().ok());
    let (delays, sentinels) = (delays(&reply()), subscribers(&reply()));
    let mut elsewhere = Vec::new();
    for other in found.into_iter().filter(|other| Some(*other) != peer) {
        let run_id = run_id(&config, other).await;
        let own = info.as_ref().and_then(|info| info.text("run_id"));
        if own.is_some() && run_id.is_some() && run_id.as_deref() != own {
            elsewhere.push(other.to_string());
        }
    }
    Ok(ServerFacts {
        host: Some(host(&config, peer.map(|peer| peer.ip()))),
        elsewhere,
        info,
        fsync: memory::fsync_settings(&mut setup).await,
        memory: record.map(|record| record.id),
        round_trip,
        clock,
        delays,
        sentinels,
        // Last, because the connection may stay subscribed.
        lacks: lacks(&mut setup, prefix).await?,
    })
}

fn without_database() -> ServerFacts {
    ServerFacts {
        lacks: vec![Lack {
            name: SELECT.to_owned(),
            need: Need::Locks,
        }],
        ..ServerFacts::default()
    }
}

/// Returns the shortest of several round trips, and the clock as it was read then. `None` if the server does not tell the time.
async fn clock(setup: &mut Setup) -> Result<(Duration, Option<Clock>), Fault> {
    let mut best = (Duration::MAX, None);
    for _ in 0..ROUND_TRIPS {
        let (sent, begin) = (SystemTime::now(), Instant::now());
        let answer = setup.exchange(vec![resp::command(&["TIME"])]).await?;
        let took = begin.elapsed();
        if took < best.0 {
            best = (took, answer.first().and_then(|time| read_clock(time, sent, took)));
        }
    }
    Ok(best)
}

/// Compares the server's time with the middle of the time that the exchange took.
fn read_clock(time: &Value, sent: SystemTime, took: Duration) -> Option<Clock> {
    let Value::List(parts) = time else { return None };
    let [seconds, micros] = &parts[..] else {
        return None;
    };
    let part = |value: &Value| value.as_str()?.parse::<i64>().ok();
    let theirs = part(seconds)?
        .checked_mul(1_000_000)?
        .checked_add(part(micros)?)?;
    let half = took / 2;
    let ours = sent.duration_since(SystemTime::UNIX_EPOCH).ok()? + half;
    Some(Clock {
        ahead: theirs.saturating_sub(i64::try_from(ours.as_micros()).ok()?),
        within: i64::try_from(half.as_micros()).ok()?.saturating_add(1),
    })
}

/// Reads the answer to `LATENCY LATEST`: for each event its name, when it was last, how long it took then, and at most.
fn delays(answer: &Value) -> Option<Vec<(String, i64)>> {
    let Value::List(events) = answer else { return None };
    let event = |event: &Value| match event {
        Value::List(parts) => Some((parts.first()?.as_str()?.to_owned(), parts.get(3)?.as_i64()?)),
        _ => None,
    };
    Some(events.iter().filter_map(event).collect())
}

/// Reads the answer to `PUBSUB NUMSUB` about one channel.
fn subscribers(answer: &Value) -> Option<i64> {
    match answer {
        Value::List(parts) => parts.get(1)?.as_i64(),
        _ => None,
    }
}

/// Returns which server another address of the name leads to. `None` if it does not answer.
async fn run_id(config: &Config, address: std::net::SocketAddr) -> Option<String> {
    let mut setup = Setup::open(config, Some(address), CLIENT_NAME).await.ok()?;
    let info = setup.ask(resp::command(&["INFO", "server"])).await.ok()?;
    Info::read(info.as_str()?).text("run_id").map(str::to_owned)
}

fn host(config: &Config, peer: Option<IpAddr>) -> Arc<str> {
    let address = match &config.server {
        ServerConfig::Centralized { server } => peer.map_or_else(|| server.host.parse().ok(), Some),
        _ => None,
    };
    match address {
        Some(address) if !address.is_loopback() => address.to_string().into(),
        // A Unix socket, too.
        _ => THIS_MACHINE.into(),
    }
}

/// Returns the rights that the user lacks.
async fn lacks(setup: &mut Setup, prefix: &str) -> Result<Vec<Lack>, Fault> {
    let (key, missing) = (ProbeKey::new(prefix), ProbeKey::new(prefix));
    let written = setup.exchange(vec![key.write()]).await?;
    // A command on the key could create it, and then it would never expire.
    let is_written = !matches!(written[..], [Value::Error(_)]);
    let rights = RIGHTS
        .iter()
        .filter(|right| is_written || !right.form.contains(&KEY));
    let rights: Vec<_> = rights.collect();
    let word = |word: &&'static str| match *word {
        KEY => key.name(),
        MISSING | CHANNEL => missing.name(),
        word => word,
    };
    let form = |form: &[&'static str]| -> BytesMut {
        let words: Vec<&str> = form.iter().map(word).collect();
        resp::command(&words)
    };
    // In one exchange: a server that stalls in between would find that the key has expired, and create it without an expiry.
    // The deletion comes before the subscription, after which a connection takes few commands.
    let listening = rights.iter().position(|right| right.need == Need::Listening);
    let listening = listening.unwrap_or(rights.len());
    let mut commands: Vec<BytesMut> = rights.iter().map(|right| form(right.form)).collect();
    commands.insert(listening, key.delete());
    commands.insert(0, key.write());
    let mut replies = setup.exchange(commands).await?;
    if replies.len() == rights.len() + 2 {
        replies.remove(listening + 1);
        replies.remove(0);
    }
    let lacks = rights.iter().zip(&replies).filter_map(|(right, reply)| {
        Some(Lack {
            name: refused(reply, right.name, prefix)?,
            need: right.need,
        })
    });
    Ok(lacks.collect())
}

/// Returns the right whose lack the reply shows. `None` if it shows none.
fn refused(reply: &Value, right: &str, prefix: &str) -> Option<String> {
    let Value::Error(message) = reply else { return None };
    // A renamed command is as good as forbidden.
    if message.starts_with("ERR unknown command") {
        return Some(format!("{right} (renamed or removed on the server)"));
    }
    let prefix = literal(prefix);
    let Some(Fault::NoPermission { .. }) = fault::named(message) else {
        return None;
    };
    let (_, forbidden) = message.split_once(" to access ").unwrap_or_default();
    Some(match forbidden {
        "" => right.to_owned(),
        channel if channel.contains("channel") => format!("&{prefix}*"),
        _ => format!("~{prefix}*"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_command_the_keys_or_the_channels() {
        for (message, right) in [
            (
                "NOPERM this user has no permissions to run the 'get' command or its subcommand",
                Some("+get"),
            ),
            (
                "NOPERM User app has no permissions to run the 'get' command",
                Some("+get"),
            ),
            (
                "ERR unknown command 'GET', with args beginning with: 'x' ",
                Some("+get (renamed or removed on the server)"),
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Some("~p:*"),
            ),
            ("NOPERM No permissions to access a key", Some("~p:*")),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                Some("&p:*"),
            ),
            ("NOPERM No permissions to access a channel", Some("&p:*")),
            ("NOSCRIPT No matching script. Please use EVAL.", None),
            ("ERR value is not an integer or out of range", None),
            ("OOM command not allowed when used memory > 'maxmemory'.", None),
        ] {
            let found = refused(&Value::Error(message.to_owned()), "+get", "p:");
            assert_eq!(found.as_deref(), right, "{message}");
        }
        assert_eq!(refused(&Value::Nil, "+get", "p:"), None);
    }

    #[test]
    fn clocks_are_compared_in_the_middle_of_the_exchange() {
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let text = |text: &str| Value::Text(text.into());
        let time = Value::List(vec![text("101"), text("5000")]);
        let clock = read_clock(&time, sent, Duration::from_millis(10)).unwrap();
        assert_eq!((clock.ahead, clock.within), (1_000_000, 5_001));
        assert!(read_clock(&Value::Nil, sent, Duration::ZERO).is_none());
    }

    #[test]
    fn delays_and_subscribers_are_read() {
        let text = |text: &str| Value::Text(text.into());
        let event = Value::List(vec![
            text("aof-write"),
            Value::Integer(1),
            Value::Integer(2),
            Value::Integer(3),
        ]);
        assert_eq!(
            delays(&Value::List(vec![event])),
            Some(vec![("aof-write".to_owned(), 3)])
        );
        assert_eq!(delays(&Value::Error("NOPERM".into())), None);
        let count = Value::List(vec![text(SENTINELS), Value::Integer(2)]);
        assert_eq!(subscribers(&count), Some(2));
        assert_eq!(subscribers(&Value::Nil), None);
    }
}
