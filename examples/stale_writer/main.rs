//! What fencing tokens are for: a holder is stopped for longer than its lease, and writes when it goes on.
//!
//! ```text
//! cargo run --example stale_writer --features testbed                    # the store refuses the stale write
//! cargo run --example stale_writer --features testbed -- --no-fencing    # the store cannot tell, and an update is lost
//! ```
//!
//! Five real masters for the lock, one more server as the store, and two processes that deposit 100 each: this program
//! again, see `worker.rs`. Ends with 0 if all of it came out as described, in either way.

mod actor;
mod worker;

use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use quorlock::ReleaseOutcome::{AlreadyGone, Released};
use quorlock::testbed::Testbed;

use crate::actor::{Actor, tell};

/// What is locked, and the key in the store.
const ACCOUNT: &str = "account:42";
const DEPOSIT: i64 = 100;
/// Long for the steps of a worker, short for whoever watches.
const TTL: Duration = Duration::from_secs(2);
/// In a worker's environment.
const NODES: &str = "STALE_WRITER_NODES";
const STORE: &str = "STALE_WRITER_STORE";

#[tokio::main]
async fn main() -> ExitCode {
    let fencing = match env::args().nth(1).as_deref() {
        None => true,
        Some("--no-fencing") => false,
        Some(_) => {
            eprintln!("usage: stale_writer [--no-fencing]");
            return ExitCode::from(2);
        }
    };
    let done = match (env::var(NODES), env::var(STORE)) {
        (Ok(nodes), Ok(store)) => worker::work(&nodes, &store, fencing).await,
        _ => demonstrate(fencing).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stale_writer: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demonstrate(fencing: bool) -> Result<(), Box<dyn Error>> {
    let nodes = Testbed::start(5).await?;
    let store = Testbed::start(1).await?;
    let [store] = store.nodes() else {
        return Err("no store".into());
    };
    store.command(&["HSET", ACCOUNT, "value", "0"]).await?;
    let mut command = Command::new(env::current_exe()?);
    command.env(NODES, nodes.urls().join(",")).env(STORE, store.url());
    if !fencing {
        command.arg("--no-fencing");
    }

    let title = if fencing { "With" } else { "Without" };
    println!("{title} fencing tokens: two workers deposit {DEPOSIT} each into an account that holds 0.");
    println!(
        "The lock is a lease of {TTL:?} on five masters, renewed by a watchdog; the account is in a store of its own."
    );
    println!();
    let since = Instant::now();

    let mut first = Actor::start("worker 1", since, &mut command)?;
    let old = first.comes_to_the_write("0").await?;
    first.stop()?;
    first.tell("is stopped (SIGSTOP), and its watchdog with it, between the check and the write:");
    tell(since, "", "no check before the write can exclude this");

    let mut second = Actor::start("worker 2", since, &mut command)?;
    second.tell("starts, and waits for the lock until the lease of worker 1 is over");
    let new = second.comes_to_the_write("0").await?;
    second.let_write()?;
    second.writes("100", "accepted", Released).await?;
    second.ends().await?;

    first.let_write()?;
    first.tell("goes on (SIGCONT) where it was");
    first.resume()?;
    if fencing {
        first.writes("100", "refused", AlreadyGone).await?;
        first.tell("starts over");
        let newest = first.comes_to_the_write("100").await?;
        if !(old < new && new < newest) {
            return Err(format!("tokens do not rise: {old}, {new}, {newest}").into());
        }
        first.let_write()?;
        first.writes("200", "accepted", Released).await?;
    } else {
        first.writes("100", "accepted", AlreadyGone).await?;
    }
    first.ends().await?;

    let balance = store.command(&["HGET", ACCOUNT, "value"]).await?.as_int();
    tell(
        since,
        "store",
        &format!("balance: {}", balance.unwrap_or_default()),
    );
    println!();
    match (fencing, balance) {
        (true, Some(200)) => println!(
            "Both deposits arrived: the store had seen a newer token, refused the stale write, and worker 1 started over."
        ),
        (false, Some(100)) => println!(
            "One deposit is lost: worker 1 overwrote the newer balance, and learned too late that its lease had ended."
        ),
        _ => return Err(format!("a balance of {balance:?} was not expected").into()),
    }
    Ok(())
}
