//! The guard: a second process that ends the command when this one cannot.
//!
//! It is this program again, and reads orders from a pipe of which we hold the only other end. However we end (`kill -9`
//! included), the kernel closes the pipe, and the guard ends the command's process group: TERM, and KILL after the grace
//! or before the lease ends, whichever comes first. And if we still exist but do not run (stopped, swapped out), it
//! keeps to the times it was last told, which are a little after those at which we should have acted ourselves.
//!
//! It never signals a group that might be somebody else's: while we live, the command is not waited for before the guard
//! is dismissed, so its number stays taken; after that, the guard looks every few milliseconds whether the group still
//! exists, and leaves when it does not. Open is the moment between the command's start and the first order: some microseconds.

use std::io::{self, BufRead, Write, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::exit::{self, Failure};

/// How often the guard looks whether an orphaned group is gone.
const LOOK: Duration = Duration::from_millis(10);

/// How long after a suspension the guard may act late.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(250);

/// A running guard, seen from the process that started it.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    orders: pipe::Sender,
    ready: pipe::Receiver,
}

impl Guard {
    /// Starts one. `grace` is what the command gets between TERM and KILL if we die.
    pub(crate) fn start(grace: Duration) -> Result<Guard, Failure> {
        Guard::spawn(grace).map_err(not_started)
    }

    fn spawn(grace: Duration) -> io::Result<Guard> {
        // Also finds a binary that has been replaced since.
        let own = Path::new("/proc/self/exe");
        let program = if own.exists() {
            own.to_owned()
        } else {
            std::env::current_exe()?
        };
        let mut child = Command::new(program)
            .arg0("quorlock-guard")
            .arg("guard")
            .arg(grace.as_millis().to_string())
            .env_clear() // it needs nothing, least of all passwords
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let (orders, ready) = ends.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guard {
            child,
            orders: pipe::Sender::from_owned_fd(orders.into())?,
            ready: pipe::Receiver::from_owned_fd(ready.into())?,
        })
    }

    /// Waits until it is listening.
    pub(crate) async fn ready(&mut self) -> Result<(), Failure> {
        self.ready.read_u8().await.map(drop).map_err(not_started)
    }

    /// From now on, it guards this group.
    pub(crate) fn watch(&self, group: Pid) {
        self.must(format!("group {}\n", group.as_raw_nonzero()));
    }

    /// When the group is to be ended if nothing else is heard. `None` leaves TERM out: it has been sent.
    pub(crate) fn schedule(&self, term: Option<Instant>, kill: Instant) {
        let term = term.map_or("-".to_owned(), |term| moment(term).as_micros().to_string());
        self.must(format!("times {term} {}\n", moment(kill).as_micros()));
    }

    /// Whether it has acted although we live: we were held up for so long.
    pub(crate) fn has_acted(&self) -> bool {
        // Not by way of the runtime, which may not have noticed yet.
        matches!(rustix::io::read(&self.ready, &mut [0; 8]), Ok(1..))
    }

    /// It is not needed any more. To be called before the command is waited for.
    pub(crate) fn dismiss(&self) {
        let _ = self.order("done\n"); // it may have been dismissed before
    }

    fn must(&self, line: String) {
        if let Err(error) = self.order(&line) {
            tracing::warn!(%error, "the guard process has ended, on its own after it has ended the command, or else by somebody's hand; then the command goes on if quorlock is killed now");
        }
    }

    /// Never blocks: pipes hold hundreds of orders, and a guard that does not read them is stopped or dead.
    fn order(&self, line: &str) -> io::Result<()> {
        self.orders.try_write(line.as_bytes()).map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.dismiss();
        // It is about to end, or cannot: then it is left to init.
        let patience = Instant::now() + Duration::from_millis(100);
        while let Ok(None) = self.child.try_wait()
            && Instant::now() < patience
        {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn not_started(error: io::Error) -> Failure {
    Failure::system("start the guard process", &error)
}

/// `instant` on a clock of the system's, which other processes share.
fn moment(instant: Instant) -> Duration {
    let (now, here) = (clock(), Instant::now());
    match instant.checked_duration_since(here) {
        Some(ahead) => now + ahead,
        None => now.saturating_sub(here - instant),
    }
}

/// A lease ends by a clock that goes on while the machine is suspended.
fn clock() -> Duration {
    #[cfg(target_os = "linux")]
    let id = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = ClockId::Monotonic;
    time(id)
}

/// What a clock of the system shows.
pub(crate) fn time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

/// What the guard knows.
#[derive(Debug, Default)]
struct Post {
    group: Option<Pid>,
    term: Option<Duration>,
    kill: Option<Duration>,
    orphaned: bool,
}

enum Order {
    Line(String),
    End,
}

/// The guard itself, until it is dismissed or has done its work.
pub(crate) fn stand(grace: Duration) -> ExitCode {
    // So that `pkill quorlock` does not take the guard first.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lock-guard");
    // Own group, so the terminal sends it nothing; and nobody else should.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let (tell, orders) = channel();
    let listen = move || {
        for line in stdin().lock().lines() {
            let Ok(line) = line else { break };
            let _ = tell.send(Order::Line(line));
        }
        let _ = tell.send(Order::End);
    };
    if thread::Builder::new().spawn(listen).is_err() || say().is_err() {
        return ExitCode::from(exit::SYSTEM);
    }
    Post::default().guard(&orders, grace);
    ExitCode::SUCCESS
}

/// Once when ready, and again before acting.
fn say() -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(b".")?;
    out.flush()
}

impl Post {
    fn guard(&mut self, orders: &Receiver<Order>, grace: Duration) {
        loop {
            match self.next(orders) {
                Ok(Order::Line(line)) if line == "done" => return,
                Ok(Order::Line(line)) => self.note(&line),
                Ok(Order::End) => {
                    self.orphaned = true;
                    let now = clock();
                    if self.term.is_some() || self.kill.is_none() {
                        self.term = Some(now);
                    }
                    self.kill = Some(self.kill.map_or(now + grace, |kill| kill.min(now + grace)));
                }
                Err(_) => {}
            }
            let Some(group) = self.group else {
                if self.orphaned {
                    return; // it never began
                }
                continue;
            };
            // Only then can the number have become somebody else's.
            if self.orphaned && test_kill_process_group(group).is_err() {
                return;
            }
            let now = clock();
            if self.term.is_some_and(|term| term <= now) {
                self.term = None;
                let _ = say(); // there may be nobody to hear it
                let _ = kill_process_group(group, Signal::TERM);
                let _ = kill_process_group(group, Signal::CONT);
            }
            if self.kill.is_some_and(|kill| kill <= now) {
                let _ = say();
                let _ = kill_process_group(group, Signal::KILL);
                return;
            }
        }
    }

    fn next(&self, orders: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        let now = clock();
        let due = [self.term, self.kill].into_iter().flatten().min();
        // Waiting does not count a suspension, so the clock is looked at now and then.
        let wait = due.map(|due| due.saturating_sub(now).min(LOOK_AT_CLOCK));
        if self.orphaned {
            thread::sleep(wait.unwrap_or(LOOK).min(LOOK));
            return Err(RecvTimeoutError::Timeout);
        }
        match wait {
            Some(wait) => orders.recv_timeout(wait),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn note(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("group") => {
                self.group = words
                    .next()
                    .and_then(|word| word.parse().ok())
                    .and_then(Pid::from_raw);
            }
            Some("times") => {
                let mut time = || words.next()?.parse().ok().map(Duration::from_micros);
                (self.term, self.kill) = (time(), time());
            }
            _ => {}
        }
    }
}
