//! Servers whose clock can be wrong, and which take more settings when they are started again.
#![allow(dead_code)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock::testbed::TestNode;

/// In a node's folder: by how many microseconds its clock is off,
const SHIFT: &str = "shift";
/// and what its next start gets besides the testbed's settings.
const SETTINGS: &str = "settings";

/// A server binary for a testbed ([`TestbedBuilder::server`](quorlock::testbed::TestbedBuilder::server)), each of whose nodes
/// can be tampered with by itself. It is built anew, among what else was built.
pub(crate) fn tampered() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/shift.c");
    let library = put(&folder.join("shift.so"), |new| {
        // Rust needs a C compiler to link with, so there is one.
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([new, &source]);
        assert!(compiler.status().unwrap().success());
    });
    // Servers are started in their node's folder. Without a file that is long enough, the map would have no bytes.
    let text = format!(
        "#!/bin/sh\n\
         [ -f {SHIFT} ] || head -c 8 /dev/zero >{SHIFT}\n\
         more=$(cat {SETTINGS} 2>/dev/null)\n\
         server=${{QUORLOCK_REDIS_SERVER:-$(command -v valkey-server || command -v redis-server)}}\n\
         QUORLOCK_CLOCK_SHIFT=\"$PWD/{SHIFT}\" LD_PRELOAD='{}' exec \"$server\" \"$@\" $more\n",
        library.display(),
    );
    let server = folder.join("tampered-server");
    // Not once more: what was just written cannot be executed while a process that is being started has it open as well.
    if fs::read_to_string(&server).ok().as_ref() == Some(&text) {
        return server;
    }
    put(&server, |new| {
        fs::write(new, &text).unwrap();
        fs::set_permissions(new, PermissionsExt::from_mode(0o700)).unwrap();
    })
}

/// Makes a file as a whole: others may be using it, or making it too.
fn put(path: &Path, make: impl FnOnce(&PathBuf)) -> PathBuf {
    let new = path.with_extension(uuid::Uuid::new_v4().simple().to_string());
    make(&new);
    fs::rename(&new, path).unwrap();
    path.to_owned()
}

/// Puts a node's clock so many microseconds ahead of the machine's, or behind, from now on.
pub(crate) fn shift(node: &TestNode, micros: i64) {
    // In place: the server has the file mapped.
    let file = OpenOptions::new()
        .write(true)
        .open(node.folder().join(SHIFT))
        .unwrap();
    file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
}

/// By how many microseconds a node's clock is off.
pub(crate) fn shifted(node: &TestNode) -> i64 {
    let bytes = fs::read(node.folder().join(SHIFT)).unwrap();
    i64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Settings, as on a command line, for each start of a node's server from now on.
pub(crate) fn settings(node: &TestNode, settings: &str) {
    fs::write(node.folder().join(SETTINGS), settings).unwrap();
}
