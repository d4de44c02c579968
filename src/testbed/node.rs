//! One node: a place (port, folder, proxy) where servers come and go.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::timeout;

use super::{
    Proxy, TestbedError, Value,
    engine::Handle,
    resp,
    seat::{Plan, Seat},
    server::{Server, connect},
};

/// How long a command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(2);

/// What a restarted server finds of the data it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Everything: each write was on disk before it was acknowledged.
    Keep,
    /// Nothing, as after the loss of the disk.
    Wipe,
}

/// One Redis master of a [`Testbed`](super::Testbed). It keeps its address, folder and proxy when its server is killed
/// and restarted.
pub struct TestNode {
    seat: Arc<Seat>,
    engine: Handle,
    proxy: Option<Proxy>,
}

impl TestNode {
    /// Starts a node on a free port. To be called on the engine.
    pub(crate) async fn start(
        node: usize,
        plan: Plan,
        folder: PathBuf,
        engine: Handle,
    ) -> Result<TestNode, TestbedError> {
        let seat = Seat::open(node, &plan, folder).await?;
        let proxy = if plan.proxies {
            Some(Proxy::start(&engine, seat.spec.addr)?)
        } else {
            None
        };
        Ok(TestNode {
            seat: Arc::new(seat),
            engine,
            proxy,
        })
    }

    /// What a client should use, with the password if there is one: the proxy where there is one, else the server.
    pub fn url(&self) -> String {
        self.seat.url(self.addr())
    }

    /// The server itself, past the proxy.
    pub fn direct_url(&self) -> String {
        self.seat.url(self.direct_addr())
    }

    /// The server's Unix socket as `redis+unix:///path`, past the proxy; `None` unless the testbed was built
    /// [with Unix sockets](super::TestbedBuilder::unix_sockets).
    pub fn unix_url(&self) -> Option<String> {
        self.seat.unix_url()
    }

    /// The server's TLS port as `rediss://…`, past the proxy; `None` unless the testbed was built
    /// [with TLS](super::TestbedBuilder::tls).
    pub fn tls_url(&self) -> Option<String> {
        self.seat.tls_url()
    }

    /// The address behind [`url`](TestNode::url).
    pub fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.direct_addr(), Proxy::addr)
    }

    /// The address of the server itself.
    pub fn direct_addr(&self) -> SocketAddr {
        self.seat.spec.addr
    }

    /// The node's own folder: `data/` and `server.log`. It goes away with the testbed.
    pub fn folder(&self) -> &Path {
        &self.seat.spec.folder
    }

    /// The pid of the server; `None` while there is none.
    pub fn pid(&self) -> Option<u32> {
        self.seat.pid()
    }

    /// The proxy in front of the node, if the testbed was built [with proxies](super::TestbedBuilder::proxies).
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// Kills the server (SIGKILL) and returns when it is gone. Fine when there is none, or when it is stopped.
    ///
    /// # Errors
    ///
    /// [`TestbedError::System`] when the process could not be ended.
    ///
    /// # Cancel safety
    ///
    /// The kill is carried out also when the future is dropped after its first poll.
    pub async fn kill(&self) -> Result<(), TestbedError> {
        let seat = self.seat.clone();
        self.engine.run(async move { seat.kill().await }).await
    }

    /// Stops the server (SIGSTOP): it keeps its connections and answers nothing, and what it is sent waits in the
    /// kernel. In force when the call returns.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NotRunning`] when there is no server.
    pub fn stop(&self) -> Result<(), TestbedError> {
        self.seat.signal("STOP")
    }

    /// Lets a stopped server go on (SIGCONT). It then executes what it was sent meanwhile.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NotRunning`] when there is no server.
    pub fn resume(&self) -> Result<(), TestbedError> {
        self.seat.signal("CONT")
    }

    /// Starts the server again on the same port, killing it first if it runs. Returns when it answers PING.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Exited`] or [`TestbedError::NotReady`] when the server does not come up; the node is down then.
    /// [`TestbedError::Folder`] when the data could not be wiped.
    ///
    /// # Cancel safety
    ///
    /// The restart is carried out also when the future is dropped after its first poll.
    pub async fn restart(&self, data: Data) -> Result<(), TestbedError> {
        let seat = self.seat.clone();
        self.engine.run(async move { seat.restart(data).await }).await
    }

    /// Sends one command over a fresh connection to the server itself, and returns its answer. An error the server
    /// answers with is a [`Value::Error`], not an `Err`.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Timeout`] without an answer within 2 s; [`TestbedError::Connection`] when the server is down.
    ///
    /// # Cancel safety
    ///
    /// The command may be executed also when the future is dropped.
    pub async fn command(&self, args: &[&str]) -> Result<Value, TestbedError> {
        let spec = self.seat.spec.clone();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let calling = async move {
            let broken = |source| TestbedError::Connection {
                node: spec.node,
                addr: spec.addr,
                source,
            };
            let asking = async {
                resp::call(&mut connect(&spec).await?, &args)
                    .await
                    .map_err(broken)
            };
            let late = TestbedError::Timeout {
                node: spec.node,
                addr: spec.addr,
                waited: COMMAND_WITHIN,
            };
            timeout(COMMAND_WITHIN, asking).await.unwrap_or(Err(late))
        };
        self.engine.run(calling).await
    }

    /// Takes the server, for the end of the testbed. None comes after it.
    pub(crate) fn close(&self) -> Option<Server> {
        self.seat.close()
    }
}

impl fmt::Debug for TestNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestNode")
            .field("addr", &self.addr())
            .field("direct_addr", &self.direct_addr())
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}
