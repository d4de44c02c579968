//! The arguments, and the size of the measurements.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use crate::Outcome;

pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) pairs: usize,
    pub(crate) window: Duration,
    pub(crate) tasks: &'static [usize],
    pub(crate) fsync_rounds: usize,
    pub(crate) fsync_pairs: usize,
    /// Pairs with distant nodes, which take longer.
    pub(crate) far_pairs: usize,
    pub(crate) most_held: usize,
    pub(crate) stop_rounds: usize,
    pub(crate) stop_window: Duration,
    /// From the stop of a node to the second look. By then, quorlock has given up the connection.
    pub(crate) stopped_for: Duration,
}

impl Plan {
    pub(crate) const FULL: Plan = Plan {
        rounds: 7,
        pairs: 700,
        window: Duration::from_millis(400),
        tasks: &[1, 64, 512],
        fsync_rounds: 3,
        fsync_pairs: 200,
        far_pairs: 50,
        most_held: 100_000,
        stop_rounds: 3,
        stop_window: Duration::from_millis(800),
        stopped_for: Duration::from_millis(3_600),
    };

    pub(crate) const QUICK: Plan = Plan {
        rounds: 1,
        pairs: 100,
        window: Duration::from_millis(200),
        tasks: &[1, 64],
        fsync_rounds: 1,
        fsync_pairs: 30,
        far_pairs: 5,
        most_held: 100,
        stop_rounds: 1,
        stop_window: Duration::from_millis(150),
        stopped_for: Duration::from_millis(400),
    };
}

pub(crate) const PARTS: [&str; 8] = [
    "latency",
    "throughput",
    "stopped",
    "disk",
    "network",
    "spread",
    "nodes",
    "held",
];

pub(crate) struct Arguments {
    pub(crate) quick: bool,
    pub(crate) multi_thread: bool,
    /// The only part to run. `None` runs all.
    pub(crate) only: Option<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) charts: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn parse() -> Outcome<Arguments> {
        let mut parsed = Arguments {
            quick: false,
            multi_thread: false,
            only: None,
            json: None,
            charts: None,
        };
        let mut benched = false;
        let mut words = env::args_os().skip(1);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--bench") => benched = true,
                Some("--quick") => parsed.quick = true,
                Some("--multi-thread") => parsed.multi_thread = true,
                Some("--only") => {
                    let part = words.next().and_then(|word| word.into_string().ok());
                    parsed.only = Some(
                        part.filter(|part| PARTS.contains(&part.as_str()))
                            .ok_or_else(|| format!("--only needs one of {PARTS:?}"))?,
                    );
                }
                Some("--json") => parsed.json = Some(words.next().ok_or("--json needs a file")?.into()),
                Some("--charts") => {
                    parsed.charts = Some(words.next().ok_or("--charts needs a folder")?.into());
                }
                _ => {
                    return Err(format!(
                        "unknown argument {word:?}; \
                         known: --quick --multi-thread --only PART --json FILE --charts FOLDER"
                    )
                    .into());
                }
            }
        }
        // `cargo test --all-targets` runs benchmarks too, only to check that they run.
        parsed.quick |= !benched;
        Ok(parsed)
    }

    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}
