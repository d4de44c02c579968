//! Servers whose clock can be wrong, and which take more settings when they are started again.
#![allow(dead_code)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use quorlock::testbed::TestNode;
use tempfile::TempDir;

/// In a node's folder: by how many microseconds its clock is off,
const SHIFT: &str = "shift";
/// and what its next start gets besides the testbed's settings.
const SETTINGS: &str = "settings";

/// A server binary for a testbed, each of whose nodes can be tampered with by itself.
pub(crate) struct Tampered {
    folder: TempDir,
}

impl Tampered {
    pub(crate) fn build() -> Tampered {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/shift.c");
        let library = folder.path().join("shift.so");
        // Rust needs a C compiler to link with, so there is one.
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status()
            .unwrap();
        assert!(compiled.success());
        let tampered = Tampered { folder };
        // Servers are started in their node's folder. Without a file that is long enough, the map would have no bytes.
        let text = format!(
            "#!/bin/sh\n\
             [ -f {SHIFT} ] || head -c 8 /dev/zero >{SHIFT}\n\
             more=$(cat {SETTINGS} 2>/dev/null)\n\
             QUORLOCK_CLOCK_SHIFT=\"$PWD/{SHIFT}\" LD_PRELOAD='{}' exec {} \"$@\" $more\n",
            library.display(),
            std::env::var("QUORLOCK_REDIS_SERVER").unwrap_or("redis-server".into()),
        );
        let server = tampered.server();
        fs::write(&server, text).unwrap();
        fs::set_permissions(&server, PermissionsExt::from_mode(0o700)).unwrap();
        tampered
    }

    /// For [`TestbedBuilder::server`](quorlock::testbed::TestbedBuilder::server).
    pub(crate) fn server(&self) -> PathBuf {
        self.folder.path().join("server")
    }
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
