//! Commands that run the tool, without the developer's settings.

use std::ffi::OsStr;

use tokio::process::Command;

/// Returns a program that runs the tool. The developer's own settings do not reach it.
pub(crate) fn program(name: impl AsRef<OsStr>, urls: &[String]) -> Command {
    let mut command = Command::new(name);
    isolate(&mut command);
    command.kill_on_drop(true);
    if !urls.is_empty() {
        command.env("QUORLOCK_NODES", urls.join(", "));
    }
    command
}

/// Removes the developer's variables and configuration files from a command's environment.
pub(crate) fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        // This one chooses the server to test with.
        if name.to_string_lossy().starts_with("QUORLOCK_") && name != "QUORLOCK_REDIS_SERVER" {
            command.env_remove(name);
        }
    }
    command.env("QUORLOCK_CONFIG", "/dev/null");
}
