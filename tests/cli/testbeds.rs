//! `quorlock testbed`, and runs on testbeds of their own.

use rustix::process::Signal;

use crate::support::{Running, eventually, finish, marked, program, quorlock, text, with};

#[tokio::test]
async fn a_run_on_a_testbed_leaves_nothing() {
    let mark = format!("QUORLOCK_TEST_MARK=run-{}", std::process::id());
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = with(&[], &["run", "--testbed", "r", "--", "sh", "-c", "exit 7"]);
    command.env(name, value);
    assert_eq!(finish(command).await.status.code(), Some(7));
    // Guards may end a moment later.
    eventually("no process is left", || async { marked(&mark).is_empty() }).await;
}

#[tokio::test]
async fn a_testbed_runs_a_command() {
    let mut command = quorlock(&[]);
    command.args([
        "testbed",
        "-n",
        "3",
        "--",
        "sh",
        "-c",
        "echo $QUORLOCK_NODES; exit 5",
    ]);
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let urls = text(&output.stdout);
    assert_eq!(
        urls.trim()
            .split(',')
            .filter(|url| url.starts_with("redis://"))
            .count(),
        3,
        "{urls}"
    );

    // Inside a testbed, the nodes come from the environment.
    let own = env!("CARGO_BIN_EXE_quorlock");
    let nested = [
        "testbed", "-n", "1", "--", own, "run", "r", "--", "sh", "-c", "exit 6",
    ];
    assert_eq!(finish(with(&[], &nested)).await.status.code(), Some(6));
}

#[tokio::test]
async fn a_testbed_lasts_until_it_is_told_to_end() {
    for (name, signal) in [("term", Signal::TERM), ("kill", Signal::KILL)] {
        let mark = format!("QUORLOCK_TEST_MARK=testbed-{name}-{}", std::process::id());
        let (variable, value) = mark.split_once('=').unwrap();
        let mut command = quorlock(&[]);
        command
            .args(["testbed", "-n", "3", "--export"])
            .env(variable, value);
        let mut running = Running::start(command);
        let line = running.line().await;
        let urls = line
            .strip_prefix("export QUORLOCK_NODES='")
            .unwrap()
            .strip_suffix('\'')
            .unwrap();
        let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
        assert_eq!(
            finish(with(&urls, &["run", "r", "--", "true"]))
                .await
                .status
                .code(),
            Some(0)
        );
        assert!(marked(&mark).len() > 3);
        running.signal(signal);
        let code = if signal == Signal::TERM { 0 } else { 137 };
        assert_eq!(running.end().await, (Some(code), String::new()));
        eventually("no process is left", || async { marked(&mark).is_empty() }).await;
    }
}

/// Servers cannot write to their log that their disk is full.
#[tokio::test]
async fn a_full_folder_for_temporary_files_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$TMPDIR\" || exit 99
        head -c 64k /dev/zero >\"$TMPDIR/full\"; \"$0\" testbed -n 1 -- true";
    let mut command = program("unshare", &[]);
    command
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_quorlock")])
        .env("TMPDIR", folder.path());
    let output = finish(command).await;
    let said = text(&output.stderr);
    let code = output.status.code();
    if code == Some(99) || !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: this user cannot mount anything");
    }
    assert_eq!(code, Some(69), "{said}");
    let words = ["No space left", folder.path().to_str().unwrap()];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[tokio::test]
async fn a_testbed_without_a_server_says_how_to_get_one() {
    let output = finish(with(&[], &["testbed", "--server", "/no/such/server"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("/no/such/server") && said.contains("install"),
        "{said}"
    );
}
