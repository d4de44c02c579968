//! Holds a lock as a value, and stops the work if the lock is lost.
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
        std::env::var("QUORLOCK_NODES").map_err(|_| "set QUORLOCK_NODES to comma-separated node URLs")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;

    let lease = redlock
        .lock("invoice:42")
        .ttl(Duration::from_secs(10))
        .within(Duration::from_secs(5))
        .acquire()
        .await?;
    println!("held: {}", lease.votes());
    if let Some(token) = lease.fencing_token() {
        println!("fencing token {token}: the store refuses smaller ones");
    }
    println!(
        "valid for {:?} more; the watchdog renews it in the background",
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
    // Returns at once: no deletion is left in the background.
    redlock.shutdown().await;
    Ok(())
}

async fn charge() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}
