//! Ctrl-C and Ctrl-\: shells behave as with `flock`.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use quorlock::testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use crate::support::{Group, Running, eventually, free, holder, program, with};
use crate::terminal::Terminal;
use crate::testbed;

const INTERRUPT: &str = "\x03";
const QUIT: &str = "\x1c";

const IN_TURN: &str = "one after the other in bash";

/// A command under a lock. `$LOCK` is the tool.
const LOCKED: &str = "$LOCK sh -c 'echo ready; exec sleep 600'";

/// Returns scripts that would go on after a command that ends by itself.
fn scripts(locked: &str) -> [(&'static str, Vec<String>); 7] {
    let script =
        |shell: &str, option: &str, script: String| vec![shell.to_owned(), option.to_owned(), script];
    let in_loop = format!("ulimit -c 0; for i in 1 2; do {locked}; done; echo after");
    let in_turn = format!("ulimit -c 0; {locked}; echo after");
    let to_pipe = format!("ulimit -c 0; {locked} | cat; echo after");
    let from_pipe = format!("ulimit -c 0; : | {locked}; echo after");
    [
        ("a loop in bash", script("bash", "-c", in_loop.clone())),
        ("a loop in dash", script("dash", "-c", in_loop.clone())),
        (IN_TURN, script("bash", "-c", in_turn.clone())),
        ("an interactive loop", script("bash", "-ic", in_loop)),
        ("a pipe behind it", script("bash", "-c", to_pipe.clone())),
        ("a pipe behind it, interactively", script("bash", "-ic", to_pipe)),
        ("a pipe in front of it", script("bash", "-c", from_pipe)),
    ]
}

/// After QUIT, shells go on and report the dead process; with a pipe, chance decides which one.
fn keys(script: &str) -> &'static [&'static str] {
    match script {
        IN_TURN => &[INTERRUPT, QUIT],
        _ => &[INTERRUPT],
    }
}

/// Returns `flock` and `quorlock`, which do the same on one machine.
fn locks(testbed: &Testbed) -> [String; 2] {
    let file = testbed.folder().join("lock");
    [
        format!("flock {}", file.display()),
        format!("{} run r --", env!("CARGO_BIN_EXE_quorlock")),
    ]
}

fn set_up(command: &mut Command, testbed: &Testbed, lock: &str) {
    command
        .env("QUORLOCK_NODES", testbed.urls().join(","))
        .env("LOCK", lock)
        .env_remove("MAKEFLAGS");
}

/// Presses `key` while the script's command runs. Returns status and output.
async fn on_a_terminal(testbed: &Testbed, lock: &str, script: &[String], key: &str) -> (ExitStatus, String) {
    let words: Vec<&str> = script.iter().map(String::as_str).collect();
    let mut terminal = Terminal::start(&words, |command| set_up(command, testbed, lock));
    terminal.shows("ready").await;
    terminal.press(key);
    terminal.end().await
}

/// Leaves out what differs by chance: process ids, pressed keys, empty lines.
fn words(shown: &str) -> String {
    let mut shown = shown.replace("^C", "").replace("^\\", "");
    shown.retain(|shown| !shown.is_ascii_digit());
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn on_a_terminal_shells_end_as_with_flock() {
    let testbed = testbed().await;
    let [flock, quorlock] = locks(&testbed);
    for (name, script) in scripts(LOCKED) {
        for &key in keys(name) {
            let [mut expected, mut came] = [
                on_a_terminal(&testbed, &flock, &script, key).await,
                on_a_terminal(&testbed, &quorlock, &script, key).await,
            ];
            for (_, shown) in [&mut expected, &mut came] {
                *shown = words(shown);
            }
            assert_eq!(came, expected, "{name}, {key:?}");
            assert!(key == QUIT || !came.1.contains("after"), "{name}: {came:?}");
            free(&testbed).await;
        }
    }
}

/// Make dies of the signal or exits with 2, as with `flock`.
#[tokio::test]
async fn make_goes_on_with_no_other_target() {
    let testbed = testbed().await;
    let recipe = LOCKED.replace('$', "$$");
    let text = format!("all: one two\none two:\n\t@{recipe}\n.PHONY: all one two\n");
    std::fs::write(testbed.folder().join("Makefile"), text).unwrap();
    let [_, quorlock] = locks(&testbed);
    let folder = testbed.folder().to_str().unwrap();
    let make = ["make", "-k", "-C", folder].map(str::to_owned);
    let (status, shown) = on_a_terminal(&testbed, &quorlock, &make, INTERRUPT).await;
    assert!(!status.success() && !shown.contains("ready"), "{status}: {shown}");
    free(&testbed).await;
}

#[tokio::test]
async fn without_a_terminal_shells_end_as_with_flock() {
    let testbed = testbed().await;
    let scripts = scripts(LOCKED)
        .into_iter()
        .filter(|(_, script)| script[1] == "-c");
    for (name, script) in scripts {
        for &key in keys(name) {
            let signal = if key == QUIT { Signal::QUIT } else { Signal::INT };
            let mut ends = Vec::new();
            for lock in locks(&testbed) {
                let mut command = program(&script[0], &[]);
                command.args(&script[1..]).process_group(0);
                set_up(&mut command, &testbed, &lock);
                let mut running = Running::start(command);
                let pid = i32::try_from(running.child.id().unwrap()).unwrap();
                let group = Group(Pid::from_raw(pid).unwrap());
                assert_eq!(running.line().await, "ready");
                // A shell that is interrupted before it waits for the command may go on.
                eventually("the shell waits", || async { sleeps(pid) }).await;
                kill_process_group(group.0, signal).unwrap();
                let rest = running.rest().await;
                ends.push((running.end().await.0, rest));
            }
            assert_eq!(ends[1], ends[0], "{name}, {signal:?}");
            assert!(key == QUIT || !ends[1].1.contains("after"), "{name}: {ends:?}");
        }
    }
    free(&testbed).await;
}

#[tokio::test]
async fn interrupted_while_it_waits_it_dies_of_the_signal() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holder(&urls, "r").await;
    let [_, quorlock] = locks(&testbed);
    let scripts = scripts("$LOCK true");
    for (name, script) in scripts.into_iter().filter(|(_, script)| script[1] == "-c") {
        let words: Vec<&str> = script.iter().map(String::as_str).collect();
        let lock = quorlock.replace("run", "run --wait forever");
        let mut terminal = Terminal::start(&words, |command| set_up(command, &testbed, &lock));
        terminal.shows("waiting: r is held").await;
        terminal.press(INTERRUPT);
        let (status, shown) = terminal.end().await;
        assert!(
            !shown.contains("waiting") && !shown.contains("after"),
            "{name}: {shown}"
        );
        assert_eq!(status.signal(), Some(2), "{name}: {status}");
    }
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
    free(&testbed).await;
}

/// A shell judges the interrupt by the command's exit, and so does the tool.
#[tokio::test]
async fn a_command_that_deals_with_the_interrupt_has_its_exit_code_passed_on() {
    let testbed = testbed().await;
    let script = [
        "-c",
        "$LOCK sh -c 'trap \"exit 5\" INT; echo ready; read -r _'; echo $?",
    ];
    let script: Vec<String> = ["bash"]
        .iter()
        .chain(&script)
        .map(|&word| word.to_owned())
        .collect();
    let [_, quorlock] = locks(&testbed);
    let (status, shown) = on_a_terminal(&testbed, &quorlock, &script, INTERRUPT).await;
    assert_eq!((status.code(), shown.trim()), (Some(0), "^C5"));
}

#[tokio::test]
async fn bench_dies_of_the_interrupt_and_shows_what_it_has() {
    let testbed = testbed().await;
    let bench = ["bench", "--duration", "1h", "--tasks", "1"];
    let mut running = Running::start(with(&testbed.urls(), &[&["--json"], &bench[..]].concat()));
    running.event("measuring").await;
    running.signal(Signal::INT);
    let status = running.child.wait().await.unwrap();
    assert_eq!(status.signal(), Some(2));
}

/// Returns whether the process waits for something.
fn sleeps(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:\tS")
}
