//! A PostgreSQL server for tests, from the installed binaries, on a Unix socket only.
//!
//! Each test binary starts one, with a schema for each test. The server ends with the test process, `kill -9` included: a shell
//! reads a pipe from that process, and cleans up when the pipe ends.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use tokio_postgres::{Client, Config, NoTls};

/// Arguments: the folder of the binaries, a folder for temporary files. Prints the server's folder once the server is up. The
/// mode `immediate` ends the server at once, but frees its shared memory; a kill would not.
const GUARD: &str = r#"
trap '' HUP INT QUIT TERM PIPE
bin=$1
folder=$(mktemp -d "$2/quorlock-postgres-XXXXXX") && cd "$folder" || exit 1
{
    "$bin/initdb" --pgdata=data --username=quorlock --auth=trust --encoding=UTF8 --no-locale --no-sync &&
        cat >>data/postgresql.conf <<SETTINGS &&
listen_addresses = ''
unix_socket_directories = '$folder'
max_connections = 300
shared_buffers = 32MB
fsync = off
full_page_writes = off
SETTINGS
        "$bin/pg_ctl" --pgdata=data --log=log --wait start
} >set-up 2>&1 </dev/null && echo "$folder" || cat set-up log >&2
exec >/dev/null
read -r _
"$bin/pg_ctl" --pgdata=data --mode=immediate --wait stop
cd / && rm -rf -- "$folder"
"#;

/// Users to run as: PostgreSQL refuses to run as root.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

struct Server {
    folder: PathBuf,
    /// Holds the pipe. In a static, so only the end of the process closes it.
    _guard: Child,
}

/// A schema for one test. Its connections use it by default.
pub(crate) struct Database {
    config: Config,
}

impl Database {
    pub(crate) async fn create() -> Database {
        let schema = format!("test_{}", uuid::Uuid::new_v4().simple());
        let mut config = Config::new();
        config
            .host_path(&server().folder)
            .user("quorlock")
            .dbname("postgres");
        let admin = connect(&config).await;
        let create = format!("CREATE SCHEMA {schema}");
        admin.batch_execute(&create).await.unwrap();
        config.options(format!("-c search_path={schema}"));
        Database { config }
    }

    /// Returns connection parameters for another process.
    pub(crate) fn address(&self) -> String {
        let schema = self.config.get_options().unwrap();
        format!(
            "host={} user=quorlock dbname=postgres options='{schema}'",
            server().folder.display()
        )
    }

    /// Returns the same for `psql`, with the PATH that finds it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let folder = binaries().unwrap();
        let path = env::var("PATH").unwrap_or_default();
        vec![
            ("PATH", format!("{path}:{}", folder.display())),
            ("PGHOST", server().folder.display().to_string()),
            ("PGUSER", "quorlock".to_owned()),
            ("PGDATABASE", "postgres".to_owned()),
            ("PGOPTIONS", self.config.get_options().unwrap().to_owned()),
        ]
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(&self.config).await
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection); // ends with the client
    client
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(start)
}

/// Blocks until the server is up, for a second or two.
fn start() -> Server {
    let binaries =
        binaries().expect("no PostgreSQL here: `make test` installs it, or put its `pg_ctl` on the PATH");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", GUARD, "quorlock-postgres"])
        .args([binaries, env::temp_dir()])
        .current_dir("/")
        .process_group(0) // Ctrl-C must not end the guard
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if rustix::process::geteuid().is_root() {
        let (user, group) = unprivileged()
            .expect("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`");
        command.uid(user).gid(group);
    }
    let mut guard = command.spawn().unwrap();
    let mut folder = String::new();
    let answer = guard.stdout.take().unwrap();
    BufReader::new(answer).read_line(&mut folder).unwrap();
    assert!(!folder.is_empty(), "PostgreSQL did not start; it says why above");
    Server {
        folder: folder.trim_end().into(),
        _guard: guard,
    }
}

pub(crate) fn is_installed() -> bool {
    binaries().is_some()
}

/// Returns the folder with `pg_ctl` and `initdb`: from the PATH, or else Debian's latest version.
fn binaries() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| folder.join("pg_ctl").is_file() && folder.join("initdb").is_file();
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = env::split_paths(&path).find(complete) {
        return Some(folder);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    folders.filter(complete).max_by_key(|folder| version(folder))
}

fn version(bin: &Path) -> Option<u32> {
    bin.parent()?.file_name().and_then(OsStr::to_str)?.parse().ok()
}

fn unprivileged() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    UNPRIVILEGED.iter().find_map(|name| {
        let mut fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = fields.find(|fields| fields.len() > 3 && fields[0] == *name)?;
        Some((user[2].parse().ok()?, user[3].parse().ok()?))
    })
}
