//! A testbed leaves nothing behind, however it ends.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use quorlock::testbed::{Data, TestNode, Testbed, TestbedError};
use tokio::time::timeout;

use crate::{client, eventually, exists};

fn pids(testbed: &Testbed) -> Vec<u32> {
    testbed.nodes().iter().map(|node| node.pid().unwrap()).collect()
}

fn assert_gone(pids: &[u32], folder: &Path) {
    for &pid in pids {
        assert!(!exists(pid), "server {pid} still runs");
    }
    assert!(!folder.exists(), "{} is still there", folder.display());
}

#[tokio::test]
async fn drop_and_shutdown_leave_nothing() {
    for how in 0..3 {
        let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
        let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
        assert!(pids.iter().all(|&pid| exists(pid)) && folder.is_dir());
        let _client = client(&testbed).await;
        testbed.nodes()[1].stop().unwrap();
        testbed.nodes()[2].kill().await.unwrap();
        match how {
            0 => drop(testbed),
            1 => testbed.shutdown().await,
            _ => {
                drop(testbed.shutdown()); // the shutdown goes on
                eventually("the folder is gone", || async { !folder.exists() }).await;
            }
        }
        assert_gone(&pids, &folder);
    }
}

#[tokio::test]
async fn a_restart_under_way_does_not_outlive_the_testbed() {
    let testbed = Testbed::start(1).await.unwrap();
    let folder = testbed.folder().to_owned();
    let _ = timeout(Duration::ZERO, testbed.nodes()[0].restart(Data::Wipe)).await;
    drop(testbed);
    assert!(!folder.exists());
    assert_eq!(processes_naming(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_cancelled_start_leaves_nothing() {
    let marker = unique("cancelled");
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("proc-title-template", marker.as_str())
        .start()
        .await;
    assert_eq!(processes_naming(Path::new(&marker)).len(), 6); // servers and guards
    drop(testbed);
    for millis in [0, 3, 10, 20, 40] {
        let start = Testbed::builder()
            .nodes(3)
            .arg("proc-title-template", marker.as_str())
            .start();
        if let Ok(testbed) = timeout(Duration::from_millis(millis), start).await {
            drop(testbed.unwrap());
        }
        assert_eq!(processes_naming(Path::new(&marker)), Vec::<String>::new());
    }
}

#[tokio::test]
async fn neither_ctrl_c_nor_a_lost_guard_matters() {
    let testbed = Testbed::start(1).await.unwrap();
    let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
    // Fields of /proc/pid/stat after the name: state, parent, process group.
    let stat = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned);
        fields.collect::<Vec<_>>()
    };
    let (server, us) = (stat(pids[0]), stat(std::process::id()));
    assert_ne!(server[2], us[2], "Ctrl-C would reach the server");

    let guard = &server[1];
    assert_eq!(&server[2], guard);
    assert_eq!(stat(guard.parse().unwrap())[1], std::process::id().to_string());
    assert!(
        Command::new("/bin/sh")
            .args(["-c", "kill -9 $0", guard])
            .status()
            .unwrap()
            .success()
    );
    drop(testbed);
    eventually("the server has ended", || async { !exists(pids[0]) }).await;
    assert_gone(&pids, &folder);
}

#[test]
fn can_be_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Testbed>();
    check::<TestNode>();
    check::<TestbedError>();
}

#[test]
fn a_panic_leaves_nothing() {
    let (send, receive) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let testbed = Testbed::start(2).await.unwrap();
            send.send((pids(&testbed), testbed.folder().to_owned())).unwrap();
            panic!("on purpose");
        });
    });
    let (pids, folder) = receive.recv().unwrap();
    assert!(panicked.join().is_err());
    assert_gone(&pids, &folder);
}

#[test]
fn outlives_a_current_thread_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let testbed = first
        .block_on(Testbed::builder().nodes(2).proxies(true).start())
        .unwrap();
    drop(first);
    runtime().block_on(async {
        client(&testbed).await;
        testbed.nodes()[1].restart(Data::Wipe).await.unwrap();
    });
    let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
    drop(testbed); // outside of any runtime
    assert_gone(&pids, &folder);
}

const CHILD: &str = "QUORLOCK_TESTBED_TEST_CHILD";

/// The process that `a_killed_parent_leaves_nothing` starts and kills.
#[tokio::test]
async fn child_that_waits_to_be_killed() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
    testbed.nodes()[1].stop().unwrap();
    testbed.nodes()[2].restart(Data::Keep).await.unwrap();
    let pids: Vec<_> = pids(&testbed).iter().map(u32::to_string).collect();
    println!("\nTESTBED {} {}", testbed.folder().display(), pids.join(" "));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_parent_leaves_nothing() {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "ends::child_that_waits_to_be_killed"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find(|line| line.starts_with("TESTBED "))
        .expect("the child did not start a testbed");
    let mut words = line.split(' ').skip(1);
    let folder = PathBuf::from(words.next().unwrap());
    let pids: Vec<u32> = words.map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|&pid| exists(pid)) && folder.is_dir());

    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the servers and their folder are gone", || async {
        !pids.iter().any(|&pid| exists(pid)) && !folder.exists()
    })
    .await;
    eventually("the guards have ended", || async {
        processes_naming(&folder).is_empty()
    })
    .await;
}

fn unique(what: &str) -> String {
    format!("quorlock-test-{what}-{}", std::process::id())
}

/// Returns command lines that contain `what`.
fn processes_naming(what: &Path) -> Vec<String> {
    let what = what.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(what)).collect()
}
