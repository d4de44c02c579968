//! Causes the faults of one node, and repairs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorlock::testbed::{Data, Proxy, TestNode, Value};
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::common::{MOMENT, PATIENCE, eventually, open};
use crate::fault::Fault;
use crate::history::resources;
use crate::server::{settings, shift};

/// Twice this is more than the node's budget, a tenth of the TTL.
const SLOW: Duration = Duration::from_millis(80);

/// Sets each lock's key that is free to other data. The keys are the locks' names with the default prefix.
const TAKE: &str = "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 0 then redis.call('HSET', key, 'a', 1) end end";
const GIVE_BACK: &str = "for _, key in ipairs(KEYS) do if redis.call('TYPE', key).ok == 'hash' then redis.call('DEL', key) end end";
/// As if they had expired. No counter does so long before the time that it shows, and those that start within a second of the
/// beginning of a memory are ahead of the clock.
const LOSE_COUNTERS: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    for _, key in ipairs(redis.call('KEYS', '*#fence')) do
        if tonumber(redis.call('GET', key)) < now then redis.call('DEL', key) end
    end";
/// More data for a node that has little to load.
const FILL: &str = "for i = 1, 6000 do redis.call('SET', 'filler:' .. i, i) end";
const LITTLE: u64 = 6_000 * COMMAND;
/// The approximate size of a command in a server's log, in bytes.
const COMMAND: u64 = 45;
/// How long loading is to take, and how long the shortest sleep takes, in microseconds (approximately).
const LOADING: u64 = 1_500_000;
const SLEEP: u64 = 55;

/// What is kept until a fault is repaired.
pub(crate) enum Undo {
    Nothing,
    /// The only connection that the node accepts.
    Connection(Box<MultiplexedConnection>),
}

async fn tell(node: &TestNode, command: &[&str]) {
    let _: Value = ask(node, command).await;
}

pub(crate) async fn ask(node: &TestNode, command: &[&str]) -> Value {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match node.command(command).await {
            Ok(answer) if answer.is_error() => panic!("{command:?}: {answer:?}"),
            Ok(answer) => return answer,
            // The machine may be busy. Each of these commands may be executed twice.
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
    }
}

fn proxy(node: &TestNode) -> &Proxy {
    node.proxy().unwrap()
}

async fn on_locks(node: &TestNode, script: &str) {
    let keys: Vec<String> = (0..resources(true))
        .map(|number| format!("quorlock:job{number}"))
        .collect();
    let number = keys.len().to_string();
    let mut command = vec!["EVAL", script, &number];
    command.extend(keys.iter().map(String::as_str));
    tell(node, &command).await;
}

/// Causes a fault. `other` is the second node that it concerns: the new server, the master, the owner of the other volume.
pub(crate) async fn inject(node: &TestNode, fault: Fault, other: &TestNode) -> Undo {
    match fault {
        Fault::Killed | Fault::Emptied => node.kill().await.unwrap(),
        Fault::Loading => {
            if size(&data(node)) < LITTLE {
                tell(node, &["EVAL", FILL, "0"]).await;
            }
            node.kill().await.unwrap();
            load_slowly(node);
        }
        Fault::Stopped => node.stop().unwrap(),
        Fault::CutOff => proxy(node).cut(),
        Fault::Silent => proxy(node).blackhole(),
        Fault::RequestsHeld => proxy(node).blackhole_to_server(),
        Fault::AnswersHeld => proxy(node).blackhole_from_server(),
        Fault::Slowed => proxy(node).delay(SLOW),
        Fault::ConnectionsDropped => proxy(node).drop_connections(),
        Fault::OutOfMemory => tell(node, &["CONFIG", "SET", "maxmemory", "1"]).await,
        // The master does not exist, so nothing is copied.
        Fault::ReadOnly => tell(node, &["REPLICAOF", "127.0.0.1", "1"]).await,
        Fault::CannotPersist => cannot_persist(node).await,
        Fault::WrongType => on_locks(node, TAKE).await,
        Fault::ConnectionLimit => return Undo::Connection(Box::new(take_connections(node).await)),
        Fault::ScriptsFlushed => tell(node, &["SCRIPT", "FLUSH"]).await,
        Fault::ClientsKilled => tell(node, &["CLIENT", "KILL", "TYPE", "normal"]).await,
        Fault::Flushed | Fault::MajorityFlushed => tell(node, &["FLUSHALL"]).await,
        Fault::ClockForward | Fault::ClockForwardALittle | Fault::ClockBack | Fault::ClockBackALittle => {
            shift(node, fault.shift().unwrap());
        }
        Fault::CountersLost => {
            tell(node, &["EVAL", LOSE_COUNTERS, "0"]).await;
            sleep(MOMENT).await;
            node.stop().unwrap();
        }
        Fault::AllCountersLost => tell(node, &["EVAL", LOSE_COUNTERS, "0"]).await,
        Fault::ReplicaFlipped => replicate(node, other).await,
        Fault::BackupRestored => back_up(node),
        Fault::VolumesSwapped => swap_volumes(node, other).await,
        Fault::AddressMoved => {
            other.restart(Data::Wipe).await.unwrap();
            proxy(node).lead_to(other.direct_addr());
        }
        Fault::WorkerStopped | Fault::WorkerKilled | Fault::ListsMixed => {
            unreachable!("not a fault of a node")
        }
    }
    Undo::Nothing
}

pub(crate) async fn repair(node: &TestNode, fault: Fault, undo: Undo) {
    match fault {
        Fault::Killed | Fault::VolumesSwapped => node.restart(Data::Keep).await.unwrap(),
        Fault::Emptied => node.restart(Data::Wipe).await.unwrap(),
        Fault::Loading => {
            node.restart(Data::Keep).await.unwrap();
            settings(node, "");
        }
        Fault::Stopped | Fault::CountersLost => node.resume().unwrap(),
        Fault::CutOff | Fault::Silent | Fault::RequestsHeld | Fault::AnswersHeld => proxy(node).heal(),
        Fault::Slowed => proxy(node).delay(Duration::ZERO),
        Fault::OutOfMemory => tell(node, &["CONFIG", "SET", "maxmemory", "0"]).await,
        Fault::ReadOnly | Fault::ReplicaFlipped => tell(node, &["REPLICAOF", "NO", "ONE"]).await,
        Fault::BackupRestored => restore_backup(node).await,
        Fault::AddressMoved => proxy(node).lead_to(node.direct_addr()),
        Fault::CannotPersist => {
            tell(node, &["CONFIG", "SET", "save", ""]).await;
            fs::remove_dir(data(node).join("dump.rdb")).unwrap();
        }
        Fault::WrongType => on_locks(node, GIVE_BACK).await,
        Fault::ConnectionLimit => {
            let Undo::Connection(mut connection) = undo else {
                unreachable!("the connection was kept")
            };
            set_limit(&mut connection, 10_000).await;
        }
        Fault::ClockForward | Fault::ClockForwardALittle | Fault::ClockBack | Fault::ClockBackALittle => {
            shift(node, 0);
        }
        Fault::ConnectionsDropped
        | Fault::ScriptsFlushed
        | Fault::ClientsKilled
        | Fault::AllCountersLost
        | Fault::Flushed
        | Fault::MajorityFlushed => {}
        Fault::WorkerStopped | Fault::WorkerKilled | Fault::ListsMixed => {
            unreachable!("not a fault of a node")
        }
    }
}

/// Ends all connections to the node's address. After a move, some lead to the other server.
pub(crate) fn reconnect_all(node: &TestNode) {
    proxy(node).drop_connections();
}

/// Returns when the replica has the master's data.
async fn replicate(node: &TestNode, master: &TestNode) {
    let port = master.direct_addr().port().to_string();
    tell(node, &["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("the replica is in step", || async {
        let info = ask(node, &["INFO", "replication"]).await;
        info.as_str()
            .unwrap_or_default()
            .contains("master_link_status:up")
    })
    .await;
}

fn data(node: &TestNode) -> PathBuf {
    node.folder().join("data")
}

fn backup(node: &TestNode) -> PathBuf {
    node.folder().join("backup")
}

/// Copies the data of a running server. The server has too little data to rewrite its log meanwhile.
fn back_up(node: &TestNode) {
    copy(&data(node), &backup(node));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().unwrap().is_dir() {
            true => copy(&from, &to),
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

async fn restore_backup(node: &TestNode) {
    node.kill().await.unwrap();
    fs::remove_dir_all(data(node)).unwrap();
    fs::rename(backup(node), data(node)).unwrap();
    node.restart(Data::Keep).await.unwrap();
}

/// Both servers are down afterwards.
async fn swap_volumes(node: &TestNode, other: &TestNode) {
    for node in [node, other] {
        node.kill().await.unwrap();
    }
    let aside = node.folder().join("aside");
    fs::rename(data(node), &aside).unwrap();
    fs::rename(data(other), data(node)).unwrap();
    fs::rename(aside, data(other)).unwrap();
}

/// Slows down the next start. A server that loads its log answers every 1,024 commands, with LOADING.
fn load_slowly(node: &TestNode) {
    let commands = size(&data(node)) / COMMAND;
    let each = LOADING / commands;
    let delay = match each.checked_sub(SLEEP) {
        Some(0) | None => format!("-{}", SLEEP / each.max(1)), // sleeps one time in so many
        Some(micros) => micros.to_string(),
    };
    settings(node, &format!("--key-load-delay {delay}"));
}

fn size(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return path.metadata().map_or(0, |file| file.len());
    };
    entries.map(|entry| size(&entry.unwrap().path())).sum()
}

/// Lets a snapshot fail, because a folder is in its place. The server then refuses writes.
async fn cannot_persist(node: &TestNode) {
    let snapshot = data(node).join("dump.rdb");
    // The node has got this as a replica. Servers with a log do not read it.
    if snapshot.exists() {
        fs::remove_file(&snapshot).unwrap();
    }
    fs::create_dir(snapshot).unwrap();
    tell(node, &["BGSAVE", "SCHEDULE"]).await;
    eventually("a snapshot fails", || async {
        let info = ask(node, &["INFO", "persistence"]).await;
        info.as_str()
            .unwrap_or_default()
            .contains("rdb_last_bgsave_status:err")
    })
    .await;
    tell(node, &["CONFIG", "SET", "save", "3600 1"]).await;
}

/// Leaves only our own connection, which can lift the limit again.
async fn take_connections(node: &TestNode) -> MultiplexedConnection {
    let mut connection = open(&node.direct_url()).await.unwrap();
    set_limit(&mut connection, 1).await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal");
    let _: i64 = kill.query_async(&mut connection).await.unwrap();
    connection
}

async fn set_limit(connection: &mut MultiplexedConnection, clients: u32) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxclients").arg(clients);
    let () = set.query_async(connection).await.unwrap();
}
