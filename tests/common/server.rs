//! Servers with adjustable clocks, and more settings at their next start.
#![allow(dead_code)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock::testbed::TestNode;

/// In a node's folder: how far its clock is ahead, in microseconds.
const SHIFT: &str = "shift";
/// In a node's folder: more settings for its next start.
const SETTINGS: &str = "settings";

/// Builds a server binary for a testbed ([`TestbedBuilder::server`](quorlock::testbed::TestbedBuilder::server)). Tests can then
/// tamper with each node.
pub(crate) fn tampered() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/shift.c");
    let library = put(&folder.join("shift.so"), |new| {
        // Rust needs a C compiler for linking.
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([new, &source]);
        assert!(compiler.status().unwrap().success());
    });
    // A server starts in its node's folder. An empty file cannot be mapped.
    let text = format!(
        "#!/bin/sh\n\
         [ -f {SHIFT} ] || head -c 8 /dev/zero >{SHIFT}\n\
         more=$(cat {SETTINGS} 2>/dev/null)\n\
         server=${{QUORLOCK_REDIS_SERVER:-$(command -v valkey-server || command -v redis-server)}}\n\
         QUORLOCK_CLOCK_SHIFT=\"$PWD/{SHIFT}\" LD_PRELOAD='{}' exec \"$server\" \"$@\" $more\n",
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
    // In place: the server has the file mapped.
    let file = OpenOptions::new()
        .write(true)
        .open(node.folder().join(SHIFT))
        .unwrap();
    file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
}

pub(crate) fn shifted(node: &TestNode) -> i64 {
    let bytes = fs::read(node.folder().join(SHIFT)).unwrap();
    i64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Sets more settings for all later starts of a node's server.
pub(crate) fn settings(node: &TestNode, settings: &str) {
    fs::write(node.folder().join(SETTINGS), settings).unwrap();
}
