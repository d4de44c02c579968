//! One proxied connection: two directions, each with a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{future::Future, io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// The most bytes read at once, and the most such pieces in flight.
const PIECE: usize = 16 * 1024;
const PIECES: usize = 256;

/// A client's connection, counted while it is open.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    open: Arc<AtomicUsize>,
}

impl Client {
    pub(super) fn new(stream: TcpStream, open: Arc<AtomicUsize>) -> Client {
        open.fetch_add(1, Ordering::AcqRel);
        Client { stream, open }
    }
}

impl AsRef<TcpStream> for Client {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The state of the network between clients and server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) to_server: bool,
    pub(crate) from_server: bool,
    pub(crate) delay: Duration,
}

impl Default for Path {
    fn default() -> Self {
        Path {
            to_server: true,
            from_server: true,
            delay: Duration::ZERO,
        }
    }
}

/// Forwards one connection until both sides have closed it, or one has reset it. Dropping the future resets both.
pub(crate) fn carry(
    client: Client,
    server: SocketAddr,
    path: watch::Receiver<Path>,
) -> impl Future<Output = ()> + Send {
    // Here, so that a future dropped before its first poll resets the connection, too.
    let client = Resets {
        stream: client,
        orderly: false,
    };
    async move { carry_client(client, server, path).await }
}

async fn carry_client(mut client: Resets<Client>, server: SocketAddr, mut path: watch::Receiver<Path>) {
    // A handshake needs both directions.
    if path
        .wait_for(|path| path.to_server && path.from_server)
        .await
        .is_err()
    {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let mut server = Resets {
        stream: server,
        orderly: false,
    };
    for stream in [&client.stream.stream, &server.stream] {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a testbed proxy cannot set TCP_NODELAY");
        }
    }
    let (from_client, to_client) = client.stream.stream.split();
    let (from_server, to_server) = server.stream.split();
    let there = forward(from_client, to_server, path.clone(), |path| path.to_server);
    let back = forward(from_server, to_client, path, |path| path.from_server);
    let orderly = tokio::try_join!(there, back).is_ok();
    client.orderly = orderly;
    server.orderly = orderly;
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset(io::Error),
}

/// Forwards the bytes of one direction. After an error, the connection is to be reset.
async fn forward(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    path: watch::Receiver<Path>,
    open: fn(&Path) -> bool,
) -> io::Result<()> {
    let (send, mut queue) = mpsc::channel(PIECES);
    let mut seen = path.clone();
    let reading = async move {
        loop {
            let mut bytes = Vec::with_capacity(PIECE);
            let piece = match from.read_buf(&mut bytes).await {
                Ok(0) => Piece::End,
                Ok(_) => Piece::Bytes(bytes),
                Err(error) => Piece::Reset(error),
            };
            let last = !matches!(piece, Piece::Bytes(_));
            let due = Instant::now() + path.borrow().delay;
            if send.send((due, piece)).await.is_err() || last {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((due, piece)) = queue.recv().await {
            // A timer rounds up to its next tick, also for a piece that is due already.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            match piece {
                Piece::Bytes(bytes) => write(&mut to, &bytes, &mut seen, open).await?,
                Piece::End => {
                    wait_until_open(&mut seen, open).await?;
                    to.shutdown().await?;
                }
                Piece::Reset(error) => {
                    wait_until_open(&mut seen, open).await?;
                    return Err(error);
                }
            }
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

async fn write(
    to: &mut WriteHalf<'_>,
    mut bytes: &[u8],
    path: &mut watch::Receiver<Path>,
    open: fn(&Path) -> bool,
) -> io::Result<()> {
    while !bytes.is_empty() {
        wait_until_open(path, open).await?;
        tokio::select! {
            biased;
            changed = path.changed() => changed.map_err(|_| aborted())?, // may be closed now
            written = to.write(bytes) => match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            },
        }
    }
    Ok(())
}

async fn wait_until_open(path: &mut watch::Receiver<Path>, open: fn(&Path) -> bool) -> io::Result<()> {
    path.wait_for(open).await.map(drop).map_err(|_| aborted())
}

/// Returns the error that the proxy has ended.
fn aborted() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// A connection that is reset if it is dropped before both sides have closed it.
struct Resets<S: AsRef<TcpStream>> {
    stream: S,
    orderly: bool,
}

impl<S: AsRef<TcpStream>> Drop for Resets<S> {
    fn drop(&mut self) {
        if !self.orderly
            && let Err(error) = self.stream.as_ref().set_zero_linger()
        {
            tracing::debug!(%error, "a testbed proxy cannot reset a connection");
        }
    }
}
