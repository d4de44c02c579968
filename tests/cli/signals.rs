//! Signals to the tool, and their effects.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Running, at_least, eventually, free, holder, numbers, program, with};
use crate::terminal::Terminal;
use crate::testbed;

#[tokio::test]
async fn signals_go_to_the_whole_group_and_the_lock_is_released() {
    let testbed = testbed().await;
    let file = testbed.folder().join("signals");
    let script = format!(
        "exec 2>&-; sh -c 'trap \"echo 2 >> {0}; exit\" TERM; echo 1 >> {0}; while :; do sleep 0.02; done' &
        trap 'wait; exit 3' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.02; done",
        file.display()
    );
    let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", &script]));
    assert_eq!(running.line().await, "ready");
    at_least(1, &file).await;
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, (Some(3), String::new()));
    assert_eq!(numbers(&file), [1, 2]);
    free(&testbed).await;
}

/// A server whose workers finish their work after TERM, unless they get the signal as well.
const PREFORK: &str = "exec 2>&- 3<&0; trap 'echo ending' TERM
    sh -c 'echo working; read -r _ <&3; echo finished' & worker=$!; wait; wait $worker; echo worker: $?";

#[tokio::test]
async fn workers_finish_if_only_the_command_gets_the_signal() {
    let testbed = testbed().await;
    for (option, ends) in [
        (&[][..], &["worker: 143"][..]),
        (&["--signal", "group"], &["worker: 143"]),
        (&["--signal", "command"], &["finished", "worker: 0"]),
    ] {
        let run = [&["run"], option, &["r", "--", "sh", "-c", PREFORK]].concat();
        let mut running = Running::start(with(&testbed.urls(), &run));
        assert_eq!(running.line().await, "working");
        running.signal(Signal::TERM);
        assert_eq!(running.line().await, "ending");
        running.close_input();
        let shown = running.rest().await;
        assert_eq!(shown.lines().collect::<Vec<_>>(), ends, "{option:?}");
        assert_eq!(running.end().await, (Some(0), String::new()));
    }
    free(&testbed).await;
}

/// A service manager sends TERM to all processes of a service at once.
#[tokio::test]
async fn a_signal_for_everybody_is_a_signal_for_the_command() {
    let testbed = testbed().await;
    let script = "trap 'echo ending; exit 3' TERM; echo ready; read -r _";
    let run = [
        "run", "--json", "--signal", "command", "r", "--", "sh", "-c", script,
    ];
    let mut running = Running::start(with(&testbed.urls(), &run));
    assert_eq!(running.line().await, "ready");
    let own = running.child.id().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    let everybody = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let everybody: Vec<i32> = everybody.chain([i32::try_from(own).unwrap()]).collect();
    assert_eq!(everybody.len(), 3, "expected the guard, the command and quorlock");
    for pid in everybody {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    }
    assert_eq!(running.line().await, "ending");
    assert_eq!(running.event("released").await["outcome"], "released");
    assert_eq!(running.end().await, (Some(3), String::new()));
}

#[tokio::test]
async fn each_signal_is_passed_on() {
    let testbed = testbed().await;
    let signals = [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::IO,
        Signal::POWER,
        Signal::STKFLT,
    ];
    let numbers: Vec<String> = signals.iter().map(|signal| signal.as_raw().to_string()).collect();
    let script = format!(
        "exec 2>&-; for s in {}; do trap \"echo $s\" $s; done; trap 'exit 9' TERM
        echo ready; while :; do sleep 0.02; done",
        numbers.join(" ")
    );
    let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", &script]));
    assert_eq!(running.line().await, "ready");
    for (signal, number) in signals.into_iter().zip(numbers) {
        running.signal(signal);
        assert_eq!(running.line().await, number);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, (Some(9), String::new()));
}

/// A child inherits the mask of blocked signals.
#[tokio::test]
async fn signals_that_the_parent_blocked_are_unblocked() {
    let testbed = testbed().await;
    let own = env!("CARGO_BIN_EXE_quorlock");
    let script = "echo ready; read -r _; exit 5";
    let blocked = |arguments: &[&str]| {
        let mut command = program("env", &testbed.urls());
        command
            .args(["--block-signal", own])
            .args(arguments)
            .args(["--", "sh", "-c", script]);
        command
    };
    for arguments in [&["run", "r"][..], &["testbed", "-n", "1"]] {
        let mut running = Running::start(blocked(arguments));
        assert_eq!(running.line().await, "ready");
        running.close_input();
        assert_eq!(running.end().await, (Some(5), String::new()));
        let mut running = Running::start(blocked(arguments));
        assert_eq!(running.line().await, "ready");
        running.signal(Signal::TERM);
        assert_eq!(running.end().await, (Some(143), String::new()));
    }
    free(&testbed).await;
}

/// The terminal signals only its foreground group, which a command with piped input has left.
#[tokio::test]
async fn a_new_size_of_the_terminal_reaches_a_command_in_a_pipe() {
    let testbed = testbed().await;
    let own = env!("CARGO_BIN_EXE_quorlock");
    let script = format!(
        "mkfifo {0}/input; {own} run r -- sh -c 'trap \"echo resized; exit 6\" WINCH; echo ready; read -r _' <{0}/input",
        testbed.folder().display()
    );
    let mut terminal = Terminal::start(&["bash", "-c", &script], |command| {
        command.env("QUORLOCK_NODES", testbed.urls().join(","));
    });
    let input = testbed.folder().join("input");
    eventually("the pipe exists", || async { input.exists() }).await;
    let writer = tokio::net::unix::pipe::OpenOptions::new()
        .read_write(true)
        .open_sender(input)
        .unwrap();
    terminal.shows("ready").await;
    terminal.resize(30, 100);
    let (status, shown) = terminal.end().await;
    assert_eq!((status.code(), shown.trim()), (Some(6), "resized"));
    drop(writer);
}

/// The tool is the first process of a container.
#[tokio::test]
async fn as_the_first_process_it_waits_for_orphans_and_ends_by_signals() {
    let container = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let possible = tokio::process::Command::new("unshare")
        .args(container)
        .arg("true")
        .status();
    if !possible.await.is_ok_and(|status| status.success()) {
        return eprintln!("not tested: this user cannot have a PID namespace of its own");
    }
    let testbed = testbed().await;
    let script = "
        orphan=$( (sh -c 'echo $$; exec >&-; read -r _' <&3 &) )
        echo here; while [ -e /proc/$orphan ]; do sleep 0.02; done
        echo gone; kill -INT 1; exec sleep 60"; // exec: a shell that waits for a child may survive INT
    let mut command = program("unshare", &testbed.urls());
    command
        .args(container)
        .args([env!("CARGO_BIN_EXE_quorlock"), "run", "r", "--"])
        .args(["sh", "-c", &format!("exec 3<&0; {script}")]);
    let mut running = Running::start(command);
    assert_eq!(running.line().await, "here");
    running.close_input();
    assert_eq!(running.line().await, "gone");
    assert_eq!(running.end().await, (Some(130), String::new()));
    free(&testbed).await;
}

#[tokio::test]
async fn signals_that_the_parent_ignored_stay_ignored() {
    let testbed = testbed().await;
    let mut command = program("sh", &testbed.urls());
    command
        .args([
            "-c",
            "trap '' HUP; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_quorlock"),
        ])
        .args([
            "run",
            "r",
            "--",
            "sh",
            "-c",
            "echo ready; read -r _; kill -HUP $$; echo still here",
        ]);
    let mut running = Running::start(command);
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::HUP);
    running.close_input();
    assert_eq!(running.line().await, "still here");
    assert_eq!(running.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn interrupted_while_waiting_it_leaves_nothing() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holder(&urls, "r").await;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiting = Running::start(with(
            &urls,
            &["run", "--json", "--wait", "forever", "r", "--", "echo", "ran"],
        ));
        let event = waiting.event("waiting").await;
        assert_eq!(
            (&event["reason"], &event["resource"]),
            (&"held".into(), &"r".into())
        );
        let remaining = event["remaining_ms"].as_u64().unwrap();
        assert!((1..=30_000).contains(&remaining), "{event}");
        waiting.signal(signal);
        assert_eq!(waiting.end().await, (Some(code), String::new()));
    }
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
    free(&testbed).await;
}
