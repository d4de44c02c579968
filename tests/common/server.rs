//! Servers with adjustable clocks and disks, and more settings at their next start.
#![allow(dead_code)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorlock::testbed::TestNode;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// In a node's folder: how far its clock is ahead, and how long a sync of its disk takes, each in microseconds.
const TAMPER: &str = "tamper";
const SHIFT_AT: u64 = 0;
const SYNC_AT: u64 = 8;
/// In a node's folder: more settings for its next start.
const SETTINGS: &str = "settings";

/// Builds a server binary for a testbed ([`TestbedBuilder::server`](quorlock::testbed::TestbedBuilder::server)). Tests can then
/// tamper with each node.
pub(crate) fn tampered() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/tamper.c");
    let library = put(&folder.join("tamper.so"), |new| {
        // Rust needs a C compiler for linking.
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([new, &source]);
        assert!(compiler.status().unwrap().success());
    });
    // A server starts in its node's folder. An empty file cannot be mapped. A write beyond a limit of its process is to fail, not
    // to end it.
    let text = format!(
        "#!/bin/sh\n\
         trap '' XFSZ\n\
         [ -f {TAMPER} ] || head -c 16 /dev/zero >{TAMPER}\n\
         more=$(cat {SETTINGS} 2>/dev/null)\n\
         server=${{QUORLOCK_REDIS_SERVER:-$(command -v valkey-server || command -v redis-server)}}\n\
         QUORLOCK_TAMPER=\"$PWD/{TAMPER}\" LD_PRELOAD='{}' exec \"$server\" \"$@\" $more\n",
        library.display(),
    );
    let server = folder.join("tampered-server");
    // Not written again if unchanged: a process that is being started may inherit the open file, which then cannot be executed.
    if fs::read_to_string(&server).ok().as_ref() == Some(&text) {
        return server;
    }
    put(&server, |new| {
        fs::write(new, &text).unwrap();
        fs::set_permissions(new, PermissionsExt::from_mode(0o700)).unwrap();
    })
}

/// Makes a file in one step, because others may use or make it.
fn put(path: &Path, make: impl FnOnce(&PathBuf)) -> PathBuf {
    let new = path.with_extension(uuid::Uuid::new_v4().simple().to_string());
    make(&new);
    fs::rename(&new, path).unwrap();
    path.to_owned()
}

/// Sets how far a node's clock is ahead of the machine's; negative for behind.
pub(crate) fn shift(node: &TestNode, micros: i64) {
    tamper(node, SHIFT_AT, micros);
}

/// Sets how long each sync of a node's disk takes, beside the time that it takes by itself.
pub(crate) fn slow_disk(node: &TestNode, sync: Duration) {
    tamper(node, SYNC_AT, sync.as_micros() as i64);
}

fn tamper(node: &TestNode, at: u64, micros: i64) {
    // In place: the server has the file mapped.
    let file = OpenOptions::new()
        .write(true)
        .open(node.folder().join(TAMPER))
        .unwrap();
    file.write_all_at(&micros.to_ne_bytes(), at).unwrap();
}

pub(crate) fn shifted(node: &TestNode) -> i64 {
    let bytes = fs::read(node.folder().join(TAMPER)).unwrap();
    i64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// Makes each write of a node's server to a file fail, or lets them succeed again.
pub(crate) fn fail_writes(node: &TestNode, fail: bool) {
    let server = Pid::from_raw(node.pid().unwrap().try_into().unwrap());
    let limit = Rlimit {
        current: fail.then_some(1),
        maximum: None,
    };
    prlimit(server, Resource::Fsize, limit).unwrap();
}

/// Sets more settings for all later starts of a node's server.
pub(crate) fn settings(node: &TestNode, settings: &str) {
    fs::write(node.folder().join(SETTINGS), settings).unwrap();
}
