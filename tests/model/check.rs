//! The properties, and the runs of the checker.

use crate::attempt::Stage;
use crate::set::Set;
use crate::trace;
use crate::world::{State, Step, World};
use stateright::{Checker, Model, Property};
use std::time::Instant;

pub(crate) const DIFFER: &str = "tokens of winners differ";
pub(crate) const ORDERED: &str = "an attempt that begins after a win gets a larger token";
const OVERTAKEN: &str = "an attempt wins while another winner holds";
const RAISED: &str = "an attempt wins by a raise";
const AHEAD: &str = "a late grant is ahead of the token";
const GROWN: &str = "the token grows";
const NEVER: &str = "an attempt cannot win any more";
const ALL: &str = "all attempts win";

impl<const N: usize, const A: usize> Model for World<N, A> {
    type State = State<N, A>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        self.starts()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Step>) {
        self.steps(state, actions);
    }

    fn next_state(&self, state: &Self::State, step: Step) -> Option<Self::State> {
        Some(self.after(state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(DIFFER, |_, state: &State<N, A>| {
                let mut seen = Set::default();
                state.won().all(|token| {
                    let new = !seen.contains(token.into());
                    seen.insert(token.into());
                    new
                })
            }),
            Property::always(ORDERED, |_, state: &State<N, A>| {
                !any(state, |stage| matches!(stage, Stage::Won { ordered: false, .. }))
            }),
            Property::sometimes(RAISED, |_, state: &State<N, A>| {
                any(state, |stage| matches!(stage, Stage::Won { raised: true, .. }))
            }),
            Property::sometimes(AHEAD, |_, state: &State<N, A>| {
                any(
                    state,
                    |stage| matches!(stage, Stage::Trying(trying) if trying.sees_one_ahead()),
                )
            }),
            Property::sometimes(GROWN, |_, state: &State<N, A>| {
                state.attempts.iter().any(|attempt| attempt.has_raised_its_aim())
            }),
            Property::sometimes(NEVER, |_, state: &State<N, A>| {
                any(state, |stage| *stage == Stage::Never)
            }),
            Property::sometimes(ALL, |_, state: &State<N, A>| state.won().count() == A),
        ];
        // Without releases, the first of two winners still holds the lock, as far as it knows.
        if !self.releases {
            properties.push(Property::sometimes(OVERTAKEN, |_, state: &State<N, A>| {
                state.won().count() == 2
            }));
        }
        properties
    }
}

fn any<const N: usize, const A: usize>(state: &State<N, A>, is: impl Fn(&Stage) -> bool) -> bool {
    state.attempts.iter().any(|attempt| is(&attempt.stage))
}

/// Checks every state. There must be `at_least` so many: a smaller model would prove less.
pub(crate) fn exhaust<const N: usize, const A: usize>(world: World<N, A>, at_least: usize) {
    let started = Instant::now();
    println!(
        "\n{N} nodes, {A} attempts, counters from 0..={}, releases: {}",
        world.spread, world.releases
    );
    let checker = world.checker().threads(2).spawn_bfs().join();
    println!(
        "  {} states, {} steps, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed()
    );
    let found = checker.discoveries();
    for property in checker.model().properties() {
        let verdict = match (
            property.expectation.discovery_is_failure(),
            found.get(property.name),
        ) {
            (true, None) => "always".to_owned(),
            (true, Some(path)) => {
                println!("{}", trace::table(path));
                "VIOLATED".to_owned()
            }
            (false, None) => "NEVER FOUND".to_owned(),
            (false, Some(path)) => format!("found, after {} steps", path.clone().into_actions().len()),
        };
        println!("  {verdict:<24} {}", property.name);
    }
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() >= at_least, "the model has shrunk");
}

/// Finds a shortest run that breaks the promise.
pub(crate) fn refute<const N: usize, const A: usize>(world: &World<N, A>, promise: &'static str) {
    println!("\n{:?}, on {N} nodes, breaks the promise: {promise}", world.rules);
    for depth in 1.. {
        // One thread finds the same run every time.
        let checker = world.clone().checker().target_max_depth(depth).spawn_bfs().join();
        assert!(checker.max_depth() + 1 >= depth, "there is no such run");
        if let Some(path) = checker.discovery(promise) {
            println!("{}", trace::table(&path));
            return;
        }
    }
}
