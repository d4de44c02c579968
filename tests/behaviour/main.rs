//! The lock's behaviour on real servers. Each test runs in several worlds (`world.rs`).
//!
//! By default, the tests start servers (feature `testbed`). Tests that break nothing share those of a world. If `QUORLOCK_NODES`
//! is set (URLs, separated by commas), the tests use these nodes. `QUORLOCK_DEAD=k` says that the last k do not answer. Tests
//! that break or flush nodes are then left out, and no key stays.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod detaching;
mod drops;
mod errors;
mod exclusion;
mod expiry;
mod extending;
mod fencing;
mod holders;
mod keeping;
#[path = "../common/log.rs"]
mod log;
mod names;
mod nodes;
mod outages;
mod periods;
#[path = "../common/polled.rs"]
mod polled;
mod releasing;
mod running;
mod runtimes;
mod secrets;
mod servers;
mod waiting;
mod world;

use std::env;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Trial};
use world::{Behaviour, Case, WORLDS, World, on_a_runtime};

/// Tests mostly sleep.
const TESTS_AT_A_TIME: usize = 12;

fn behaviours() -> Vec<Behaviour> {
    [
        detaching::behaviours(),
        drops::behaviours(),
        errors::behaviours(),
        exclusion::behaviours(),
        expiry::behaviours(),
        extending::behaviours(),
        fencing::behaviours(),
        fencing::counted(),
        holders::behaviours(),
        keeping::behaviours(),
        names::behaviours(),
        outages::behaviours(),
        periods::behaviours(),
        releasing::behaviours(),
        running::behaviours(),
        runtimes::behaviours(),
        secrets::behaviours(),
        waiting::behaviours(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn cases() -> Vec<Case> {
    [
        nodes::cases(),
        outages::cases(),
        secrets::cases(),
        servers::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TESTS_AT_A_TIME);
    let (trials, worlds) = match env::var("QUORLOCK_NODES") {
        Ok(nodes) if !nodes.trim().is_empty() => external(&nodes),
        _ => own(),
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    for world in worlds.into_iter().filter_map(Arc::into_inner) {
        if let Some(world) = world.into_inner() {
            on_a_runtime(false, world.end());
        }
    }
    conclusion.exit_code()
}

/// Started by the first test that needs it.
type SharedWorld = Arc<OnceLock<World>>;

fn own() -> (Vec<Trial>, Vec<SharedWorld>) {
    let (mut trials, mut worlds) = (Vec::new(), Vec::new());
    for spec in WORLDS {
        let shared = SharedWorld::default();
        for Behaviour {
            name,
            own_nodes_only,
            run,
        } in behaviours()
        {
            let shared = shared.clone();
            let start = move || on_a_runtime(false, World::start(spec));
            trials.push(trial(name, spec.name, move || {
                if own_nodes_only {
                    let world = start();
                    on_a_runtime(spec.threads, run(&world));
                    on_a_runtime(false, world.end());
                } else {
                    on_a_runtime(spec.threads, run(shared.get_or_init(start)));
                }
            }));
        }
        worlds.push(shared);
    }
    for Case { name, run } in cases() {
        trials.push(trial(name, "own", move || on_a_runtime(false, run())));
    }
    (trials, worlds)
}

fn external(nodes: &str) -> (Vec<Trial>, Vec<SharedWorld>) {
    let urls: Vec<String> = nodes.split(',').map(|url| url.trim().to_owned()).collect();
    let dead: usize = match env::var("QUORLOCK_DEAD") {
        Ok(dead) => dead.trim().parse().expect("QUORLOCK_DEAD must be a number"),
        Err(_) => 0,
    };
    assert!(
        dead < urls.len() - urls.len() / 2,
        "QUORLOCK_DEAD leaves no quorum: no test can pass. Lower it"
    );
    let shared = SharedWorld::new(World::external(urls, dead).into());
    let trials = behaviours()
        .into_iter()
        .filter(|behaviour| !behaviour.own_nodes_only)
        .map(|Behaviour { name, run, .. }| {
            let shared = shared.clone();
            trial(name, "external", move || {
                on_a_runtime(false, run(shared.get().unwrap()));
            })
        })
        .collect();
    (trials, vec![shared])
}

/// The name is `theme::behaviour::world`.
fn trial(name: &str, world: &str, work: impl FnOnce() + Send + 'static) -> Trial {
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    Trial::test(format!("{name}::{world}"), move || {
        work();
        Ok(())
    })
}
