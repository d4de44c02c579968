//! Guards: small shell processes that clean up after this process.
//!
//! A guard reads a pipe, and this process has the only other end. If this process ends in any way (return, panic, `kill -9`), the
//! kernel closes the pipe. The guard then sees the end of its input and cleans up.
//!
//! Rules of the scripts:
//! * Guard and server share a process group of their own. Ctrl-C on the terminal does not reach them, and processes that the
//!   server forked end with the group.
//! * A guard ignores signals that would end it before it has cleaned up. SIGHUP is one: the kernel sends it to the group if this
//!   process dies while a member of the group is stopped.
//! * A guard signals only its child, the server. A zombie keeps its pid until it is reaped. dash reaps only on `wait`, bash at
//!   once. So `mine` reads the pid's parent from `/proc`, if there is one, before each signal.
//! * The server does not inherit the guard's pipes, so a stopped server keeps none of them open.

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

/// Starts the server, prints its pid, sends it the signals that it reads, and kills the server at the pipe's end.
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

/// Removes a folder at the pipe's end. Retries, because servers that are being killed may still write.
const FOLDER: &str = r#"
trap '' HUP INT QUIT TERM PIPE
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" 2>/dev/null && exit 0
    sleep 0.1
done
exit 1
"#;

/// How long a guard may take to end before the whole process group is killed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A running guard. Dropping this ends the server or removes the folder, and returns when that is done.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    lifeline: Option<ChildStdin>,
    answers: Option<BufReader<ChildStdout>>,
}

impl Guard {
    /// Starts `server` with `arguments` in the folder `cwd`. Returns the guard, the server's pid, and a pipe with the server's
    /// output. The pipe ends when the server and all its forks have ended. Blocks for as long as a fork takes.
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

    /// Returns a guard that removes `folder` at its end.
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

    /// Sends a signal (`STOP`, `CONT`) to the server. Returns `false` if the server has ended.
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

    /// Begins the end, without waiting for it.
    pub(crate) fn release(&mut self) {
        self.lifeline = None;
    }

    /// Ends the server or removes the folder. Blocks for milliseconds, about two seconds at most.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.release();
        if self.answers.take().is_none() {
            return Ok(()); // already ended
        }
        let pid = Pid::from_child(&self.child);
        let give_up = Instant::now() + END_TIMEOUT;
        // Not reaped before `wait` below: until then, neither pid nor group can belong to another process.
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), peek)?.is_none() && Instant::now() < give_up {
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
            tracing::warn!(%error, "a testbed process could not be ended properly");
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
