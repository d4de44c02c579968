//! A minimal multiplexer, with which throughput is compared: many tasks share one connection for each node.
//!
//! It has no timers, reconnection or clean-up: only tasks that read and write, and a queue of awaited answers.

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::contender::{Contender, Failure};
use crate::floor::uuid;
use crate::wire::{self, Answers, Requests};

type Answer = Result<(), Failure>;
type Waiting = Arc<Mutex<VecDeque<oneshot::Sender<Answer>>>>;
type Queue = mpsc::UnboundedSender<(Arc<[u8]>, oneshot::Sender<Answer>)>;

#[derive(Clone)]
pub(crate) struct Mux {
    nodes: Arc<[Queue]>,
    requests: Requests,
    digest: Arc<str>,
}

impl Mux {
    pub(crate) async fn connect(addresses: &[SocketAddr], requests: Requests) -> Result<Mux, Box<dyn Error>> {
        let mut nodes = Vec::new();
        let mut digest = String::new();
        for address in addresses {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.write_all(&requests.preparation()).await?;
            let mut answer = [0; wire::PREPARED];
            stream.read_exact(&mut answer).await?;
            digest = wire::digest(&answer);
            nodes.push(multiplex(stream));
        }
        Ok(Mux {
            nodes: nodes.into(),
            requests,
            digest: digest.into(),
        })
    }

    async fn ask(&self, bytes: Vec<u8>) -> Answer {
        let bytes: Arc<[u8]> = bytes.into();
        let mut answers = FuturesUnordered::new();
        for node in &*self.nodes {
            let (reply, answer) = oneshot::channel();
            node.send((bytes.clone(), reply))
                .map_err(|_| "connection closed")?;
            answers.push(answer);
        }
        for _ in 0..wire::quorum(self.nodes.len()) {
            answers
                .next()
                .await
                .ok_or("no node")?
                .map_err(|_| "connection closed")??;
        }
        Ok(())
    }
}

impl Contender for Mux {
    type Held = (String, String);

    async fn acquire(&self, name: String) -> Result<Self::Held, Failure> {
        let (key, token) = (wire::PREFIX.to_owned() + &name, uuid());
        self.ask(self.requests.acquire(&self.digest, &key, &token))
            .await?;
        Ok((key, token))
    }

    async fn release(&self, (key, token): Self::Held) -> Result<(), Failure> {
        self.ask(self.requests.release(&self.digest, &key, &token)).await
    }
}

fn multiplex(stream: TcpStream) -> Queue {
    let (queue, mut requests) = mpsc::unbounded_channel::<(Arc<[u8]>, oneshot::Sender<Answer>)>();
    let (mut reader, mut writer) = stream.into_split();
    let waiting = Waiting::default();
    let answered = waiting.clone();
    tokio::spawn(async move {
        let (mut batch, mut bytes) = (Vec::new(), Vec::new());
        while requests.recv_many(&mut batch, 1_024).await > 0 {
            bytes.clear();
            {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                for (request, reply) in batch.drain(..) {
                    bytes.extend_from_slice(&request);
                    waiting.push_back(reply);
                }
            }
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let (mut buffer, mut answers) = (vec![0; 64 * 1_024], Answers::default());
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            let mut waiting = answered.lock().unwrap_or_else(PoisonError::into_inner);
            answers.take_in(&buffer[..length], |answer| {
                if let Some(reply) = waiting.pop_front() {
                    let _ = reply.send(answer); // not awaited after a quorum
                }
            });
        }
    });
    queue
}
