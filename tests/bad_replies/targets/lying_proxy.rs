//! A proxy that lies: it passes requests on to a real server, and replaces some of the answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::forgery::{Afterwards, ForgedReply};
use super::resp::Value;

/// Returns what to send instead of a server's reply. Called for each reply on any connection, in order.
pub(crate) type Forge = Box<dyn FnMut(&Value) -> ForgedReply + Send>;

/// Dropping it closes all connections.
pub(crate) struct LyingProxy {
    addr: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl LyingProxy {
    pub(crate) async fn start(server: SocketAddr, forge_reply: Forge) -> LyingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let forge_reply = Arc::new(Mutex::new(forge_reply));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(client, server, forge_reply.clone()));
            }
        });
        LyingProxy {
            addr,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

async fn serve(client: TcpStream, server: SocketAddr, forge_reply: Arc<Mutex<Forge>>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let asked = tokio::io::copy(&mut from_client, &mut to_server);
    tokio::select! {
        _ = asked => {}
        () = answer(from_server, to_client, forge_reply) => {}
    }
}

/// Answers until the connection is to end.
async fn answer(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, forge_reply: Arc<Mutex<Forge>>) {
    let mut heard = Vec::new();
    loop {
        while let Some((truth, length)) = Value::read(&heard) {
            heard.drain(..length);
            let forged = (forge_reply.lock().unwrap())(&truth);
            if client.write_all(&forged.bytes).await.is_err() || forged.then == Afterwards::Close {
                return;
            }
            if forged.then == Afterwards::Silence {
                std::future::pending::<()>().await;
            }
        }
        match server.read_buf(&mut heard).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
