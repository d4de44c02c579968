//! The raw floor: five blocking sockets, without runtime, timers or real error handling.
//!
//! The same bytes as the others send go to all five nodes, and three answers are waited for. The other two are read before the
//! next operation, outside of the timed part.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::contender::{Contender, Failure};
use crate::wire::{self, Answers, Requests};

const PATIENCE: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

#[derive(Clone)]
pub(crate) struct Floor(Arc<Mutex<Connections>>);

struct Connections {
    nodes: Vec<Connection>,
    requests: Requests,
    digest: String,
}

struct Connection {
    stream: TcpStream,
    /// The number of answers to come.
    owed: usize,
    /// The server runs. Nothing is read from a stopped one.
    awake: bool,
    answers: Answers,
}

impl Floor {
    pub(crate) fn connect(addresses: &[SocketAddr], requests: Requests) -> std::io::Result<Floor> {
        let mut digest = String::new();
        let mut nodes = Vec::new();
        for address in addresses {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.write_all(&requests.preparation())?;
            let mut answer = [0; wire::PREPARED];
            stream.read_exact(&mut answer)?;
            digest = wire::digest(&answer);
            nodes.push(Connection {
                stream,
                owed: 0,
                awake: true,
                answers: Answers::default(),
            });
        }
        Ok(Floor(Arc::new(Mutex::new(Connections {
            nodes,
            requests,
            digest,
        }))))
    }

    pub(crate) fn set_awake(&self, node: usize, awake: bool) {
        self.connections().nodes[node].awake = awake;
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contender for Floor {
    type Held = (String, String);

    async fn acquire(&self, name: String) -> Result<Self::Held, Failure> {
        let (key, token) = (wire::PREFIX.to_owned() + &name, uuid());
        let mut connections = self.connections();
        let bytes = connections.requests.acquire(&connections.digest, &key, &token);
        connections.ask(&bytes)?;
        Ok((key, token))
    }

    async fn release(&self, (key, token): Self::Held) -> Result<(), Failure> {
        let mut connections = self.connections();
        let bytes = connections.requests.release(&connections.digest, &key, &token);
        connections.ask(&bytes)
    }

    async fn settle(&self) -> Result<(), Failure> {
        self.connections().drain()
    }
}

impl Connections {
    fn ask(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for node in &mut self.nodes {
            node.stream.write_all(bytes).map_err(|error| error.to_string())?;
            node.owed += 1;
        }
        let mut missing = wire::quorum(self.nodes.len());
        while missing > 0 {
            missing = missing.saturating_sub(self.read_some()?);
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while self.nodes.iter().any(|node| node.awake && node.owed > 0) {
            self.read_some()?;
        }
        Ok(())
    }

    /// Waits for answers, and returns how many came.
    fn read_some(&mut self) -> Result<usize, Failure> {
        let asked: Vec<usize> = (0..self.nodes.len())
            .filter(|number| self.nodes[*number].awake && self.nodes[*number].owed > 0)
            .collect();
        let mut waits: Vec<PollFd<'_>> = asked
            .iter()
            .map(|number| PollFd::new(&self.nodes[*number].stream, PollFlags::IN))
            .collect();
        if poll(&mut waits, Some(&PATIENCE)).map_err(|error| error.to_string())? == 0 {
            return Err("no answer".into());
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        let mut came = 0;
        for (number, _) in asked.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            came += self.nodes[number].read()?;
        }
        Ok(came)
    }
}

impl Connection {
    fn read(&mut self) -> Result<usize, Failure> {
        let mut buffer = [0; 4096];
        let length = self.stream.read(&mut buffer).map_err(|error| error.to_string())?;
        if length == 0 {
            return Err("connection closed".into());
        }
        let (mut came, mut failure) = (0, None);
        self.answers.take_in(&buffer[..length], |answer| {
            came += 1;
            failure = failure.take().or(answer.err());
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.owed = self.owed.saturating_sub(came);
        Ok(came)
    }
}

/// Returns a token as long as those of the others.
pub(crate) fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}
