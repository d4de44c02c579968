//! A proxy that lies: it passes requests on to a real server, and replaces some of the answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::lies::{Then, Told};
use super::resp::Value;

/// Returns what to send instead of a server's reply. Called for each reply on any connection, in order.
pub(crate) type Tongue = Box<dyn FnMut(&Value) -> Told + Send>;

/// Dropping it closes all connections.
pub(crate) struct Liar {
    addr: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Liar {
    pub(crate) async fn start(server: SocketAddr, tongue: Tongue) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let tongue = Arc::new(Mutex::new(tongue));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(client, server, tongue.clone()));
            }
        });
        Liar {
            addr,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

async fn serve(client: TcpStream, server: SocketAddr, tongue: Arc<Mutex<Tongue>>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let asked = tokio::io::copy(&mut from_client, &mut to_server);
    tokio::select! {
        _ = asked => {}
        () = answer(from_server, to_client, tongue) => {}
    }
}

/// Answers until the connection is to end.
async fn answer(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, tongue: Arc<Mutex<Tongue>>) {
    let mut heard = Vec::new();
    loop {
        while let Some((truth, length)) = Value::read(&heard) {
            heard.drain(..length);
            let told = (tongue.lock().unwrap())(&truth);
            if client.write_all(&told.bytes).await.is_err() || told.then == Then::Close {
                return;
            }
            if told.then == Then::Silence {
                std::future::pending::<()>().await;
            }
        }
        match server.read_buf(&mut heard).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
