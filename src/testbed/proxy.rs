//! A TCP proxy in front of one node, which simulates network failures.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc as sync_mpsc,
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};

use super::{
    background::Handle,
    error::TestbedError,
    forward::{self, Client, Path},
    port::Port,
};

/// A TCP proxy in front of a node. Its address never changes.
///
/// Each call takes effect before it returns, and blocks the thread for that moment only. The proxy runs on the testbed's own
/// thread, so a paused tokio clock or a blocked runtime does not affect it.
///
/// The proxy accepts a connection before it connects to the server. So if a node is down, clients see new connections reset at
/// once. To refuse connections, use [`cut`](Proxy::cut).
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    orders: mpsc::UnboundedSender<(Order, sync_mpsc::Sender<()>)>,
    open: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Order {
    Delay(Duration),
    HoldToServer,
    HoldFromServer,
    Hold,
    DropConnections,
    Strand,
    LeadTo(SocketAddr),
    Cut,
    Heal,
}

impl Proxy {
    pub(crate) fn start(background: &Handle, server: SocketAddr) -> Result<Proxy, TestbedError> {
        let _runtime = background.enter();
        let port = Port::pick().map_err(TestbedError::system("find a port for a proxy"))?;
        let listener = port
            .listen()
            .map_err(TestbedError::system("listen for a proxy"))?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let addr = port.addr();
        let acceptor = Acceptor {
            port,
            listener: Some(listener),
            cut: false,
            server,
            path: watch::Sender::new(Path::default()),
            stranded: Vec::new(),
            connections: JoinSet::new(),
            open: open.clone(),
        };
        background.spawn(acceptor.work(inbox));
        Ok(Proxy { addr, orders, open })
    }

    /// Returns the address where the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the latency of each direction; a round trip takes twice as much longer. Default: zero.
    ///
    /// This does not limit the bandwidth, up to some megabytes in flight per connection and direction. tokio's timer adds up to
    /// about 2 ms each way. Without a delay, the proxy adds some tenths of a millisecond. Connecting is not delayed. Data in
    /// flight keeps the delay that it got.
    pub fn delay(&self, one_way: Duration) {
        self.order(Order::Delay(one_way));
    }

    /// Resets all connections and refuses new ones until [`heal`](Proxy::heal). Data in flight is lost.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Holds back all bytes in both directions until [`heal`](Proxy::heal). Connections stay open, new ones are accepted, and
    /// nothing is answered.
    ///
    /// The bytes are **not lost**: `heal` delivers them in order, as after a partition that TCP survived. So a request may be
    /// executed long after its sender timed out. To lose the bytes, call [`drop_connections`](Proxy::drop_connections) before
    /// `heal`. The end of a connection is held back in the same way.
    pub fn blackhole(&self) {
        self.order(Order::Hold);
    }

    /// As [`blackhole`](Proxy::blackhole), but only towards the server: answers still pass.
    pub fn blackhole_to_server(&self) {
        self.order(Order::HoldToServer);
    }

    /// As [`blackhole`](Proxy::blackhole), but only from the server: requests are executed, and their answers are held back.
    pub fn blackhole_from_server(&self) {
        self.order(Order::HoldFromServer);
    }

    /// Resets all open connections; data in flight is lost. New connections are treated as before.
    pub fn drop_connections(&self) {
        self.order(Order::DropConnections);
    }

    /// Holds back all bytes of the open connections, as if a router had forgotten them; neither end notices. New connections are
    /// treated as before. Only [`drop_connections`](Proxy::drop_connections) ends this.
    pub fn strand(&self) {
        self.order(Order::Strand);
    }

    /// Leads new connections to another server, as if it had taken over the address. Open connections keep their server. To undo
    /// this, pass the node's own [`direct_addr`](super::TestNode::direct_addr).
    pub fn lead_to(&self, server: SocketAddr) {
        self.order(Order::LeadTo(server));
    }

    /// Undoes [`cut`](Proxy::cut) and the black holes. The [`delay`](Proxy::delay) stays.
    pub fn heal(&self) {
        self.order(Order::Heal);
    }

    /// Returns how many client connections are open, those in a black hole included.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn order(&self, order: Order) {
        let (done, wait) = sync_mpsc::channel();
        // Both fail only after the testbed's end, when there is no proxy any more.
        if self.orders.send((order, done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

struct Acceptor {
    port: Port,
    listener: Option<TcpListener>,
    cut: bool,
    server: SocketAddr,
    path: watch::Sender<Path>,
    /// The paths of stranded connections.
    stranded: Vec<watch::Sender<Path>>,
    connections: JoinSet<()>,
    open: Arc<AtomicUsize>,
}

impl Acceptor {
    async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<(Order, sync_mpsc::Sender<()>)>) {
        loop {
            tokio::select! {
                biased;
                order = inbox.recv() => {
                    let Some((order, done)) = order else { return };
                    self.carry_out(order).await;
                    let _ = done.send(());
                }
                Some(_) = self.connections.join_next() => {}
                client = accept(self.listener.as_ref()), if !self.cut => match client {
                    Ok(client) => self.connect(client),
                    Err(error) => {
                        tracing::debug!(%error, "a testbed proxy cannot accept connections");
                        sleep(Duration::from_millis(10)).await;
                        self.listen();
                    }
                },
            }
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Delay(delay) => self.path.send_modify(|path| path.delay = delay),
            Order::HoldToServer => self.path.send_modify(|path| path.to_server = false),
            Order::HoldFromServer => self.path.send_modify(|path| path.from_server = false),
            Order::Hold => self
                .path
                .send_modify(|path| (path.to_server, path.from_server) = (false, false)),
            Order::DropConnections => self.drop_connections().await,
            Order::Strand => {
                self.connect_waiting().await;
                let path = *self.path.borrow();
                let stranded = std::mem::replace(&mut self.path, watch::Sender::new(path));
                stranded.send_modify(|path| (path.to_server, path.from_server) = (false, false));
                self.stranded.push(stranded);
            }
            Order::LeadTo(server) => {
                self.connect_waiting().await;
                self.server = server;
            }
            Order::Cut => {
                self.drop_connections().await;
                self.cut = true;
                if let Some(listener) = self.listener.take()
                    && let Err(error) = stop_listening(listener)
                {
                    tracing::debug!(%error, "a testbed proxy cannot stop listening");
                }
            }
            Order::Heal => {
                self.path
                    .send_modify(|path| (path.to_server, path.from_server) = (true, true));
                self.cut = false;
                self.listen();
            }
        }
    }

    /// Resets all connections, also those that only the kernel has accepted yet.
    async fn drop_connections(&mut self) {
        self.connect_waiting().await;
        self.connections.shutdown().await;
        self.stranded.clear();
    }

    /// Connects the clients that only the kernel has accepted yet.
    async fn connect_waiting(&mut self) {
        tokio::task::yield_now().await; // lets the runtime see them
        while let Some(Ok(client)) = accept(self.listener.as_ref()).now_or_never() {
            self.connect(client);
        }
    }

    /// Listens, unless it does already. `work` retries after a failure.
    fn listen(&mut self) {
        if self.listener.is_none() {
            match self.port.listen() {
                Ok(listener) => self.listener = Some(listener),
                Err(error) => tracing::debug!(%error, "a testbed proxy cannot listen"),
            }
        }
    }

    fn connect(&mut self, client: TcpStream) {
        let client = Client::new(client, self.open.clone());
        self.connections
            .spawn(forward::carry(client, self.server, self.path.subscribe()));
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    let listener = listener.ok_or(io::ErrorKind::NotConnected)?;
    listener.accept().await.map(|(client, _)| client)
}

/// Refuses connections from now on. Closing is not enough: a child process that is being started has a copy of the socket.
fn stop_listening(listener: TcpListener) -> io::Result<()> {
    let socket = std::net::TcpStream::from(OwnedFd::from(listener.into_std()?));
    match socket.shutdown(Shutdown::Both) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()), // macOS: only closing helps
        done => done,
    }
}
