//! A test binary that starts itself again, as several competing processes.

use std::env;
use std::process::Stdio;

use tokio::process::{Child, Command};

/// What such a process has to know, from its environment.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) number: u64,
    /// URLs, separated by commas.
    pub(crate) nodes: String,
    /// Where the process keeps its records.
    pub(crate) database: String,
    /// Whether it has the restart guard on.
    pub(crate) guarded: bool,
}

const NUMBER: &str = "QUORLOCK_WORKER_NUMBER";
const NODES: &str = "QUORLOCK_WORKER_NODES";
const DATABASE: &str = "QUORLOCK_WORKER_DATABASE";
const GUARDED: &str = "QUORLOCK_WORKER_GUARDED";

impl Task {
    /// `None` in the process that is the test.
    pub(crate) fn from_env() -> Option<Task> {
        Some(Task {
            number: env::var(NUMBER).ok()?.parse().ok()?,
            nodes: env::var(NODES).ok()?,
            database: env::var(DATABASE).ok()?,
            guarded: env::var(GUARDED).ok()?.parse().ok()?,
        })
    }

    /// The process must end when its input does, and so ends with the test.
    pub(crate) fn start(&self) -> Child {
        Command::new(env::current_exe().unwrap())
            .env(NUMBER, self.number.to_string())
            .env(NODES, &self.nodes)
            .env(DATABASE, &self.database)
            .env(GUARDED, self.guarded.to_string())
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }
}
