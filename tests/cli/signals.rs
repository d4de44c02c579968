//! Signals, and what becomes of them.

use rustix::process::Signal;

use crate::support::{Running, at_least, free, holder, numbers, with};
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

#[tokio::test]
async fn each_signal_is_passed_on() {
    let testbed = testbed().await;
    let script =
        "exec 2>&-; for s in HUP INT QUIT USR1 USR2; do trap \"echo $s\" $s; done; trap 'exit 9' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", script]));
    assert_eq!(running.line().await, "ready");
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        running.signal(signal);
        assert_eq!(running.line().await, name);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, (Some(9), String::new()));
}

#[tokio::test]
async fn what_was_ignored_stays_ignored() {
    let testbed = testbed().await;
    let mut command = tokio::process::Command::new("sh");
    command
        .env("QUORLOCK_NODES", testbed.urls().join(","))
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
        ])
        .kill_on_drop(true);
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
