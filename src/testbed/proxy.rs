//! A TCP proxy in front of one node: the network, made to misbehave.

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

/// A TCP proxy in front of a node. Its address stays the same whatever happens to the node or to the proxy.
///
/// Each call has taken effect when it returns, and blocks the calling thread only for the moment that takes. The proxy
/// runs on the testbed's own thread: a paused tokio clock or a blocked runtime does not influence it.
///
/// A connection is accepted before the server behind is asked, so to a client a node that is down looks like one
/// that resets new connections at once. Use [`cut`](Proxy::cut) for a refusal.
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

    /// Where the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Adds a one-way latency in each direction; zero, the default, adds none. A round trip gets longer by twice this.
    ///
    /// It is latency, not a limit: data keeps flowing while earlier data is under way (up to some megabytes per
    /// connection and direction). The precision is that of tokio's timer: each way takes longer by up to about 2 ms,
    /// unless there is no delay; then the proxy adds only what it takes to pass bytes on, some tenths of a millisecond. Connecting is
    /// not delayed. Data already under way keeps the delay it got.
    pub fn delay(&self, one_way: Duration) {
        self.order(Order::Delay(one_way));
    }

    /// Resets all connections and refuses new ones until [`heal`](Proxy::heal). Data under way is lost.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Lets no byte pass in either direction until [`heal`](Proxy::heal): connections stay open, new ones are
    /// accepted, and nothing is ever answered.
    ///
    /// Bytes are held back, **not lost**: healing delivers them in order, as after a partition that TCP
    /// survived. So a request sent into the hole may still be executed long after its sender gave up. Add
    /// [`drop_connections`](Proxy::drop_connections) before healing to lose them instead. The end of a connection is
    /// held back in the same way.
    pub fn blackhole(&self) {
        self.order(Order::Hold);
    }

    /// As [`blackhole`](Proxy::blackhole), but only towards the server: answers still pass. Undone by
    /// [`heal`](Proxy::heal).
    pub fn blackhole_to_server(&self) {
        self.order(Order::HoldToServer);
    }

    /// As [`blackhole`](Proxy::blackhole), but only from the server: requests are executed, their answers held back.
    /// Undone by [`heal`](Proxy::heal).
    pub fn blackhole_from_server(&self) {
        self.order(Order::HoldFromServer);
    }

    /// Resets all current connections, losing the data under way. New ones are treated as before.
    pub fn drop_connections(&self) {
        self.order(Order::DropConnections);
    }

    /// Lets no byte pass any more over the connections that are open now, as if a router in between had forgotten them: neither
    /// end is told. New connections are treated as before. Nothing undoes it but
    /// [`drop_connections`](Proxy::drop_connections).
    pub fn strand(&self) {
        self.order(Order::Strand);
    }

    /// Leads new connections to another server, as when an address is given to a new server. Open connections stay with the
    /// server that they have. The node's own [`direct_addr`](super::TestNode::direct_addr) undoes it; nothing else does.
    pub fn lead_to(&self, server: SocketAddr) {
        self.order(Order::LeadTo(server));
    }

    /// Undoes [`cut`](Proxy::cut) and the black holes. The [`delay`](Proxy::delay) stays.
    pub fn heal(&self) {
        self.order(Order::Heal);
    }

    /// How many client connections are open now, those held in a black hole included.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn order(&self, order: Order) {
        let (done, wait) = sync_mpsc::channel();
        // Both fail only when the testbed has ended, and then there is nothing left to order.
        if self.orders.send((order, done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

/// Accepts connections and carries out orders.
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

    /// Resets all connections, those included that the kernel has accepted and we have not seen yet.
    async fn drop_connections(&mut self) {
        self.connect_waiting().await;
        self.connections.shutdown().await;
        self.stranded.clear();
    }

    /// Connects the clients that the kernel has accepted and we have not seen yet.
    async fn connect_waiting(&mut self) {
        tokio::task::yield_now().await; // lets the runtime hear of them
        while let Some(Ok(client)) = accept(self.listener.as_ref()).now_or_never() {
            self.connect(client);
        }
    }

    /// Listens, unless it does. A failure is tried again by `work`.
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

/// Refuses connections from now on. Closing alone would do so only when the last copy of the socket is closed, and a
/// child process that is just being started has one for a moment.
fn stop_listening(listener: TcpListener) -> io::Result<()> {
    let socket = std::net::TcpStream::from(OwnedFd::from(listener.into_std()?));
    match socket.shutdown(Shutdown::Both) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()), // macOS: nothing but closing helps
        done => done,
    }
}
