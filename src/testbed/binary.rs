//! Finds a server to run.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::error::{TestbedError, VARIABLE};

/// Names to look for on the PATH, in this order.
const SERVERS: [&str; 2] = ["valkey-server", "redis-server"];

/// Returns the server binary: `asked`, otherwise the environment's, otherwise the first on the PATH.
pub(crate) fn find(asked: Option<PathBuf>) -> Result<PathBuf, TestbedError> {
    let of_environment = || {
        env::var_os(VARIABLE)
            .filter(|server| !server.is_empty())
            .map(PathBuf::from)
    };
    let asked = asked.or_else(of_environment);
    let found = match &asked {
        Some(server) if server.components().count() > 1 => runs(server).then(|| server.clone()),
        Some(server) => on_path(server),
        None => SERVERS.iter().find_map(|server| on_path(Path::new(server))),
    };
    // Servers start in their own folder, so the path must be absolute.
    let found = found.and_then(|server| std::path::absolute(server).ok());
    found.ok_or_else(|| TestbedError::ServerMissing {
        looked_for: match asked {
            Some(server) => server.display().to_string(),
            None => format!("{} on the PATH", SERVERS.join(" and ")),
        },
    })
}

fn on_path(name: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|server| runs(server))
}

fn runs(server: &Path) -> bool {
    fs::metadata(server).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
