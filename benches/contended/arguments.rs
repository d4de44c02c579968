use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use crate::bench::Bench;
use crate::contender::ContenderKind;
use crate::plan::{PAUSE, World};
use crate::{blocked, contention, faults, idle, wake_ups};

#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) quick: bool,
    pub(crate) multi_thread: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) charts: Option<PathBuf>,
    only: Vec<ContenderKind>,
    parts: Vec<Part>,
    processes: Vec<usize>,
    waiters: Vec<usize>,
}

const KNOWN: &str = "known: --quick --multi-thread --json FILE --charts FOLDER --only NAME --part PART --processes N --waiters N";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Contention,
    Faults,
    Idle,
    Blocked,
    WakeUps,
}

impl Part {
    const ALL: [(&str, Part); 5] = [
        ("contention", Part::Contention),
        ("faults", Part::Faults),
        ("idle", Part::Idle),
        ("blocked", Part::Blocked),
        ("wake-ups", Part::WakeUps),
    ];

    /// Announces how long the part is going to take.
    pub(crate) fn plan(self, bench: &Bench) {
        match self {
            Part::Contention => contention::plan(bench),
            Part::Faults => faults::plan(bench),
            Part::Idle => idle::plan(bench),
            Part::Blocked => blocked::plan(bench),
            Part::WakeUps => wake_ups::plan(bench),
        }
    }
}

impl Arguments {
    pub(crate) fn parse() -> Result<Arguments, Box<dyn Error>> {
        let mut parsed = Arguments::default();
        let mut benched = false;
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--bench" => benched = true,
                "--quick" => parsed.quick = true,
                "--multi-thread" => parsed.multi_thread = true,
                "--json" => parsed.json = Some(value()?.into()),
                "--charts" => parsed.charts = Some(value()?.into()),
                "--only" => {
                    let name = value()?;
                    let who = ContenderKind::matching(&name);
                    if who.is_empty() {
                        let names = ContenderKind::ALL.map(ContenderKind::name).join("; ");
                        return Err(format!("no contender is called {name:?}; known: {names}").into());
                    }
                    parsed.only.extend(who);
                }
                "--part" => {
                    let name = value()?;
                    let part = Part::ALL.into_iter().find(|(known, _)| *known == name);
                    let names = Part::ALL.map(|(known, _)| known).join(", ");
                    let part = part.ok_or_else(|| format!("there is no part {name:?}; known: {names}"))?;
                    parsed.parts.push(part.1);
                }
                "--processes" => parsed.processes.push(value()?.parse()?),
                "--waiters" => parsed.waiters.push(value()?.parse()?),
                _ => return Err(format!("unknown argument {word:?}; {KNOWN}").into()),
            }
        }
        // `cargo test --all-targets` runs benchmarks too, only to check that they run.
        parsed.quick |= !benched;
        Ok(parsed)
    }

    pub(crate) fn contenders(&self) -> Vec<ContenderKind> {
        let mut all = ContenderKind::ALL.to_vec();
        all.retain(|who| self.only.is_empty() || self.only.contains(who));
        all
    }

    /// Returns the parts to run. If only worlds are named, that is contention, the only part with worlds.
    pub(crate) fn parts(&self) -> Vec<Part> {
        if !self.parts.is_empty() {
            self.parts.clone()
        } else if self.worlds().is_some() {
            vec![Part::Contention]
        } else {
            Part::ALL.map(|(_, part)| part).to_vec()
        }
    }

    /// Returns the named worlds: all combinations of processes and waiters, with and without a pause. `None` if none is named.
    pub(crate) fn worlds(&self) -> Option<Vec<World>> {
        let or = |given: &[usize], default| {
            if given.is_empty() {
                vec![default]
            } else {
                given.to_vec()
            }
        };
        if self.processes.is_empty() && self.waiters.is_empty() {
            return None;
        }
        let mut worlds = Vec::new();
        for processes in or(&self.processes, 1) {
            for &waiters in &or(&self.waiters, 4) {
                for pause in [Duration::ZERO, PAUSE] {
                    worlds.push(World::new(processes, waiters, pause));
                }
            }
        }
        Some(worlds)
    }
}
