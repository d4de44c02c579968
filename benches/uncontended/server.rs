//! The cost of a lock for a server: the time that it spends in commands, by its own statistics.

use std::error::Error;

use quorlock::testbed::{TestNode, Testbed};

use crate::contender::{Contender, fresh_name};

/// One server's time, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct ServerTime {
    pub(crate) acquire: f64,
    pub(crate) release: f64,
}

/// Returns the mean over the nodes, for so many acquires and then their releases. `plain`: commands are sent, not only scripts. A
/// script's time includes that of its commands, which are counted under their own names as well.
pub(crate) async fn server_time<C: Contender>(
    contender: &C,
    testbed: &Testbed,
    pairs: usize,
    plain: bool,
) -> Result<ServerTime, Box<dyn Error>> {
    let mut held = Vec::new();
    let before = in_commands(testbed, plain).await?;
    for _ in 0..pairs {
        held.push(contender.acquire(fresh_name()).await?);
        contender.settle().await?;
    }
    let between = in_commands(testbed, plain).await?;
    for lease in held {
        contender.release(lease).await?;
        contender.settle().await?;
    }
    let after = in_commands(testbed, plain).await?;
    let each = |micros: f64| micros / pairs as f64 / testbed.nodes().len() as f64;
    Ok(ServerTime {
        acquire: each(between - before),
        release: each(after - between),
    })
}

/// Returns the microseconds so far, of all nodes.
async fn in_commands(testbed: &Testbed, plain: bool) -> Result<f64, Box<dyn Error>> {
    let mut total = 0.0;
    for node in testbed.nodes() {
        total += of(node, plain).await?;
    }
    Ok(total)
}

async fn of(node: &TestNode, plain: bool) -> Result<f64, Box<dyn Error>> {
    let stats = node.command(&["INFO", "commandstats"]).await?;
    let stats = stats.as_str().ok_or("no statistics")?;
    let micros = |command: &str| {
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let field = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec=")));
        field.and_then(|micros| micros.parse::<f64>().ok()).unwrap_or(0.0)
    };
    Ok(micros("evalsha") + micros("eval") + if plain { micros("set") } else { 0.0 })
}
