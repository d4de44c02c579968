//! Reads and writes the bytes of one connection for locks: commands out, replies in, in order.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fred::types::config::{Config, Server, ServerConfig};
use futures_util::stream::Stream;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::bytes::{Buf, BytesMut};
use tokio_util::codec::{Decoder, FramedRead};
use tokio_util::io::poll_write_buf;

use super::fault;
use super::resp::{self, Value};
use crate::node::Fault;

/// How soon the kernel probes a silent peer, and how often from then on.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);

/// A socket: TCP, Unix, or TLS.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

type BoxSocket = Box<dyn Socket>;

pub(super) struct Reader(FramedRead<ReadHalf<BoxSocket>, Replies>);

pub(super) struct Writer {
    half: WriteHalf<BoxSocket>,
    unsent: BytesMut,
    is_flushed: bool,
}

struct Replies;

impl Decoder for Replies {
    type Item = Value;
    type Error = Broken;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Value>, Broken> {
        let decoded = resp::decode(bytes).map_err(Broken)?;
        Ok(decoded.map(|(value, length)| {
            bytes.advance(length);
            value
        }))
    }
}

struct Broken(Fault);

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken(fault::from_io(&error))
    }
}

impl Reader {
    /// Takes the next reply. An error ends the connection.
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, Fault>> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_next(cx)) {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(Broken(fault))) => Err(fault),
            None => Err(closed()),
        })
    }
}

impl Writer {
    /// Returns the buffer of commands: what is appended goes out with the next flush.
    pub(super) fn unsent(&mut self) -> &mut BytesMut {
        self.is_flushed = false;
        &mut self.unsent
    }

    /// Returns whether there is nothing to flush.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_flushed
    }

    /// Sends as much as the socket takes. If that is not all, wakes `cx` when the socket takes more.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let broken = |error: io::Error| fault::from_io(&error);
        while self.unsent.has_remaining() {
            let written = ready!(poll_write_buf(Pin::new(&mut self.half), cx, &mut self.unsent));
            if written.map_err(broken)? == 0 {
                return Poll::Ready(Err(closed()));
            }
        }
        // TLS may hold data that the socket below it has not taken.
        ready!(Pin::new(&mut self.half).poll_flush(cx)).map_err(broken)?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}

fn closed() -> Fault {
    Fault::ConnectionLost {
        reason: "connection closed".into(),
    }
}

/// A connection that is being set up and probed: one exchange at a time.
pub(super) struct Setup {
    reader: Reader,
    writer: Writer,
}

impl Setup {
    /// Connects to `peer` (`None`: to the configured address) and authenticates. Dropping the future closes the connection.
    pub(super) async fn open(
        config: &Config,
        peer: Option<SocketAddr>,
        client_name: &str,
    ) -> Result<Setup, Fault> {
        let socket = connect(config, peer).await.map_err(fault::as_disconnected)?;
        let (read, write) = tokio::io::split(socket);
        let mut setup = Setup {
            reader: Reader(FramedRead::new(read, Replies)),
            writer: Writer {
                half: write,
                unsent: BytesMut::new(),
                is_flushed: true,
            },
        };
        setup.introduce(config, client_name).await?;
        Ok(setup)
    }

    async fn introduce(&mut self, config: &Config, client_name: &str) -> Result<(), Fault> {
        let mut commands = Vec::from_iter(authentication(config));
        if let Some(number) = config.database.filter(|number| *number > 0) {
            commands.push(resp::command(&["SELECT", &number.to_string()]));
        }
        let needed = commands.len();
        commands.push(resp::command(&["CLIENT", "SETNAME", client_name]));
        let mut replies = self.ask_all(commands).await?;
        let named = replies.split_off(needed);
        replies.into_iter().try_for_each(|reply| reply.map(drop))?;
        match named.into_iter().next() {
            // A server that refuses all connections sends its reason in place of the first reply.
            Some(Err(Fault::Server { message })) if !message.starts_with("ERR unknown") => {
                Err(Fault::Server { message })
            }
            // A user may lack the right to give the connection a name.
            _ => Ok(()),
        }
    }

    /// Sends one command. Returns its reply; an error as the fault that it stands for.
    pub(super) async fn ask(&mut self, command: BytesMut) -> Result<Value, Fault> {
        self.ask_all(vec![command]).await?.remove(0)
    }

    /// Sends commands together. Returns a reply for each; an error as the fault that it stands for.
    pub(super) async fn ask_all(
        &mut self,
        commands: Vec<BytesMut>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let replies = self.exchange(commands).await?;
        Ok(replies.into_iter().map(Value::into_result).collect())
    }

    /// Sends commands together. Returns a reply for each, which may be an error.
    pub(super) async fn exchange(&mut self, commands: Vec<BytesMut>) -> Result<Vec<Value>, Fault> {
        let mut replies = Vec::with_capacity(commands.len());
        for command in &commands {
            self.writer.unsent().extend_from_slice(command);
        }
        poll_fn(|cx| {
            while replies.len() < commands.len() {
                if let Poll::Ready(Err(fault)) = self.writer.poll_flush(cx) {
                    return Poll::Ready(Err(fault::as_disconnected(fault)));
                }
                let reply = ready!(self.reader.poll_reply(cx)).map_err(fault::as_disconnected)?;
                replies.push(reply);
            }
            Poll::Ready(Ok(()))
        })
        .await?;
        Ok(replies)
    }

    pub(super) fn into_parts(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

/// Encodes `AUTH`. `None` without a password.
pub(super) fn authentication(config: &Config) -> Option<BytesMut> {
    let password = config.password.as_ref()?;
    Some(match &config.username {
        Some(user) => resp::command(&["AUTH", user, password]),
        None => resp::command(&["AUTH", password]),
    })
}

async fn connect(config: &Config, peer: Option<SocketAddr>) -> Result<BoxSocket, Fault> {
    let failed = |error: io::Error| fault::from_io(&error);
    let server = match &config.server {
        ServerConfig::Centralized { server } => server,
        ServerConfig::Unix { path } => return Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?)),
        _ => return Err(fault::disconnected("more than one server configured".into())),
    };
    let stream = match peer {
        Some(peer) => TcpStream::connect(peer).await,
        None => TcpStream::connect((&*server.host, server.port)).await,
    };
    let stream = stream.map_err(failed)?;
    tune(&stream).map_err(failed)?;
    encrypted(config, server, stream).await
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // A closed connection is reset: the kernel must not deliver buffered data when a partition ends.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
}

#[cfg(feature = "tls")]
async fn encrypted(config: &Config, server: &Server, stream: TcpStream) -> Result<BoxSocket, Fault> {
    Ok(match &config.tls {
        Some(tls) => {
            let name = server.tls_server_name.as_ref().unwrap_or(&server.host);
            Box::new(super::tls::handshake(&tls.connector, name, stream).await?)
        }
        None => Box::new(stream),
    })
}

#[cfg(not(feature = "tls"))]
async fn encrypted(config: &Config, _: &Server, stream: TcpStream) -> Result<BoxSocket, Fault> {
    // Another crate may have enabled the client library's TLS. A password must not be sent in plain text.
    match config.uses_tls() {
        true => Err(fault::disconnected(super::node_url::NEEDS_TLS.into())),
        false => Ok(Box::new(stream)),
    }
}
