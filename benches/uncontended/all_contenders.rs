//! All contenders, and their measurements.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorlock::testbed::Testbed;
use tokio::time::sleep;

use crate::common::report::Report;
use crate::contender::{self, KnownResources, Quorlock, Rslock};
use crate::floor::Floor;
use crate::measure::{one_by_one, side_by_side};
use crate::mux::Mux;
use crate::plan::Plan;
use crate::server::server_time;
use crate::tables::{Other, Series};
use crate::wire::Requests;
use crate::{Outcome, UP_FOR, urls};

pub(crate) const FLOOR: &str = "floor: blocking sockets";
pub(crate) const SCRIPTED_FLOOR: &str = "floor with quorlock's requests";
pub(crate) const UNFENCED_FLOOR: &str = "floor with those of fencing off";
pub(crate) const MUX: &str = "mux: minimal multiplexer";
pub(crate) const SCRIPTED_MUX: &str = "mux with quorlock's requests";
pub(crate) const UNFENCED_MUX: &str = "mux with those of fencing off";
pub(crate) const RSLOCK: &str = "rslock";
pub(crate) const SCRIPTED: &str = "quorlock";
pub(crate) const PLAIN: &str = "quorlock, fencing off";
pub(crate) const WATCHED: &str = "quorlock, watchdog on";
pub(crate) const FIRST_USE: &str = "quorlock, first use of a name";

/// Contenders whose latencies only explain those of others.
pub(crate) const IN_JSON_ONLY: &[&str] = &[UNFENCED_FLOOR, MUX, SCRIPTED_MUX, UNFENCED_MUX];

/// The bases of latencies. What exceeds "same requests" is not caused by the servers.
pub(crate) const FLOORS: &[Other] = &[
    ("floor", |_| FLOOR),
    ("rslock", |_| RSLOCK),
    ("same requests", |name| match name {
        SCRIPTED | WATCHED | FIRST_USE | SCRIPTED_FLOOR | SCRIPTED_MUX => SCRIPTED_FLOOR,
        PLAIN | UNFENCED_FLOOR | UNFENCED_MUX => UNFENCED_FLOOR,
        _ => FLOOR,
    }),
    ("fencing off", |name| match name {
        SCRIPTED | FIRST_USE | PLAIN => PLAIN,
        _ => "",
    }),
];

/// The bases of throughputs.
pub(crate) const MUXES: &[Other] = &[
    ("mux", |_| MUX),
    ("rslock", |_| RSLOCK),
    ("same requests", |name| match name {
        SCRIPTED | WATCHED | SCRIPTED_MUX => SCRIPTED_MUX,
        PLAIN | UNFENCED_MUX => UNFENCED_MUX,
        _ => MUX,
    }),
];

/// All contenders, each with its own connections.
pub(crate) struct AllContenders {
    floor: Floor,
    scripted_floor: KnownResources<Floor>,
    unfenced_floor: Floor,
    mux: Mux,
    scripted_mux: KnownResources<Mux>,
    unfenced_mux: Mux,
    rslock: Rslock,
    scripted: KnownResources<Quorlock>,
    plain: Quorlock,
    watched: KnownResources<Quorlock>,
    first_use: Quorlock,
}

impl AllContenders {
    pub(crate) async fn connect(addresses: &[SocketAddr]) -> Outcome<AllContenders> {
        sleep(UP_FOR).await;
        let urls = urls(addresses);
        let mux = async |requests| Mux::connect(addresses, requests).await;
        let quorlock =
            async |fencing, watchdog| Quorlock::connect(&urls, fencing, watchdog, contender::TTL).await;
        let first_use = quorlock(true, false).await?;
        first_use.make_known().await?;
        let all_contenders = AllContenders {
            floor: Floor::connect(addresses, Requests::Plain)?,
            scripted_floor: KnownResources::new(Floor::connect(addresses, Requests::Scripted)?),
            unfenced_floor: Floor::connect(addresses, Requests::Unfenced)?,
            mux: mux(Requests::Plain).await?,
            scripted_mux: KnownResources::new(mux(Requests::Scripted).await?),
            unfenced_mux: mux(Requests::Unfenced).await?,
            rslock: Rslock::new(&urls),
            scripted: KnownResources::new(quorlock(true, false).await?),
            plain: quorlock(false, false).await?,
            watched: KnownResources::new(quorlock(true, true).await?),
            first_use,
        };
        all_contenders.latency(1, 50).await; // warms up
        Ok(all_contenders)
    }

    pub(crate) async fn latency(&self, rounds: usize, pairs: usize) -> Vec<Series> {
        let mut all = [
            FLOOR,
            SCRIPTED_FLOOR,
            UNFENCED_FLOOR,
            MUX,
            SCRIPTED_MUX,
            UNFENCED_MUX,
            RSLOCK,
            SCRIPTED,
            PLAIN,
            WATCHED,
            FIRST_USE,
        ]
        .map(Series::new);
        for round in 0..rounds {
            eprintln!("latency: round {} of {rounds}", round + 1);
            for series in &mut all {
                let limit = Duration::from_secs(5);
                series.rounds.push(match series.name {
                    FLOOR => one_by_one(&self.floor, pairs, limit).await,
                    SCRIPTED_FLOOR => one_by_one(&self.scripted_floor, pairs, limit).await,
                    UNFENCED_FLOOR => one_by_one(&self.unfenced_floor, pairs, limit).await,
                    MUX => one_by_one(&self.mux, pairs, limit).await,
                    SCRIPTED_MUX => one_by_one(&self.scripted_mux, pairs, limit).await,
                    UNFENCED_MUX => one_by_one(&self.unfenced_mux, pairs, limit).await,
                    RSLOCK => one_by_one(&self.rslock, pairs, limit).await,
                    PLAIN => one_by_one(&self.plain, pairs, limit).await,
                    WATCHED => one_by_one(&self.watched, pairs, limit).await,
                    FIRST_USE => one_by_one(&self.first_use, pairs, limit).await,
                    _ => one_by_one(&self.scripted, pairs, limit).await,
                });
                pause().await;
            }
        }
        all.into()
    }

    pub(crate) async fn throughput(&self, tasks: usize, rounds: usize, window: Duration) -> Vec<Series> {
        let mut all = [MUX, SCRIPTED_MUX, UNFENCED_MUX, RSLOCK, SCRIPTED, PLAIN, WATCHED].map(Series::new);
        for round in 0..rounds {
            eprintln!("{tasks} tasks: round {} of {rounds}", round + 1);
            for series in &mut all {
                series.rounds.push(match series.name {
                    MUX => side_by_side(&self.mux, tasks, window).await,
                    SCRIPTED_MUX => side_by_side(&self.scripted_mux, tasks, window).await,
                    UNFENCED_MUX => side_by_side(&self.unfenced_mux, tasks, window).await,
                    RSLOCK => side_by_side(&self.rslock, tasks, window).await,
                    PLAIN => side_by_side(&self.plain, tasks, window).await,
                    WATCHED => side_by_side(&self.watched, tasks, window).await,
                    _ => side_by_side(&self.scripted, tasks, window).await,
                });
                pause().await;
            }
        }
        all.into()
    }

    pub(crate) async fn server_times(
        &self,
        testbed: &Testbed,
        pairs: usize,
        report: &mut Report,
    ) -> Outcome<()> {
        let all = [
            (FLOOR, server_time(&self.floor, testbed, pairs, true).await?),
            (
                SCRIPTED_FLOOR,
                server_time(&self.scripted_floor, testbed, pairs, false).await?,
            ),
            (PLAIN, server_time(&self.plain, testbed, pairs, false).await?),
            (
                SCRIPTED,
                server_time(&self.scripted, testbed, pairs, false).await?,
            ),
            (
                FIRST_USE,
                server_time(&self.first_use, testbed, pairs, false).await?,
            ),
        ];
        report.server_times("time that a lock costs each server", &all);
        Ok(())
    }

    /// Measures with nodes that are stopped, and so do not answer.
    pub(crate) async fn stopped(&self, testbed: &Testbed, plan: &Plan, report: &mut Report) -> Outcome<()> {
        let names = [
            "healthy",
            "1 stopped, just now",
            "1 stopped, for longer",
            "2 stopped, just now",
            "2 stopped, for longer",
        ];
        let mut quorlock = names.map(Series::new);
        let mut floor = names.map(Series::new);
        let mut rslock = [names[0], "1 stopped", "2 stopped"].map(Series::new);
        let pairs = usize::MAX;
        for round in 0..plan.stop_rounds {
            eprintln!("stopped nodes: round {} of {}", round + 1, plan.stop_rounds);
            for (down, rslock) in rslock.iter_mut().enumerate() {
                let since = Instant::now();
                if down > 0 {
                    // From the middle of the list: no contender may profit from its order.
                    self.floor.set_awake(down, false);
                    testbed.nodes()[down].stop()?;
                }
                let now = (2 * down).saturating_sub(1);
                quorlock[now]
                    .rounds
                    .push(one_by_one(&self.scripted, pairs, plan.stop_window).await);
                pause().await;
                floor[now]
                    .rounds
                    .push(one_by_one(&self.floor, pairs, plan.stop_window / 4).await);
                // rslock gets the rest of the time until the second look.
                let rest = match down {
                    0 => plan.stop_window,
                    _ => plan.stopped_for.saturating_sub(since.elapsed()),
                };
                rslock.rounds.push(one_by_one(&self.rslock, pairs, rest).await);
                if down > 0 {
                    sleep(plan.stopped_for.saturating_sub(since.elapsed())).await;
                    quorlock[now + 1]
                        .rounds
                        .push(one_by_one(&self.scripted, pairs, plan.stop_window).await);
                    pause().await;
                    floor[now + 1]
                        .rounds
                        .push(one_by_one(&self.floor, pairs, plan.stop_window / 4).await);
                }
            }
            for down in 1..=2 {
                testbed.nodes()[down].resume()?;
                self.floor.set_awake(down, true);
            }
            self.recovered().await?;
        }
        report.worlds(
            "stopped nodes",
            &[("quorlock", &quorlock), ("floor", &floor), ("rslock", &rslock)],
        );
        Ok(())
    }

    /// Waits until all contenders have all nodes again, and clean-ups have ended.
    async fn recovered(&self) -> Outcome<()> {
        let started = Instant::now();
        while [
            self.scripted.contender(),
            &self.plain,
            self.watched.contender(),
            &self.first_use,
        ]
        .iter()
        .any(|contender| contender.up() < 5)
        {
            if started.elapsed() > Duration::from_secs(10) {
                return Err("the nodes were resumed, but not all are up again after 10 s".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_millis(1_500)).await;
        // Late answers and time-outs must be over before anything counts.
        for _ in 0..3 {
            one_by_one(&self.rslock, 1, Duration::from_secs(1)).await;
        }
        contender::Contender::settle(&self.floor).await?;
        Ok(())
    }
}

/// Lets late answers to one contender end before the next one's turn.
async fn pause() {
    sleep(Duration::from_millis(20)).await;
}
