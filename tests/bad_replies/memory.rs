//! Memory use: announced lengths allocate nothing, and what is sent is bounded by time. Each test runs in its own process.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use quorlock::testbed::Testbed;

use crate::common::unguarded;
use crate::targets::forgery::ForgedReply;
use crate::targets::lying_proxy::{Forge, LyingProxy};

const CHILD: &str = "QUORLOCK_HOSTILE_CHILD";
/// Far less than the announced lengths, and more than a test needs anyway.
const MOST: u64 = 64 << 20;
const DEEP: usize = 100_000;

/// Runs `child`, which otherwise does nothing, in a process of its own.
fn in_a_child(test: &str, kind: &str) -> Output {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, kind);
    child.output().unwrap()
}

fn assert_passes(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_gigabyte_that_is_announced_is_not_set_aside() {
    for announced in [
        "$1000000000",
        "*1000000000",
        "%1000000000",
        "~1000000000",
        "=1000000000",
        "|1000000000",
    ] {
        assert_passes(&in_a_child("memory::child", announced));
    }
}

#[test]
fn replies_nested_deeply_do_not_overflow_the_stack() {
    assert_passes(&in_a_child("memory::child", "deep"));
}

/// One of three nodes lies to this process.
#[tokio::test]
async fn child() {
    let Ok(kind) = env::var(CHILD) else { return };
    let said: Arc<[u8]> = match &*kind {
        "deep" => "*1\r\n".repeat(DEEP).into_bytes().into(),
        announced => format!("{announced}\r\n").into_bytes().into(),
    };
    let testbed = Testbed::start(3).await.unwrap();
    let mut urls = testbed.urls();
    let mut truths = 12;
    let forge_reply: Forge = Box::new(move |truth| {
        truths -= i32::from(truths > 0);
        match truths {
            0 => ForgedReply::says(said.to_vec()),
            _ => ForgedReply::says(truth.write()),
        }
    });
    let lying_proxy = LyingProxy::start(testbed.nodes()[0].direct_addr(), forge_reply).await;
    urls[0] = lying_proxy.url();
    let redlock = unguarded(urls).connect().await.unwrap();
    let before = peak();
    for round in 0..10 {
        let lock = redlock.lock(format!("r{round}")).ttl(Duration::from_secs(120));
        let lease = lock.acquire().await.unwrap();
        lease.extend().await.unwrap();
        let _ = lease.release().await;
    }
    let grown = peak() - before;
    assert!(grown < MOST, "grown by {grown} bytes after {kind:?}");
}

/// Returns the largest memory use of this process so far, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
