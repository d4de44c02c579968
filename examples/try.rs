//! Makes one attempt, and tells "held" from an outage.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --example try
//! ```

use std::error::Error;

use quorlock::{AcquireError, Redlock, ReleaseOutcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        std::env::var("QUORLOCK_NODES").map_err(|_| "set QUORLOCK_NODES to comma-separated node URLs")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;

    let first = redlock.lock("leader").try_acquire().await?;
    println!("first: got it ({})", first.votes());

    match redlock.lock("leader").try_acquire().await {
        Ok(_) => return Err("two leaders".into()),
        // Another client is the leader: no failure.
        Err(AcquireError::Held { votes, .. }) => println!("second: not the leader ({votes})"),
        // Too few nodes vote. This is an outage, and never reported as "held".
        Err(error @ AcquireError::NoQuorum { .. }) => return Err(error.into()),
        Err(error) => return Err(error.into()),
    }

    if first.release().await != ReleaseOutcome::Released {
        println!("first: the lease had been lost before it was released");
    }
    let second = redlock.lock("leader").try_acquire().await?;
    println!("second: got it after the first released it");
    // Dropping a lease releases it in the background. `shutdown` waits for that.
    drop(second);
    redlock.shutdown().await;
    Ok(())
}
