//! The settings and faults of a run, drawn from its seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::server::{Memory, ServerClock};

/// The servers' time at the beginning of every run, in microseconds since 1970.
const EPOCH: i64 = 1_795_000_000_000_000;
pub(crate) const LONGEST_TTL: u64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Profile {
    Calm,
    Crashes,
    Network,
    Pauses,
    Clocks,
    Everything,
}

impl Profile {
    pub(crate) const ALL: [Profile; 6] = [
        Profile::Calm,
        Profile::Crashes,
        Profile::Network,
        Profile::Pauses,
        Profile::Clocks,
        Profile::Everything,
    ];

    fn has(self, other: Profile) -> bool {
        self == other || self == Profile::Everything
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Profile::Calm => "calm",
            Profile::Crashes => "crashes",
            Profile::Network => "network",
            Profile::Pauses => "pauses",
            Profile::Clocks => "clocks",
            Profile::Everything => "everything",
        })
    }
}

/// The one-way latency of messages, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Latency {
    Constant(u64),
    Jitter(u64, u64),
    /// The usual latency; one message in so many takes up to the third number longer.
    Tail(u64, u64, u64),
}

impl Latency {
    fn choose(rng: &mut Rng, calm: bool) -> Latency {
        match rng.u8(..if calm { 2 } else { 4 }) {
            0 => Latency::Constant(rng.u64(1..=6)),
            1 => Latency::Jitter(1, rng.u64(2..=12)),
            2 => Latency::Tail(rng.u64(1..=4), rng.u64(5..=60), rng.u64(20..=200)),
            _ => Latency::Tail(rng.u64(1..=8), rng.u64(10..=40), rng.u64(200..=900)),
        }
    }

    pub(crate) fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Latency::Constant(latency) => latency,
            Latency::Jitter(low, high) => rng.u64(low..=high),
            Latency::Tail(usual, one_in, most) => match rng.u64(..one_in) {
                0 => rng.u64(usual..=usual + most),
                _ => usual + rng.u64(..=1),
            },
        }
    }
}

/// A fault. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    Crash {
        server: usize,
        memory: Memory,
        down: u64,
    },
    Stop {
        server: usize,
        time: u64,
    },
    Cut {
        client: usize,
        server: usize,
        there: bool,
        back: bool,
        time: u64,
    },
    /// Only the connection breaks.
    Break {
        client: usize,
        server: usize,
    },
    Flush {
        server: usize,
    },
    /// The server's clock is set by this many milliseconds.
    Step {
        server: usize,
        by: i64,
    },
    Pause {
        client: usize,
        time: u64,
        suspended: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) clients: usize,
    pub(crate) tasks: Vec<usize>,
    /// Whether a resource is used with fencing.
    pub(crate) fenced: Vec<bool>,
    pub(crate) ttl: (u64, u64),
    /// The end of faults and new acquires.
    pub(crate) until: u64,
    pub(crate) guard: Option<Duration>,
    pub(crate) retention: Duration,
    /// By client and server.
    pub(crate) latencies: Vec<Vec<Latency>>,
    pub(crate) clocks: Vec<ServerClock>,
    pub(crate) durable: Vec<bool>,
    pub(crate) troubles: Vec<(u64, Trouble)>,
    /// Clocks run at about the same rate, and are never set.
    pub(crate) clocks_behave: bool,
    /// No server loses data.
    pub(crate) memory_intact: bool,
    /// Tokens rise: lost counters start anew ahead of the old ones.
    pub(crate) counters_keep_order: bool,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let rng = &mut Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
        let profile = Profile::ALL[rng.usize(..Profile::ALL.len())];
        let calm = profile == Profile::Calm;
        let servers = [3, 3, 3, 4, 5, 5][rng.usize(..6)];
        let clients = rng.usize(2..=4);
        let clocks_behave = !profile.has(Profile::Clocks) || (profile == Profile::Everything && rng.bool());
        let forgets = profile.has(Profile::Crashes) && rng.u8(..3) > 0;
        // Lost counters start ahead of the old ones only if the servers' clocks agree.
        let agree = forgets || rng.bool();
        let shortest = [200, 200, 500, 1_000][rng.usize(..4)];
        let longest = rng.u64(shortest..=LONGEST_TTL);
        let short_retention = rng.u8(..4) == 0 && agree && clocks_behave;
        let clock = |rng: &mut Rng| ServerClock {
            base: EPOCH
                + if agree {
                    rng.i64(-400_000..=400_000)
                } else {
                    rng.i64(-7_200_000_000..=7_200_000_000)
                },
            ppm: if clocks_behave {
                rng.i64(-4_000..=4_000)
            } else {
                rng.i64(-30_000..=30_000)
            },
        };
        let mut plan = Plan {
            profile,
            clients,
            tasks: (0..clients).map(|_| rng.usize(1..=3)).collect(),
            fenced: (0..rng.usize(1..=3)).map(|_| rng.u8(..5) > 0).collect(),
            ttl: (shortest, longest),
            until: rng.u64(3_000..=if forgets { 12_000 } else { 9_000 }),
            guard: (rng.u8(..8) > 0).then(|| Duration::from_millis(rng.u64(2_500..=4_000))),
            retention: if short_retention {
                Duration::from_millis(5_000.max(longest * 10))
            } else {
                Duration::from_secs(86_400)
            },
            latencies: (0..clients)
                .map(|_| (0..servers).map(|_| Latency::choose(rng, calm)).collect())
                .collect(),
            clocks: (0..servers).map(|_| clock(rng)).collect(),
            durable: (0..servers).map(|_| !forgets || rng.u8(..4) == 0).collect(),
            troubles: Vec::new(),
            clocks_behave,
            memory_intact: !forgets,
            counters_keep_order: false,
        };
        plan.counters_keep_order = plan.memory_intact || (plan.guard.is_some() && clocks_behave);
        plan.trouble(rng);
        plan
    }

    /// Returns the look period (P).
    pub(crate) fn look_period(&self) -> Duration {
        let window = self.guard.unwrap_or(Duration::from_secs(30));
        (window / 6).clamp(Duration::from_millis(500), Duration::from_secs(5))
    }

    /// Returns whether leases must not overlap (I1).
    pub(crate) fn excludes(&self) -> bool {
        self.clocks_behave && (self.memory_intact || self.guard.is_some())
    }

    fn trouble(&mut self, rng: &mut Rng) {
        if self.profile == Profile::Calm {
            return;
        }
        let mut kinds = Vec::new();
        let has = |profile| self.profile.has(profile);
        if has(Profile::Crashes) {
            kinds.extend([0, 0]);
            if !self.memory_intact {
                kinds.push(7);
            }
        }
        if has(Profile::Network) {
            kinds.extend([1, 2, 3, 4]);
        }
        if has(Profile::Pauses) {
            kinds.extend([5, 5]);
        }
        // In some runs, clocks run at different rates, and nothing else happens to them.
        if has(Profile::Clocks) && !self.clocks_behave && rng.u8(..4) > 0 {
            kinds.extend([6, 6]);
        }
        if kinds.is_empty() {
            return;
        }
        let count = rng.u64(1..=self.until / 500);
        for _ in 0..count {
            let at = rng.u64(100..self.until - 1_500);
            let most = (self.until - at).min(if rng.u8(..3) == 0 { 4_000 } else { 1_200 });
            let time = rng.u64(5..most);
            let trouble = self.one(kinds[rng.usize(..kinds.len())], time, rng);
            self.troubles.push((at, trouble));
        }
    }

    fn one(&self, kind: u8, time: u64, rng: &mut Rng) -> Trouble {
        let (server, client) = (rng.usize(..self.clocks.len()), rng.usize(..self.clients));
        match kind {
            0 => Trouble::Crash {
                server,
                memory: match (self.durable[server], rng.u8(..3)) {
                    (true, _) => Memory::Kept,
                    (false, 0) => Memory::Older(rng.u64(0..=1_000)),
                    (false, _) => Memory::Lost,
                },
                down: if rng.bool() { rng.u64(5..=100) } else { time },
            },
            1 => Trouble::Stop { server, time },
            2 => Trouble::Cut {
                client,
                server,
                there: true,
                back: true,
                time,
            },
            3 => {
                let there = rng.bool();
                Trouble::Cut {
                    client,
                    server,
                    there,
                    back: !there,
                    time,
                }
            }
            4 => Trouble::Break { client, server },
            5 => Trouble::Pause {
                client,
                time,
                suspended: rng.bool(),
            },
            7 => Trouble::Flush { server },
            _ => {
                let by = if rng.bool() {
                    rng.i64(20..=2_500)
                } else {
                    rng.i64(2_500..=60_000)
                };
                Trouble::Step {
                    server,
                    by: if rng.u8(..3) == 0 { -by } else { by },
                }
            }
        }
    }
}
