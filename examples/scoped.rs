//! Runs work under a lock, and cancels it if the lock is lost.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --example scoped
//! ```

use std::error::Error;
use std::time::Duration;

use quorlock::{Redlock, RunError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        std::env::var("QUORLOCK_NODES").map_err(|_| "set QUORLOCK_NODES to comma-separated node URLs")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;

    let outcome = redlock
        .lock("nightly")
        .run(|lease| async move {
            println!("building the report under {:?}", lease.resource());
            tokio::time::sleep(Duration::from_millis(300)).await;
            "17 pages"
        })
        .await;
    match outcome {
        Ok(report) => println!("report: {report}"),
        Err(RunError::Acquire(error)) => println!("not started: {error}"),
        Err(RunError::Lost(lost)) => println!("cancelled half way: {lost}"),
        Err(error) => return Err(error.into()),
    }
    // Deletions in the background would end with the runtime.
    redlock.shutdown().await;
    Ok(())
}
