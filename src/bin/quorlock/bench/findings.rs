//! What the figures mean, in plain words.

mod nodes;
#[cfg(test)]
mod tests;

use super::Results;
use super::pairs::Pairs;
use super::round_trips::Node;
use super::text::{grouped, ms, whole};

/// Whoever gets a lock so much more often than the mean has an advantage.
const UNFAIR: f64 = 1.5;

/// Something to know, or to do something about.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) is_advice: bool,
    /// For programs.
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

fn note(code: &'static str, text: String) -> Finding {
    Finding {
        is_advice: false,
        code,
        text,
    }
}

fn advice(code: &'static str, text: String) -> Finding {
    Finding {
        is_advice: true,
        code,
        text,
    }
}

pub(crate) fn findings(results: &Results) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(build());
    all.extend(cost(results));
    all.extend(nodes::standing(results));
    all.extend(nodes::slow(results));
    all.extend(nodes::budget(results));
    all.extend(nodes::fencing(results));
    all.extend(throughput(&results.pairs));
    all.extend(hand_over(results));
    all.extend(failures(results));
    all.extend(nodes::settings(results));
    all
}

fn build() -> Option<Finding> {
    cfg!(debug_assertions).then(|| {
        advice(
            "unoptimised_build",
            "This is an unoptimised build of quorlock, and several times slower than it could be. Build it with --release.".to_owned(),
        )
    })
}

fn cost(results: &Results) -> Option<Finding> {
    let one = results.pairs.first()?;
    let (acquire, release) = (one.acquire.median()?, one.release.median()?);
    let (rarely, longest) = (one.acquire.percentile(99.0)?, one.acquire.max()?);
    Some(note(
        "cost",
        format!(
            "A lock costs {} ms: {} to acquire it, {} to release it (medians). One acquire in a hundred takes more than {} ms; the longest took {}.",
            ms(acquire + release),
            ms(acquire),
            ms(release),
            ms(rarely),
            ms(longest)
        ),
    ))
}

fn throughput(pairs: &[Pairs]) -> Option<Finding> {
    let best = pairs
        .iter()
        .max_by(|a, b| a.per_second().total_cmp(&b.per_second()))?;
    if pairs.len() < 2 || best.done() == 0 {
        return None;
    }
    let rate = |pairs: &Pairs| grouped(whole(pairs.per_second()));
    let mut text = match best.tasks {
        1 => format!(
            "This process takes and releases {} locks a second, one after the other, and no more with more tasks.",
            rate(best)
        ),
        many => format!(
            "This process takes and releases up to {} locks a second, with {}; one after the other, {}.",
            rate(best),
            tasks(many),
            rate(&pairs[0])
        ),
    };
    if best.cpu_percent() >= 80.0 {
        text.push_str(&format!(
            " It is busy for {:.0} % of a processor then: the limit is here as much as on the nodes.",
            best.cpu_percent()
        ));
    }
    Some(note("throughput", text))
}

fn hand_over(results: &Results) -> Vec<Finding> {
    let Some(all) = &results.hand_over else {
        return Vec::new();
    };
    let (Some(gap), Some(held), Some(unfairness)) = (all.gap.median(), all.held.median(), all.unfairness())
    else {
        return Vec::new();
    };
    let mut found = vec![note(
        "hand_over",
        format!(
            "A lock that is waited for in the same process goes from one to the next in {} ms. Held for {} ms each time (--hold {}, and what timers add), it changes hands {} times a second.",
            ms(gap),
            ms(held),
            humantime::format_duration(results.plan.hold),
            grouped(whole(all.per_second()))
        ),
    )];
    if unfairness > UNFAIR {
        found.push(advice(
            "unfair",
            format!("One of the waiters got the lock {unfairness:.1} x as often as the mean."),
        ));
    }
    found
}

fn failures(results: &Results) -> Vec<Finding> {
    let mut found = Vec::new();
    let with_tasks = results
        .pairs
        .iter()
        .map(|pairs| (tasks(pairs.tasks), &pairs.failures));
    let handed = results
        .hand_over
        .iter()
        .map(|all| ("hand-over".to_owned(), &all.failures));
    let of_nodes = results
        .nodes
        .iter()
        .filter(|node| !nodes::is_silent(results, node))
        .map(|node| (node.name.to_string(), &node.failures));
    for (place, failures) in with_tasks.chain(handed).chain(of_nodes) {
        for (operation, kind, failed) in failures.iter() {
            let (count, first) = (grouped(failed.count), &failed.first);
            found.push(advice(
                "failures",
                format!("{place}: {operation} failed, {count} x {kind}. The first: {first}"),
            ));
        }
    }
    found.extend(results.nodes.iter().filter_map(|node| faults(results, node)));
    found
}

/// Why a node that voted now and then did not always. One that never did has been named.
fn faults(results: &Results, node: &Node) -> Option<Finding> {
    let part = results.part(&node.name);
    if part.heard + part.not_waited_for == 0 {
        return None;
    }
    // That it is away has been said.
    let is_news = |kind: &str| node.trouble.is_none() || kind != "not_connected";
    let faults: Vec<String> = part
        .faults
        .iter()
        .filter(|(kind, _)| is_news(kind))
        .map(|(kind, count)| format!("{} x {kind}", grouped(*count)))
        .collect();
    (!faults.is_empty()).then(|| {
        advice(
            "node_faults",
            format!(
                "{} gave no vote for some of the locks: {}.",
                node.name,
                faults.join(", ")
            ),
        )
    })
}

pub(crate) fn tasks(number: usize) -> String {
    match number {
        1 => "one task".to_owned(),
        _ => format!("{} tasks", grouped(number as u64)),
    }
}

/// A ratio as a person wants it: two digits are precise enough.
fn times(ratio: f64) -> String {
    if ratio < 10.0 {
        return format!("{ratio:.1}");
    }
    let unit = 10_f64.powf(ratio.log10().floor() - 1.0);
    grouped(((ratio / unit).round() * unit) as u64)
}
