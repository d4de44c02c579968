//! Guards: small shell processes that outlive us by an instant and leave nothing behind.
//!
//! A guard reads a pipe whose only other end is held by this process. However this process ends (return, panic,
//! `kill -9`), the kernel closes the pipe, the guard sees the end of its input and cleans up.
//!
//! Rules the scripts keep:
//! * Guard and server share a process group of their own. Ctrl-C on the terminal does not reach them, and whatever the
//!   server forked ends with the group.
//! * Signals that would end a guard before its work is done are ignored. SIGHUP among them: the kernel sends it to the
//!   group when we die and one of its members is stopped.
//! * The guard is the server's parent and signals nothing else: a zombie keeps its pid until it is waited for. dash waits
//!   only when told to, bash at once, so `mine` asks the kernel (where there is a `/proc`) before each signal.
//! * The server does not hold the guard's pipes, so a stopped server keeps nothing open.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Starts the server, prints its pid, passes signals on when told to, and ends the server with the pipe.
const SERVER: &str = r#"
trap '' HUP INT QUIT TERM PIPE
"$@" </dev/null >&2 &
pid=$!
exec 2>/dev/null
mine() {
    [ -r "/proc/$pid/status" ] || return 0
    while read -r key value; do
        if [ "$key" = PPid: ]; then [ "$value" = "$$" ]; return; fi
    done <"/proc/$pid/status"
}
echo "$pid"
while read -r signal; do
    if mine && kill -s "$signal" "$pid"; then echo done; else echo gone; fi
done
mine && kill -s KILL "$pid"
wait "$pid"
kill -s KILL 0
"#;

/// Removes a folder when the pipe ends. Servers that are just being killed may still write: try again.
const FOLDER: &str = r#"
trap '' HUP INT QUIT TERM PIPE
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" 2>/dev/null && exit 0
    sleep 0.1
done
exit 1
"#;

/// How long an orderly end may take before the whole process group is killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running guard. Dropping it ends what it guards and returns when that is gone.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    lifeline: Option<ChildStdin>,
    answers: Option<BufReader<ChildStdout>>,
}

impl Guard {
    /// Starts `server` with `arguments` in the folder `cwd`. Returns the guard, the server's pid, and what the
    /// server prints; that pipe ends when the server and everything it forked has ended.
    ///
    /// Blocks for as long as a fork takes.
    pub(crate) fn server(
        server: &Path,
        arguments: &[impl AsRef<OsStr>],
        cwd: &Path,
    ) -> io::Result<(Guard, u32, ChildStderr)> {
        let mut command = shell(SERVER);
        command
            .arg(server)
            .args(arguments)
            .current_dir(cwd)
            .stderr(Stdio::piped());
        let mut guard = Guard::spawn(command)?;
        let output = guard.child.stderr.take().ok_or_else(lost)?;
        let pid = guard.answer()?.parse().map_err(|_| lost())?;
        Ok((guard, pid, output))
    }

    /// Removes `folder` at the end.
    pub(crate) fn folder(folder: &Path) -> io::Result<Guard> {
        let mut command = shell(FOLDER);
        command.arg(folder).stderr(Stdio::null());
        Guard::spawn(command)
    }

    fn spawn(mut command: Command) -> io::Result<Guard> {
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lifeline = child.stdin.take();
        let answers = child.stdout.take().map(BufReader::new);
        Ok(Guard {
            child,
            lifeline,
            answers,
        })
    }

    /// Has the server signalled (`STOP`, `CONT`). False when the server is no more.
    pub(crate) fn signal(&mut self, signal: &str) -> io::Result<bool> {
        let lifeline = self.lifeline.as_mut().ok_or_else(lost)?;
        lifeline.write_all(format!("{signal}\n").as_bytes())?;
        Ok(self.answer()? == "done")
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.as_mut().ok_or_else(lost)?.read_line(&mut line)?;
        if line.is_empty() {
            Err(lost())
        } else {
            Ok(line.trim_end().to_owned())
        }
    }

    /// Lets the end begin, without waiting for it.
    pub(crate) fn release(&mut self) {
        self.lifeline = None;
    }

    /// Ends what is guarded and returns when it is gone. Normally takes milliseconds, at most about two seconds.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.release();
        if self.answers.take().is_none() {
            return Ok(()); // already ended
        }
        let pid = Pid::from_child(&self.child);
        let patience = Instant::now() + PATIENCE;
        // Not reaped yet: until `wait` below, neither the pid nor the group can belong to anybody else.
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), peek)?.is_none() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        match kill_process_group(pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => {} // PERM: macOS, only zombies left
            Err(error) => return Err(error.into()),
        }
        self.child.wait().map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a testbed process could not be ended in an orderly way");
        }
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg("quorlock-testbed");
    command
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the guard process has ended")
}
