//! Three members of etcd on loopback, from the installed binary. Like the other servers, they end with this process, however it
//! ends.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::etcd;

/// Enough members to survive the loss of one.
const MEMBERS: usize = 3;
const UP_WITHIN: Duration = Duration::from_secs(20);

/// Arguments: a folder for temporary files, and two ports for each member. Prints a line when the members are started. Its input
/// ends with the process that started it.
const GUARD: &str = r#"
trap '' HUP INT QUIT TERM PIPE
folder=$(mktemp -d "$1/quorlock-etcd-XXXXXX") && cd "$folder" || exit 1
shift
cluster=$(while [ $# -gt 0 ]; do printf '%s' "m$2=http://127.0.0.1:$2,"; shift 2; done)
members=
while [ $# -gt 0 ]; do
    etcd --name "m$2" --data-dir "$folder/m$2" --logger zap --log-level error \
        --listen-client-urls "http://127.0.0.1:$1" --advertise-client-urls "http://127.0.0.1:$1" \
        --listen-peer-urls "http://127.0.0.1:$2" --initial-advertise-peer-urls "http://127.0.0.1:$2" \
        --initial-cluster "${cluster%,}" --initial-cluster-state new </dev/null >>"$folder/log" 2>&1 &
    members="$members $!"
    shift 2
done
echo started
exec >/dev/null
read -r _
kill -s KILL $members
wait
cd / && rm -rf -- "$folder"
"#;

pub(crate) struct EtcdServers {
    pub(crate) members: Vec<String>,
    guard: Child,
}

impl EtcdServers {
    /// Returns when all members work.
    pub(crate) async fn start() -> Result<EtcdServers, Box<dyn Error>> {
        let ports = free_ports(2 * MEMBERS)?;
        let in_memory = Path::new("/dev/shm");
        let folder = if in_memory.is_dir() {
            in_memory.to_owned()
        } else {
            env::temp_dir()
        };
        let mut guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "quorlock-etcd"])
            .arg(folder)
            .args(ports.iter().map(u16::to_string))
            .current_dir("/")
            .process_group(0) // so that Ctrl-C does not end the guard
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answer = guard.stdout.take().ok_or("no pipe")?;
        let clients = ports
            .chunks(2)
            .map(|ports| format!("http://127.0.0.1:{}", ports[0]));
        let servers = EtcdServers {
            members: clients.collect(),
            guard,
        };
        BufReader::new(answer).read_line(&mut String::new())?;
        let started = Instant::now();
        while !timeout(UP_WITHIN, etcd::works(&servers.members)).await? {
            if started.elapsed() > UP_WITHIN {
                return Err("etcd did not start".into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(servers)
    }
}

impl Drop for EtcdServers {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

pub(crate) fn version() -> Option<String> {
    let output = Command::new("etcd").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(
        text.lines()
            .next()?
            .trim_start_matches("etcd Version: ")
            .to_owned(),
    )
}

/// Returns free ports. Another process could take them before they are used; on an idle machine, that was not seen.
fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    let sockets: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    sockets
        .iter()
        .map(|socket| Ok(socket.local_addr()?.port()))
        .collect()
}
