//! The processes of one contender.

use std::env;
use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::record::{Job, Order, Record};
use crate::worker::{READY, WORKER};

/// How long a process may take to connect, or to end a round after its time.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct ProcessGroup(Vec<Process>);

struct Process {
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl ProcessGroup {
    /// Starts the processes. Returns when all have connected.
    pub(crate) async fn start(job: &Job, processes: usize) -> Result<ProcessGroup, Box<dyn Error>> {
        let all = try_join_all((0..processes).map(|_| Process::start(job))).await?;
        Ok(ProcessGroup(all))
    }

    /// Sends an order to each process, and collects their records. Grants get the numbers of their processes.
    pub(crate) async fn work(&mut self, orders: &[Order]) -> Result<Record, Box<dyn Error>> {
        let working = self
            .0
            .iter_mut()
            .zip(orders)
            .map(|(process, order)| process.work(order));
        let mut all = Record::default();
        for (number, mut record) in try_join_all(working).await?.into_iter().enumerate() {
            for grant in &mut record.grants {
                grant.process = number;
            }
            all.grants.append(&mut record.grants);
            all.unserved.append(&mut record.unserved);
            all.gave_up += record.gave_up;
            all.failed.append(&mut record.failed);
        }
        Ok(all)
    }
}

impl Process {
    async fn start(job: &Job) -> Result<Process, Box<dyn Error>> {
        let mut child = Command::new(env::current_exe()?)
            .args([WORKER, &serde_json::to_string(job)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let mut process = Process {
            orders,
            answers,
            _child: child,
        };
        match process.answer(PATIENCE).await? {
            word if word == READY => Ok(process),
            other => Err(other.into()),
        }
    }

    async fn work(&mut self, order: &Order) -> Result<Record, Box<dyn Error>> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await?;
        let round = Duration::from_nanos(order.until.saturating_sub(order.start));
        Ok(serde_json::from_str(&self.answer(PATIENCE + round).await?)?)
    }

    async fn answer(&mut self, within: Duration) -> Result<String, Box<dyn Error>> {
        let line = timeout(within, self.answers.next_line()).await;
        let line = line.map_err(|_| format!("a process has not answered for {within:?}"))?;
        line?.ok_or_else(|| "a process ended by itself".into())
    }
}
