//! A worker: deposits 100 into an account, under the lock. What any service would do, and it tells each step on a line.

use std::error::Error;
use std::time::Duration;

use quorlock::{FencingToken, LeaseHandle, Redlock};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};

use crate::{ACCOUNT, DEPOSIT, TTL};

/// Until the deposit is made: takes the lock, reads, checks, writes, releases.
pub(crate) async fn work(nodes: &str, store: &str, fencing: bool) -> Result<(), Box<dyn Error>> {
    // Stopped, it would not see its pipes close. So the kernel kills it when the demonstration ends, in whatever way; to be exact,
    // when the thread that started it does: the main one.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;

    let mut store = Store::connect(store).await?;
    let redlock = Redlock::builder()
        .urls(nodes.split(','))
        .ttl(TTL)
        .fencing(fencing)
        .connect()
        .await?;
    let mut gate = BufReader::new(stdin()).lines();
    loop {
        let lease = redlock
            .lock(ACCOUNT)
            .within(Duration::from_secs(20))
            .acquire()
            .await?;
        let token = lease.fencing_token();
        println!("holds {}", token.map_or(0, u64::from));
        let done = deposit(&lease, token, &mut store, &mut gate).await?;
        println!("ended {}", lease.release().await);
        if done {
            break;
        }
    }
    redlock.shutdown().await;
    Ok(())
}

/// One try. False if it has to be made again under a new lease.
async fn deposit(
    lease: &LeaseHandle,
    token: Option<FencingToken>,
    store: &mut Store,
    gate: &mut Lines<BufReader<Stdin>>,
) -> Result<bool, Box<dyn Error>> {
    let Some(balance) = store.read(token).await? else {
        return Ok(false);
    };
    println!("read {balance}");
    if !lease.is_held() {
        return Ok(false);
    }
    println!("checked held");
    // Here it may be stopped, as any process may be anywhere, for any time. The gate only sees to it that it is here.
    gate.next_line().await?.ok_or("the demonstration has ended")?;
    let written = store.write(token, balance + DEPOSIT).await?;
    println!("wrote {}", balance + DEPOSIT);
    println!("answer {}", if written { "accepted" } else { "refused" });
    Ok(written)
}

/// Where the balance is.
struct Store(MultiplexedConnection);

impl Store {
    async fn connect(url: &str) -> RedisResult<Store> {
        let client = redis::Client::open(url)?;
        client.get_multiplexed_async_connection().await.map(Store)
    }

    /// The balance; `None` if the token is too old. Without one, the store cannot tell.
    async fn read(&mut self, token: Option<FencingToken>) -> RedisResult<Option<i64>> {
        match token {
            Some(token) => {
                let script = include_str!("../stores/fenced_get.lua");
                let mut call = redis::cmd("EVAL");
                call.arg(script).arg(1).arg(ACCOUNT).arg(token.get());
                match call.query_async(&mut self.0).await {
                    Err(error) if error.code() == Some("STALE") => Ok(None),
                    balance => balance.map(Some),
                }
            }
            None => {
                redis::cmd("HGET")
                    .arg(ACCOUNT)
                    .arg("value")
                    .query_async(&mut self.0)
                    .await
            }
        }
    }

    /// False if the token is too old. Without one, the store cannot tell.
    async fn write(&mut self, token: Option<FencingToken>, balance: i64) -> RedisResult<bool> {
        match token {
            Some(token) => {
                let script = include_str!("../stores/fenced_set.lua");
                let mut call = redis::cmd("EVAL");
                call.arg(script).arg(1).arg(ACCOUNT).arg(token.get()).arg(balance);
                call.query_async(&mut self.0).await
            }
            None => {
                let mut call = redis::cmd("HSET");
                call.arg(ACCOUNT).arg("value").arg(balance);
                call.exec_async(&mut self.0).await?;
                Ok(true)
            }
        }
    }
}
