//! The commands that the Redis servers executed, by their own statistics.

use std::collections::BTreeMap;
use std::error::Error;

use quorlock::testbed::Testbed;

/// Commands that only scripts call, except for `SET`, which some contenders send.
const IN_SCRIPTS: [&str; 10] = [
    "del", "get", "incr", "incrby", "mget", "pexpire", "pttl", "publish", "set", "time",
];
/// Commands of the benchmark itself.
const OURS: [&str; 5] = ["info", "ping", "hello", "client|kill", "client|id"];

/// The calls of each command so far, of all servers together.
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) async fn so_far(testbed: Option<&Testbed>) -> Result<Commands, Box<dyn Error>> {
        let mut all = BTreeMap::new();
        for node in testbed.into_iter().flat_map(Testbed::nodes) {
            let stats = node.command(&["INFO", "commandstats"]).await?;
            let lines = stats.as_str().ok_or("no statistics")?.lines();
            for (name, figures) in lines.filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':')) {
                let calls = figures
                    .strip_prefix("calls=")
                    .and_then(|rest| rest.split(',').next());
                *all.entry(name.to_owned()).or_default() += calls.ok_or("no calls")?.parse::<u64>()?;
            }
        }
        Ok(Commands(all))
    }

    /// Returns how many commands clients have sent since then: scripts, and commands that scripts do not call.
    pub(crate) fn sent_since(&self, before: &Commands, sends_set: bool) -> u64 {
        self.since(before, |name| {
            let in_script = IN_SCRIPTS.contains(&name) && !(sends_set && name == "set");
            !in_script && !OURS.contains(&name)
        })
    }

    /// Returns how many commands were executed, inside scripts or not.
    pub(crate) fn executed_since(&self, before: &Commands) -> u64 {
        self.since(before, |name| !OURS.contains(&name))
    }

    fn since(&self, before: &Commands, counts: impl Fn(&str) -> bool) -> u64 {
        let counted = self.0.iter().filter(|(name, _)| counts(name));
        let more = counted.map(|(name, calls)| calls - before.0.get(name).unwrap_or(&0));
        more.sum()
    }
}
