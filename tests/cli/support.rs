//! Runs the tool and examines its effects.

use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use quorlock::testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use crate::common::keys;
pub(crate) use crate::program::{isolate, program};
use crate::schema::Printed;

/// How long to wait for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the tool as a command. If the test fails, the tool is killed and ends its command.
pub(crate) fn quorlock(urls: &[String]) -> Command {
    program(env!("CARGO_BIN_EXE_quorlock"), urls)
}

pub(crate) fn with(urls: &[String], arguments: &[&str]) -> Command {
    let mut command = quorlock(urls);
    command.args(arguments);
    command
}

pub(crate) async fn finish(mut command: Command) -> Output {
    command.stdin(Stdio::null());
    let output = timeout(PATIENCE, command.output())
        .await
        .expect("the tool did not end in time")
        .unwrap();
    if let Some(printed) = Printed::by(&command) {
        text(&output.stdout)
            .lines()
            .for_each(|line| printed.check_stdout(line));
        text(&output.stderr)
            .lines()
            .for_each(|line| printed.check_stderr(line));
    }
    output
}

/// Returns the document that a successful command prints.
pub(crate) async fn json(urls: &[String], arguments: &[&str]) -> Value {
    let output = finish(with(urls, &[&["--json"], arguments].concat())).await;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("no JSON: {out}{err}"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) struct Running {
    pub(crate) child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
    /// `None`: text.
    printed: Option<Printed>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let err = BufReader::new(child.stderr.take().unwrap()).lines();
        Running {
            child,
            out,
            err,
            printed: Printed::by(&command),
        }
    }

    async fn out(&mut self) -> Option<String> {
        let line = next(&mut self.out).await?;
        if let Some(printed) = &self.printed {
            printed.check_stdout(&line);
        }
        Some(line)
    }

    async fn err(&mut self) -> Option<String> {
        let line = next(&mut self.err).await?;
        if let Some(printed) = &self.printed {
            printed.check_stderr(&line);
        }
        Some(line)
    }

    pub(crate) async fn line(&mut self) -> String {
        self.out()
            .await
            .expect("the output ended before the expected line")
    }

    /// Returns the next line of standard error.
    pub(crate) async fn said(&mut self) -> String {
        self.err().await.expect("the tool said nothing more")
    }

    /// Returns the next event of this name.
    pub(crate) async fn event(&mut self, name: &str) -> serde_json::Value {
        let mut others = Vec::new();
        while let Some(line) = self.err().await {
            let event: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
            if event["event"] == name {
                return event;
            }
            others.push(line);
        }
        panic!("no event {name:?}, but {others:#?}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = String::new();
        while let Some(line) = self.out().await {
            rest.push_str(&line);
            rest.push('\n');
        }
        rest
    }

    /// Returns the exit code (128+n after signal n) and the rest of standard error.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        while let Some(line) = self.err().await {
            rest.push_str(&line);
            rest.push('\n');
        }
        let status = timeout(PATIENCE, self.child.wait())
            .await
            .expect("the tool did not end in time")
            .unwrap();
        let by_signal = status.signal().map(|number| 128 + number);
        (status.code().or(by_signal), rest)
    }
}

async fn next<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> Option<String> {
    timeout(PATIENCE, lines.next_line())
        .await
        .expect("neither a line nor the end of the output came in time")
        .unwrap()
}

/// Holds `resource` until the input is closed.
pub(crate) async fn holder(urls: &[String], resource: &str) -> Running {
    let mut holder = Running::start(with(urls, &["run", resource, "--", "sh", "-c", "echo held; cat"]));
    assert_eq!(holder.line().await, "held");
    holder
}

/// A process group, killed when dropped. A quorlock in it then ends its command.
pub(crate) struct Group(pub(crate) Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let give_up = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < give_up, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until no node has a lock: deletions may be late.
pub(crate) async fn free(testbed: &Testbed) {
    for node in testbed.nodes() {
        eventually("nothing is left on the nodes", async || keys(node).await == 0).await;
    }
}

/// Returns whether a process lives. Zombies do not.
pub(crate) fn alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

pub(crate) fn marked(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            environment
                .split(|&byte| byte == 0)
                .any(|variable| variable == mark.as_bytes())
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Returns the numbers written to a file so far, one a line.
pub(crate) fn numbers(file: &Path) -> Vec<u128> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n')?.parse().ok())
        .collect()
}

pub(crate) async fn at_least(count: usize, file: &Path) -> Vec<u128> {
    eventually("the file has enough numbers", || async {
        numbers(file).len() >= count
    })
    .await;
    numbers(file)
}

pub(crate) fn nanos(time: &serde_json::Value) -> u128 {
    let time = humantime::parse_rfc3339(time.as_str().unwrap()).unwrap();
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()
}
