//! The processes that compete for the locks.

use std::time::Duration;

use quorlock::testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

use crate::NODES;
use crate::common::PATIENCE;
use crate::fault::FaultModel;
use crate::postgres::Database;
use crate::task::Task;

pub(crate) const PROCESSES: usize = 4;
/// Processes with other lists of nodes are numbered from here.
pub(crate) const INTRUDERS: u64 = 1_000_000;

pub(crate) struct Workers {
    running: Vec<Child>,
    intruder: Option<Child>,
    /// Of the worker that was started last.
    task: Task,
}

impl Workers {
    pub(crate) fn start(testbed: &Testbed, database: &Database, model: FaultModel) -> Workers {
        let mut workers = Workers {
            running: Vec::new(),
            intruder: None,
            task: Task {
                number: 0,
                nodes: testbed.urls()[..NODES].join(","),
                database: database.address(),
                guarded: model.is_guarded(),
            },
        };
        for _ in 0..PROCESSES {
            let worker = workers.another();
            workers.running.push(worker);
        }
        workers
    }

    fn another(&mut self) -> Child {
        self.task.number += 1;
        self.task.start()
    }

    pub(crate) fn stop(&self, worker: usize) {
        self.signal(worker, Signal::STOP);
    }

    pub(crate) fn resume(&self, worker: usize) {
        self.signal(worker, Signal::CONT);
    }

    /// Kills a process, which cannot clean up then, and starts another one in its place.
    pub(crate) async fn kill(&mut self, worker: usize) {
        self.running[worker].kill().await.unwrap();
        self.running[worker] = self.another();
    }

    /// Starts a process with another list of nodes.
    pub(crate) fn intrude(&mut self, nodes: &[String]) {
        self.task.number += 1;
        let task = Task {
            number: INTRUDERS + self.task.number,
            nodes: nodes.join(","),
            ..self.task.clone()
        };
        self.intruder = Some(task.start());
    }

    /// Ends the process with another list of nodes.
    pub(crate) async fn expel(&mut self) {
        if let Some(mut intruder) = self.intruder.take() {
            drop(intruder.stdin.take());
            let ended = timeout(PATIENCE, intruder.wait()).await;
            assert!(ended.expect("the intruder did not end").unwrap().success());
        }
    }

    fn signal(&self, worker: usize, signal: Signal) {
        let pid = self.running[worker].id().unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    pub(crate) fn assert_all_run(&mut self) {
        for worker in &mut self.running {
            assert!(worker.try_wait().unwrap().is_none(), "a worker ended by itself");
        }
    }

    /// Ends all workers, by the end of their input.
    pub(crate) async fn end(&mut self) {
        for worker in &mut self.running {
            drop(worker.stdin.take());
        }
        for worker in &mut self.running {
            let ended = timeout(PATIENCE + Duration::from_secs(30), worker.wait()).await;
            assert!(ended.expect("a worker did not end").unwrap().success());
        }
    }
}
