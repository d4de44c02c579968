//! A lock as a value: work on under it, and stop when it is lost.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --example guard
//! ```

use std::error::Error;
use std::time::Duration;

use quorlock::{Redlock, ReleaseOutcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        std::env::var("QUORLOCK_NODES").map_err(|_| "QUORLOCK_NODES is to hold the URLs of the nodes")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;

    let lease = redlock
        .lock("invoice:42")
        .ttl(Duration::from_secs(10))
        .within(Duration::from_secs(5))
        .acquire()
        .await?;
    println!("held: {}", lease.votes());
    if let Some(token) = lease.fencing_token() {
        println!("fencing token {token}, for the store to refuse smaller ones");
    }
    println!(
        "believable for {:?} more, unless renewed; a watchdog sees to that",
        lease.remaining()
    );

    tokio::select! {
        biased; // a loss comes before a result
        lost = lease.lost() => return Err(lost.into()),
        () = charge() => println!("charged"),
    }

    match lease.release().await {
        ReleaseOutcome::Released => println!("released"),
        other => println!("{other}"),
    }
    // Nothing was cancelled here, so this returns at once.
    redlock.shutdown().await;
    Ok(())
}

async fn charge() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}
