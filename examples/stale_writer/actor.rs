//! A worker process, seen by the one that directs it: what it does is told, checked, and held up where that is wanted.

use std::error::Error;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quorlock::ReleaseOutcome;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::time::timeout;

/// Long enough for each step on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Says who did what, and when.
pub(crate) fn tell(since: Instant, who: &str, what: &str) {
    println!("{:>5} ms  {who:<8}  {what}", since.elapsed().as_millis());
}

/// A running worker. Dropping it kills it, stopped or not, and waits for its end.
pub(crate) struct Actor {
    name: &'static str,
    since: Instant,
    child: Child,
    lines: Lines<BufReader<pipe::Receiver>>,
}

impl Actor {
    /// Starts it; `command` is this program as a worker.
    pub(crate) fn start(
        name: &'static str,
        since: Instant,
        command: &mut Command,
    ) -> Result<Actor, Box<dyn Error>> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no pipe")?;
        let lines = BufReader::new(pipe::Receiver::from_owned_fd(output.into())?).lines();
        Ok(Actor {
            name,
            since,
            child,
            lines,
        })
    }

    /// It gets the lock, reads this balance, finds the lease held, and waits in front of the write. Returns its token, 0 for none.
    pub(crate) async fn comes_to_the_write(&mut self, balance: &str) -> Result<u64, Box<dyn Error>> {
        let token = self.next("holds").await?.parse()?;
        match token {
            0 => self.tell("holds the lock"),
            token => self.tell(&format!("holds the lock, token {token}")),
        }
        self.sees("read", balance).await?;
        let noted = if token == 0 {
            ""
        } else {
            ", and leaves its token there"
        };
        self.tell(&format!("reads the balance: {balance}{noted}"));
        self.sees("checked", "held").await?;
        self.tell("checks the lease: still held");
        Ok(token)
    }

    /// It writes this balance, which the store answers so; then it releases the lock, with this outcome.
    pub(crate) async fn writes(
        &mut self,
        balance: &str,
        answer: &str,
        outcome: ReleaseOutcome,
    ) -> Result<(), Box<dyn Error>> {
        self.sees("wrote", balance).await?;
        self.sees("answer", answer).await?;
        self.tell(&format!("writes {balance}; the store: {answer}"));
        let outcome = outcome.to_string();
        self.sees("ended", &outcome).await?;
        self.tell(&format!("releases the lock: {outcome}"));
        Ok(())
    }

    /// Lets it write as soon as it runs.
    pub(crate) fn let_write(&mut self) -> Result<(), Box<dyn Error>> {
        let gate = self.child.stdin.as_mut().ok_or("no pipe")?;
        Ok(gate.write_all(b"go\n")?)
    }

    /// Stops it; returns when none of its threads runs any more.
    pub(crate) fn stop(&self) -> Result<(), Box<dyn Error>> {
        self.signal(Signal::STOP)?;
        let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), look)? {
            Some(status) if status.stopped() => Ok(()),
            _ => Err(format!("{} has ended", self.name).into()),
        }
    }

    /// Lets it go on after a stop.
    pub(crate) fn resume(&self) -> Result<(), Box<dyn Error>> {
        self.signal(Signal::CONT)
    }

    /// It ends, and all went well.
    pub(crate) async fn ends(mut self) -> Result<(), Box<dyn Error>> {
        match timeout(PATIENCE, self.lines.next_line()).await?? {
            Some(line) => Err(format!("{}: {line:?} instead of its end", self.name).into()),
            None if self.child.wait()?.success() => Ok(()),
            None => Err(format!("{} failed", self.name).into()),
        }
    }

    pub(crate) fn tell(&self, what: &str) {
        tell(self.since, self.name, what);
    }

    async fn sees(&mut self, event: &str, wanted: &str) -> Result<(), Box<dyn Error>> {
        let found = self.next(event).await?;
        match found == wanted {
            true => Ok(()),
            false => Err(format!("{}: {event} {found:?}, not {wanted:?}", self.name).into()),
        }
    }

    /// What it says about this event, which must be the next.
    async fn next(&mut self, event: &str) -> Result<String, Box<dyn Error>> {
        let line = timeout(PATIENCE, self.lines.next_line())
            .await
            .map_err(|_| format!("{}: nothing heard, where {event:?} was due", self.name))??;
        match line.as_deref().and_then(|line| line.split_once(' ')) {
            Some((name, what)) if name == event => Ok(what.to_owned()),
            _ => Err(format!("{}: {line:?} instead of {event:?}", self.name).into()),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill(); // fine if it has been waited for
        let _ = self.child.wait();
    }
}
