//! A PostgreSQL server of the test's own, from the binaries that the system has. Listens on a Unix socket only.
//!
//! It is started once for a test binary, with a schema for each test, and goes with its process: a small shell
//! process reads a pipe that only the test process holds the other end of, and when that ends, `kill -9` included,
//! stops the server and removes its folder.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use tokio_postgres::{Client, Config, NoTls};

/// Arguments: the folder of the binaries, a folder for temporary files. Prints the server's folder when it is up.
/// `immediate` ends the server's processes at once, but lets it give back its shared memory, as killing it would not.
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

/// Does not run as root, so root starts it as one of these.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

struct Server {
    folder: PathBuf,
    /// Holds the pipe. In a static, so it is the end of the process that closes it.
    _guard: Child,
}

/// A schema for one test: empty, and where its connections find and make everything.
pub(crate) struct Database {
    config: Config,
}

impl Database {
    /// A new one.
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

    /// Where another process finds it.
    pub(crate) fn address(&self) -> String {
        let schema = self.config.get_options().unwrap();
        format!(
            "host={} user=quorlock dbname=postgres options='{schema}'",
            server().folder.display()
        )
    }

    /// The same for `psql`, and where that is.
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

    /// One more connection to it.
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
        .process_group(0) // Ctrl-C is not for the guard
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if rustix::process::geteuid().is_root() {
        let (user, group) = unprivileged().expect("a user who is not root");
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

/// Whether there can be one.
pub(crate) fn is_installed() -> bool {
    binaries().is_some()
}

/// The folder with `pg_ctl` and `initdb`: on the PATH, else Debian's with the highest version.
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
