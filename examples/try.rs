//! One attempt: do it, or leave it to whoever has the lock. Held, out of reach and misconfigured are told apart.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --example try
//! ```

use std::error::Error;

use quorlock::{AcquireError, Redlock, ReleaseOutcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        std::env::var("QUORLOCK_NODES").map_err(|_| "QUORLOCK_NODES is to hold the URLs of the nodes")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;

    let first = redlock.lock("leader").try_acquire().await?;
    println!("first: got it ({})", first.votes());

    match redlock.lock("leader").try_acquire().await {
        Ok(_) => return Err("two leaders".into()),
        // Held by somebody else: the normal case, not a failure.
        Err(AcquireError::Held { votes, .. }) => println!("second: not the leader ({votes})"),
        // Too few nodes answer. Nobody can be leader now; this is worth an alarm, and is never "held".
        Err(error @ AcquireError::NoQuorum { .. }) => return Err(error.into()),
        Err(error) => return Err(error.into()),
    }

    if first.release().await != ReleaseOutcome::Released {
        println!("first: the lease had been lost before it was released");
    }
    let second = redlock.lock("leader").try_acquire().await?;
    println!("second: got it after the first released it");
    // Dropping a lease releases it too, in the background; shutdown waits for that.
    drop(second);
    redlock.shutdown().await;
    Ok(())
}
