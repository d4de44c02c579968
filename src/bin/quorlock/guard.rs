//! The guard: a second process that ends the command if this process cannot.
//!
//! The guard is the same program. It reads orders from a pipe, and this process has the only other end. If this process ends in
//! any way (`kill -9` included), the kernel closes the pipe. The guard then sends TERM to the command's process group, and KILL
//! after the grace or before the lease ends, whichever comes first. If this process exists but does not run (stopped, swapped
//! out), the guard acts at the times of the last order, a little later than this process should have acted.
//!
//! The guard must not signal another program's group that has got the same number. After the command's own end, this process
//! dismisses the guard before it reaps the command. After a loss, it does so when it finds the group gone. If this process has
//! ended, the guard checks every few milliseconds that the group still exists. For some microseconds between the command's start
//! and the first order, the command has no guard.

use std::ffi::OsString;
use std::io::{self, BufRead, Write, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::exit::{self, Failure};

/// How often the guard checks whether an orphaned group is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How late the guard may act after a suspension of the machine.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Makes this program a guard. No command of clap: completions and manual pages would list it.
const ARGUMENT: &str = "guard";

/// Returns the grace if this process is to be a guard.
pub(crate) fn requested(words: &[OsString]) -> Option<Duration> {
    match words {
        [_, argument, grace] if argument == ARGUMENT => {
            grace.to_str()?.parse().ok().map(Duration::from_millis)
        }
        _ => None,
    }
}

/// A running guard, as its parent process sees it.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    orders: pipe::Sender,
    ready: pipe::Receiver,
    /// The guard has said that it ended the command.
    acted: AtomicBool,
}

impl Guard {
    /// Starts a guard. `grace` is the time between TERM and KILL if this process dies.
    pub(crate) fn start(grace: Duration) -> Result<Guard, Failure> {
        Guard::spawn(grace).map_err(not_started)
    }

    fn spawn(grace: Duration) -> io::Result<Guard> {
        // Works even if the binary has been replaced since.
        let own = Path::new("/proc/self/exe");
        let program = if own.exists() {
            own.to_owned()
        } else {
            std::env::current_exe()?
        };
        let mut child = Command::new(program)
            .arg0("quorlock-guard")
            .arg(ARGUMENT)
            .arg(grace.as_millis().to_string())
            .env_clear() // the environment may contain passwords
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
            acted: AtomicBool::new(false),
        })
    }

    /// Waits until the guard reads orders.
    pub(crate) async fn ready(&mut self) -> Result<(), Failure> {
        self.ready.read_u8().await.map(drop).map_err(not_started)
    }

    /// Tells the guard which group to end.
    pub(crate) fn watch(&self, group: Pid) {
        self.order_or_warn(format!("group {}\n", group.as_raw_nonzero()));
    }

    /// Tells the guard when to act unless a later order comes. `None`: TERM has been sent already.
    pub(crate) fn schedule(&self, term: Option<Instant>, kill: Instant) {
        let term = term.map_or("-".to_owned(), |term| moment(term).as_micros().to_string());
        self.order_or_warn(format!("times {term} {}\n", moment(kill).as_micros()));
    }

    /// Returns whether the guard has ended the command because this process did not run in time.
    pub(crate) fn has_acted(&self) -> bool {
        // Read directly: the runtime may not have noticed yet.
        if matches!(rustix::io::read(&self.ready, &mut [0; 8]), Ok(1..)) {
            self.acted.store(true, Relaxed);
        }
        self.acted.load(Relaxed)
    }

    /// Lets the guard exit. After the command's own end, call this before it is reaped.
    pub(crate) fn dismiss(&self) {
        let _ = self.order("done\n"); // fails if it was dismissed before
    }

    fn order_or_warn(&self, line: String) {
        if let Err(error) = self.order(&line)
            && !self.has_acted()
        {
            tracing::warn!(
                %error,
                "the guard process exited; if it was killed from outside, the command will survive quorlock being killed"
            );
        }
    }

    /// Sends an order, without blocking: a pipe holds hundreds of orders, and only a stopped or dead guard does not read them.
    fn order(&self, line: &str) -> io::Result<()> {
        self.orders.try_write(line.as_bytes()).map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.dismiss();
        // A guard that does not end in time is left to init.
        let give_up = Instant::now() + Duration::from_millis(100);
        while let Ok(None) = self.child.try_wait()
            && Instant::now() < give_up
        {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn not_started(error: io::Error) -> Failure {
    Failure::system("start the guard process", &error)
}

/// Returns `instant` on a system clock, which processes share.
fn moment(instant: Instant) -> Duration {
    let (now, here) = (clock(), Instant::now());
    match instant.checked_duration_since(here) {
        Some(ahead) => now + ahead,
        None => now.saturating_sub(here - instant),
    }
}

/// Reads the clock that leases end by. It goes on while the machine is suspended.
fn clock() -> Duration {
    #[cfg(target_os = "linux")]
    let id = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = ClockId::Monotonic;
    time(id)
}

pub(crate) fn time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

/// The last orders.
#[derive(Debug, Default)]
struct GuardOrders {
    group: Option<Pid>,
    term: Option<Duration>,
    kill: Option<Duration>,
    orphaned: bool,
}

enum Order {
    Line(String),
    End,
}

/// Runs the guard, until it is dismissed or has ended the group.
pub(crate) fn run_guard(grace: Duration) -> ExitCode {
    // So that `pkill quorlock` does not kill the guard.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lock-guard");
    // The guard must survive signals to all processes of a service, such as systemd's TERM.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let (sender, orders) = channel();
    let listen = move || {
        for line in stdin().lock().lines() {
            let Ok(line) = line else { break };
            let _ = sender.send(Order::Line(line));
        }
        let _ = sender.send(Order::End);
    };
    if thread::Builder::new().spawn(listen).is_err() || notify_parent().is_err() {
        return ExitCode::from(exit::SYSTEM);
    }
    GuardOrders::default().enforce(&orders, grace);
    ExitCode::SUCCESS
}

/// Tells the parent that the guard is ready, and later that it acts.
fn notify_parent() -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(b".")?;
    out.flush()
}

impl GuardOrders {
    fn enforce(&mut self, orders: &Receiver<Order>, grace: Duration) {
        loop {
            match self.next(orders) {
                Ok(Order::Line(line)) if line == "done" => return,
                Ok(Order::Line(line)) => self.record(&line),
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
                    return; // no command was started
                }
                continue;
            };
            // By now, another group may have an orphaned group's number.
            if self.orphaned && test_kill_process_group(group).is_err() {
                return;
            }
            let now = clock();
            if self.term.is_some_and(|term| term <= now) {
                self.term = None;
                let _ = notify_parent(); // fails if the parent is gone
                let _ = kill_process_group(group, Signal::TERM);
                let _ = kill_process_group(group, Signal::CONT);
            }
            if self.kill.is_some_and(|kill| kill <= now) {
                let _ = notify_parent();
                let _ = kill_process_group(group, Signal::KILL);
                return;
            }
        }
    }

    fn next(&self, orders: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        let now = clock();
        let due = [self.term, self.kill].into_iter().flatten().min();
        // Waiting does not count a suspension, so the clock is read in between.
        let wait = due.map(|due| due.saturating_sub(now).min(CLOCK_CHECK_INTERVAL));
        if self.orphaned {
            thread::sleep(wait.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL));
            return Err(RecvTimeoutError::Timeout);
        }
        match wait {
            Some(wait) => orders.recv_timeout(wait),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn record(&mut self, line: &str) {
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
