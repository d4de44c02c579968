//! What this process uses.

use std::fmt;
use std::fs;

use quorlock::testbed::Testbed;
use tokio::runtime::Handle;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Resident, in bytes.
    pub(crate) memory: u64,
    pub(crate) tasks: usize,
    pub(crate) files: usize,
    /// To all nodes that answer.
    pub(crate) connections: usize,
}

impl Usage {
    pub(crate) async fn now(testbed: &Testbed) -> Usage {
        let mut connections = 0;
        for node in testbed.nodes() {
            let Ok(answer) = node.command(&["CLIENT", "LIST"]).await else {
                continue;
            };
            // Without those that ask.
            let asking = |line: &&str| !line.contains("cmd=client|list");
            connections += answer.as_str().unwrap().lines().filter(asking).count();
        }
        Usage {
            memory: resident(),
            tasks: Handle::current().metrics().num_alive_tasks(),
            files: fs::read_dir("/proc/self/fd").unwrap().count(),
            connections,
        }
    }

    /// Returns whether nothing new is left. Allocators keep memory, so it is not compared.
    pub(crate) fn holds_no_more_than(&self, before: &Usage) -> bool {
        self.tasks <= before.tasks && self.files <= before.files && self.connections <= before.connections
    }

    pub(crate) fn each(&self, before: &Usage, count: usize) -> u64 {
        self.memory.saturating_sub(before.memory) / count as u64
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>7} KB, {:>6} tasks, {:>3} files, {:>2} connections",
            self.memory >> 10,
            self.tasks,
            self.files,
            self.connections
        )
    }
}

pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
