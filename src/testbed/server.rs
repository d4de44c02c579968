//! One server process: its start, until it is ready and known to be ours.

use std::{
    io::{self, Read, Seek, SeekFrom},
    net::SocketAddr,
    path::PathBuf,
    process::ChildStderr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, BufStream},
    net::{TcpStream, unix::pipe},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    background::blocking,
    error::TestbedError,
    guard::Guard,
    resp::{self, Value},
};

/// How long a server may take to answer its first PING.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How many bytes of a server's output go into an error.
const TAIL: usize = 4096;

/// More bytes than a server writes at its start.
const ROOM: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) node: usize,
    pub(crate) server: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) addr: SocketAddr,
    pub(crate) folder: PathBuf,
    pub(crate) password: Option<String>,
}

/// A server that has answered PING. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Server {
    guard: Guard,
    pid: u32,
    ended: watch::Receiver<bool>,
}

pub(crate) enum Failure {
    /// Another process has the port.
    PortTaken(TestbedError),
    Other(TestbedError),
}

impl From<TestbedError> for Failure {
    fn from(error: TestbedError) -> Self {
        Failure::Other(error)
    }
}

impl Server {
    /// Starts the server and waits until it answers. Call this on the background thread.
    pub(crate) async fn launch(spec: Arc<Spec>) -> Result<Server, Failure> {
        let mut log = Log::of(&spec);
        let to_start = spec.clone();
        let (guard, pid, output) = blocking(move || {
            Guard::server(&to_start.server, &to_start.arguments, &to_start.folder)
                .map_err(TestbedError::system("start a server under /bin/sh"))
        })
        .await?;
        let mut ended = log.follow(output)?;
        let server = Server {
            guard,
            pid,
            ended: ended.clone(),
        };

        let mut last = "not asked".to_owned();
        let ready = async {
            while let Err(why) = probe(&spec, pid).await {
                last = why;
                sleep(Duration::from_millis(3)).await;
            }
        };
        let outcome = tokio::select! {
            _ = ended.wait_for(|ended| *ended) => None,
            outcome = timeout(READY_WITHIN, ready) => Some(outcome),
        };
        let node = spec.node;
        match outcome {
            Some(Ok(())) => Ok(server),
            Some(Err(_)) => Err(TestbedError::NotReady {
                node,
                waited: READY_WITHIN,
                last,
                log: log.tail(),
            }
            .into()),
            None => {
                let folder = spec.folder.clone();
                blocking(move || has_room(folder)).await?;
                let log = log.tail();
                let taken = log.contains("Address already in use") || log.contains("Address in use");
                let error = TestbedError::Exited { node, log };
                Err(if taken {
                    Failure::PortTaken(error)
                } else {
                    Failure::Other(error)
                })
            }
        }
    }

    /// Returns the server's pid. `None` if it has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        (!*self.ended.borrow()).then_some(self.pid)
    }

    pub(crate) fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Kills the server and returns when it is gone. Blocks for milliseconds.
    pub(crate) fn end(self) -> Result<(), TestbedError> {
        self.guard.end().map_err(TestbedError::system("end a server"))
    }
}

/// Checks that a server can write to the folder: it exits without a message if it cannot write its log.
fn has_room(folder: PathBuf) -> Result<(), TestbedError> {
    let file = folder.join("room");
    let written = std::fs::write(&file, [0; ROOM]);
    let _ = std::fs::remove_file(&file); // if it fails, it goes with the folder
    written.map_err(TestbedError::folder("write to", folder))
}

/// Checks that the server on the port is the process `pid`, and answers PING.
async fn probe(spec: &Spec, pid: u32) -> Result<(), String> {
    let asking = async {
        let mut stream = connect(spec).await.map_err(|error| error.to_string())?;
        let info = resp::call(&mut stream, &["INFO", "server"])
            .await
            .map_err(|error| error.to_string())?;
        let info = info.as_str().unwrap_or_default();
        let theirs = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        if theirs.and_then(|theirs| theirs.trim().parse().ok()) != Some(pid) {
            return Err(format!("{} is not our process {pid}: {info:?}", spec.addr));
        }
        match resp::call(&mut stream, &["PING"]).await {
            Ok(Value::Simple(pong)) if pong == "PONG" => Ok(()),
            Ok(other) => Err(format!("PING was answered with {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    };
    timeout(Duration::from_secs(1), asking)
        .await
        .unwrap_or_else(|_| Err("no answer within 1s".into()))
}

/// Returns a new, authenticated connection to the server itself.
pub(crate) async fn connect(spec: &Spec) -> Result<BufStream<TcpStream>, TestbedError> {
    let broken = |source| TestbedError::Connection {
        node: spec.node,
        addr: spec.addr,
        source,
    };
    let stream = TcpStream::connect(spec.addr).await.map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    let mut stream = BufStream::new(stream);
    if let Some(password) = &spec.password
        && let Value::Error(message) = resp::call(&mut stream, &["AUTH", password.as_str()])
            .await
            .map_err(broken)?
    {
        return Err(TestbedError::Refused {
            node: spec.node,
            message,
        });
    }
    Ok(stream)
}

/// A server's log file and output, from this start on.
struct Log {
    file: PathBuf,
    from: u64,
    printed: Arc<Mutex<Vec<u8>>>,
}

impl Log {
    fn of(spec: &Spec) -> Log {
        let file = spec.folder.join("server.log");
        let from = file.metadata().map_or(0, |file| file.len());
        Log {
            file,
            from,
            printed: Arc::default(),
        }
    }

    /// Reads the server's output. The channel becomes `true` when the server and all its forks have ended.
    fn follow(&mut self, output: ChildStderr) -> Result<watch::Receiver<bool>, TestbedError> {
        let mut output = pipe::Receiver::from_owned_fd(output.into())
            .map_err(TestbedError::system("read what a server prints"))?;
        let (end_sender, ended) = watch::channel(false);
        let printed = self.printed.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = output.read(&mut buffer).await {
                let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
                printed.extend_from_slice(&buffer[..read]);
                let surplus = printed.len().saturating_sub(TAIL);
                printed.drain(..surplus);
            }
            end_sender.send_replace(true);
        });
        Ok(ended)
    }

    fn tail(&self) -> String {
        let mut bytes = self
            .printed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match self.logged() {
            Ok(logged) => bytes.extend(logged),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // the server did not get that far
            Err(error) => bytes.extend(format!("(cannot read {}: {error})", self.file.display()).bytes()),
        }
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    fn logged(&self) -> io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(&self.file)?;
        let from = self.from.max(file.metadata()?.len().saturating_sub(TAIL as u64));
        file.seek(SeekFrom::Start(from))?;
        let mut logged = Vec::new();
        file.read_to_end(&mut logged)?;
        Ok(logged)
    }
}
