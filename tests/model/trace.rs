//! Prints a run as a table: the steps, and the counters after each.

use crate::attempt::{Stage, Work};
use crate::world::{State, Step};
use stateright::Path;
use std::fmt::Write;

fn name(attempt: usize) -> char {
    char::from(b'A' + attempt as u8)
}

/// Describes a step, one line for each piece of work, and one for its effect.
fn told<const N: usize, const A: usize>(before: &State<N, A>, step: &Step) -> Vec<String> {
    let works = |attempt: usize, work: &[Work]| -> Vec<String> {
        let told = work.iter().map(|work| match work {
            Work::Hear { node, counter } => {
                format!("{} hears {counter} from node {}", name(attempt), node + 1)
            }
            Work::Miss { node } => format!("{} counts node {} out", name(attempt), node + 1),
        });
        told.collect()
    };
    let released = |node: usize, from: u8| match from > before.nodes[node].counter {
        true => format!(", which a release has raised to {from},"),
        false => String::new(),
    };
    match step {
        Step::Grant {
            attempt,
            node,
            late,
            from,
        } => {
            let gone: String = before
                .late(*node)
                .take(*late)
                .map(|gone| format!("{} (too late), then ", name(gone)))
                .collect();
            let released = released(*node, *from - *late as u8);
            vec![format!(
                "node {}{released} grants {gone}{} the lock",
                node + 1,
                name(*attempt)
            )]
        }
        Step::Late { node, from } => {
            vec![format!(
                "node {}{} grants too late",
                node + 1,
                released(*node, *from)
            )]
        }
        Step::Raise {
            work,
            attempt,
            node,
            to,
            from,
        } => {
            let mut told = works(*attempt, work);
            let node = format!("node {}{}", node + 1, released(*node, *from));
            told.push(format!("{}'s raise to {to} reaches {node}", name(*attempt)));
            told
        }
        Step::End { work, attempt } => works(*attempt, work),
    }
}

fn outcome<const N: usize, const A: usize>(before: &State<N, A>, after: &State<N, A>) -> String {
    let pairs = before.attempts.iter().zip(&after.attempts).enumerate();
    pairs
        .filter(|(_, (before, after))| before.stage != after.stage)
        .map(|(number, (_, after))| match after.stage {
            Stage::Won { token, .. } => format!(": {} has won token {token}", name(number)),
            Stage::Never => format!(": {} cannot win any more", name(number)),
            Stage::Idle | Stage::Trying(_) => String::new(),
        })
        .collect()
}

pub(crate) fn table<const N: usize, const A: usize>(path: &Path<State<N, A>, Step>) -> String {
    let states = path.clone().into_vec();
    let counters = |state: &State<N, A>| -> String {
        let counters = state.nodes.iter().map(|node| format!("{:>4}", node.counter));
        counters.collect()
    };
    let mut lines = vec![("start".to_owned(), counters(&states[0].0))];
    for pair in states.windows(2) {
        let [(before, Some(step)), (after, _)] = pair else {
            unreachable!("a step between any two states");
        };
        let told = told(before, step);
        lines.extend(told.into_iter().map(|line| (line, counters(before))));
        if let Some(last) = lines.last_mut() {
            last.0 += &outcome(before, after);
            last.1 = counters(after);
        }
    }
    let mut table = format!("  {:56} counters\n", "");
    for (number, (line, counters)) in lines.iter().enumerate() {
        let _ = writeln!(table, "  {number:>2}  {line:54}{counters}");
    }
    table
}
