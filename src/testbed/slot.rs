//! The lasting part of a node: ports, folder, settings, and a lock for changes of its server.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::sleep;

use super::{
    background::blocking,
    error::TestbedError,
    port::Port,
    resp,
    server::{Failure, Server, Spec, connect},
};

/// The data that a restarted server finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Data {
    /// Everything: each write was on disk before it was acknowledged.
    Keep,
    /// Nothing, as after the loss of the disk.
    Wipe,
}

/// How many ports are tried for a new node.
const PORTS: usize = 10;
/// How long a restart is retried while another process has the port.
const PORT_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) server: PathBuf,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) password: Option<String>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) unix_sockets: bool,
    pub(crate) proxies: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

pub(crate) struct Slot {
    pub(crate) spec: Arc<Spec>,
    unix_socket: Option<PathBuf>,
    state: Mutex<SlotState>,
    /// Locked while the server is ended or started.
    turn: tokio::sync::Mutex<()>,
    /// Kept, so that a restarted server gets the same ports.
    ports: Ports,
}

struct SlotState {
    server: Option<Server>,
    /// The testbed has ended: no server may start any more.
    closed: bool,
}

impl Plan {
    /// Returns whether servers are durable: no setting replaces the testbed's own.
    fn remembers(&self) -> bool {
        let changed = |setting: &(String, String)| matches!(setting.0.as_str(), "appendonly" | "appendfsync");
        !self.settings.iter().any(changed)
    }
}

struct Ports {
    plain: Port,
    tls: Option<Port>,
}

impl Slot {
    /// Finds free ports and starts a server there. Call this on the background thread.
    pub(crate) async fn open(node: usize, plan: &Plan, folder: PathBuf) -> Result<Slot, TestbedError> {
        let data = folder.join("data");
        fs::create_dir_all(&data).map_err(TestbedError::folder("create", &data))?;
        let unix_socket = plan.unix_sockets.then(|| folder.join("redis.sock"));
        let mut tries = 0;
        loop {
            tries += 1;
            let ports = Ports::pick(plan).map_err(TestbedError::system("find a free port"))?;
            let spec = Arc::new(Spec {
                node,
                server: plan.server.clone(),
                arguments: arguments(plan, &ports, &folder, unix_socket.as_deref()),
                addr: ports.plain.addr(),
                folder: folder.clone(),
                password: plan.password.clone(),
            });
            match Server::launch(spec.clone()).await {
                Ok(server) => {
                    if plan.remembers() {
                        write_record(&spec).await?;
                    }
                    let state = Mutex::new(SlotState {
                        server: Some(server),
                        closed: false,
                    });
                    return Ok(Slot {
                        spec,
                        unix_socket,
                        state,
                        turn: tokio::sync::Mutex::new(()),
                        ports,
                    });
                }
                Err(Failure::PortTaken(_)) if tries < PORTS => {}
                Err(Failure::PortTaken(error) | Failure::Other(error)) => return Err(error),
            }
        }
    }

    pub(crate) fn url(&self, addr: SocketAddr) -> String {
        self.with_password(&format!("redis://{addr}"))
    }

    pub(crate) fn tls_url(&self) -> Option<String> {
        self.ports
            .tls
            .as_ref()
            .map(|port| self.with_password(&format!("rediss://{}", port.addr())))
    }

    pub(crate) fn unix_url(&self) -> Option<String> {
        let path = self.unix_socket.as_deref()?.display();
        // With a password, URL parsers require a host. It has no meaning.
        Some(match &self.spec.password {
            None => format!("redis+unix://{path}"),
            Some(_) => self.with_password(&format!("redis+unix://localhost{path}")),
        })
    }

    /// Returns the server's pid. `None` while no server runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.state().server.as_ref().and_then(Server::pid)
    }

    pub(crate) fn signal(&self, signal: &str) -> Result<(), TestbedError> {
        let gone = TestbedError::NotRunning { node: self.spec.node };
        let mut state = self.state();
        let Some(server) = state.server.as_mut() else {
            return Err(gone);
        };
        let done = server
            .guard()
            .signal(signal)
            .map_err(TestbedError::system("signal a server"))?;
        if done { Ok(()) } else { Err(gone) }
    }

    pub(crate) async fn kill(&self) -> Result<(), TestbedError> {
        let _turn = self.turn.lock().await;
        self.end().await
    }

    pub(crate) async fn restart(&self, data: Data) -> Result<(), TestbedError> {
        let _turn = self.turn.lock().await;
        self.end().await?;
        if data == Data::Wipe {
            self.wipe().await?;
        }
        let server = self.launch().await?;
        let mut state = self.state();
        if state.closed {
            return Err(TestbedError::Ended);
        }
        state.server = Some(server);
        Ok(())
    }

    pub(crate) fn close(&self) -> Option<Server> {
        let mut state = self.state();
        state.closed = true;
        state.server.take()
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn end(&self) -> Result<(), TestbedError> {
        let server = self.state().server.take();
        match server {
            Some(server) => blocking(move || server.end()).await,
            None => Ok(()),
        }
    }

    async fn wipe(&self) -> Result<(), TestbedError> {
        let data = self.spec.folder.join("data");
        blocking(move || {
            let wiped = match fs::remove_dir_all(&data) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => fs::create_dir(&data),
            };
            wiped.map_err(TestbedError::folder("wipe", data))
        })
        .await
    }

    async fn launch(&self) -> Result<Server, TestbedError> {
        let give_up = Instant::now() + PORT_WITHIN;
        loop {
            match Server::launch(self.spec.clone()).await {
                Ok(server) => return Ok(server),
                Err(Failure::PortTaken(_)) if Instant::now() < give_up => {
                    sleep(Duration::from_millis(50)).await;
                }
                Err(Failure::PortTaken(error) | Failure::Other(error)) => return Err(error),
            }
        }
    }

    fn with_password(&self, plain: &str) -> String {
        let Some(password) = &self.spec.password else {
            return plain.to_owned();
        };
        let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
        plain.replacen("://", &format!("://:{password}@"), 1)
    }
}

/// Writes the record of a new server, which has forgotten nothing. Without it, clients would leave the server out for half a
/// minute, as one that has lost its data. A wipe deletes the record, too.
async fn write_record(spec: &Spec) -> Result<(), TestbedError> {
    let failed = |source| TestbedError::Connection {
        node: spec.node,
        addr: spec.addr,
        source,
    };
    let mut stream = connect(spec).await?;
    let info = resp::call(&mut stream, &["INFO", "server"])
        .await
        .map_err(failed)?;
    let mut lines = info.as_str().unwrap_or_default().lines();
    let Some(run_id) = lines.find_map(|line| line.trim_end().strip_prefix("run_id:")) else {
        return Ok(());
    };
    let id = uuid::Uuid::new_v4().simple();
    let record = format!("1 {id} {0:016} {0:016} + {run_id} -", 0);
    // A server whose settings refuse writes gets no record.
    let _refused = resp::call(&mut stream, &["SET", "quorlock:#node", &record, "NX"])
        .await
        .map_err(failed)?;
    Ok(())
}

impl Ports {
    fn pick(plan: &Plan) -> io::Result<Ports> {
        let tls = plan.tls.as_ref().map(|_| Port::pick()).transpose()?;
        Ok(Ports {
            plain: Port::pick()?,
            tls,
        })
    }
}

/// Returns the server's command line. The plan's settings come last, so that they override the testbed's own.
fn arguments(plan: &Plan, ports: &Ports, folder: &Path, unix_socket: Option<&Path>) -> Vec<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let text = |text: &str| text.to_owned();
    let mut settings = vec![
        ("bind", ports.plain.addr().ip().to_string()),
        ("port", ports.plain.addr().port().to_string()),
        ("appendonly", text("yes")),
        ("appendfsync", text("always")),
        ("maxmemory-policy", text("noeviction")),
        ("save", text("")),
        ("protected-mode", text("no")),
        ("daemonize", text("no")),
        ("dir", path(&folder.join("data"))),
        ("loglevel", text("notice")),
        ("logfile", path(&folder.join("server.log"))),
    ];
    settings.extend(
        plan.password
            .iter()
            .map(|password| ("requirepass", text(password))),
    );
    settings.extend(unix_socket.map(|socket| ("unixsocket", path(socket))));
    if let (Some(files), Some(port)) = (&plan.tls, &ports.tls) {
        settings.extend([
            ("tls-port", port.addr().port().to_string()),
            ("tls-cert-file", path(&files.cert)),
            ("tls-key-file", path(&files.key)),
            ("tls-ca-cert-file", path(&files.ca)),
            ("tls-auth-clients", text("no")),
        ]);
    }
    let extra = plan
        .settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()));
    settings
        .into_iter()
        .chain(extra)
        .flat_map(|(name, value)| [format!("--{name}"), value])
        .collect()
}
