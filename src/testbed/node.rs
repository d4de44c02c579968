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
    background::Handle,
    error::TestbedError,
    proxy::Proxy,
    resp::{self, Value},
    server::{Server, connect},
    slot::{Data, Plan, Slot},
};

/// How long a command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(2);

/// One Redis master of a [`Testbed`](super::Testbed). It keeps its address, folder and proxy when its server is killed
/// and restarted.
pub struct TestNode {
    slot: Arc<Slot>,
    background: Handle,
    proxy: Option<Proxy>,
}

impl TestNode {
    /// Starts a node on a free port. To be called on the background thread.
    pub(crate) async fn start(
        node: usize,
        plan: Plan,
        folder: PathBuf,
        background: Handle,
    ) -> Result<TestNode, TestbedError> {
        let slot = Slot::open(node, &plan, folder).await?;
        let proxy = if plan.proxies {
            Some(Proxy::start(&background, slot.spec.addr)?)
        } else {
            None
        };
        Ok(TestNode {
            slot: Arc::new(slot),
            background,
            proxy,
        })
    }

    /// What a client should use, with the password if there is one: the proxy where there is one, else the server.
    pub fn url(&self) -> String {
        self.slot.url(self.addr())
    }

    /// The server itself, past the proxy.
    pub fn direct_url(&self) -> String {
        self.slot.url(self.direct_addr())
    }

    /// The server's Unix socket as `redis+unix:///path`, past the proxy; `None` unless the testbed was built
    /// [with Unix sockets](super::TestbedBuilder::unix_sockets).
    pub fn unix_url(&self) -> Option<String> {
        self.slot.unix_url()
    }

    /// The server's TLS port as `rediss://…`, past the proxy; `None` unless the testbed was built
    /// [with TLS](super::TestbedBuilder::tls).
    pub fn tls_url(&self) -> Option<String> {
        self.slot.tls_url()
    }

    /// The address behind [`url`](TestNode::url).
    pub fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.direct_addr(), Proxy::addr)
    }

    /// The address of the server itself.
    pub fn direct_addr(&self) -> SocketAddr {
        self.slot.spec.addr
    }

    /// The node's own folder: `data/` and `server.log`. It goes away with the testbed.
    pub fn folder(&self) -> &Path {
        &self.slot.spec.folder
    }

    /// The pid of the server; `None` while there is none.
    pub fn pid(&self) -> Option<u32> {
        self.slot.pid()
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
        let slot = self.slot.clone();
        self.background.run(async move { slot.kill().await }).await
    }

    /// Stops the server (SIGSTOP): it keeps its connections and answers nothing, and what it is sent waits in the
    /// kernel. In force when the call returns.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NotRunning`] when there is no server.
    pub fn stop(&self) -> Result<(), TestbedError> {
        self.slot.signal("STOP")
    }

    /// Lets a stopped server go on (SIGCONT). It then executes what it was sent meanwhile.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NotRunning`] when there is no server.
    pub fn resume(&self) -> Result<(), TestbedError> {
        self.slot.signal("CONT")
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
        let slot = self.slot.clone();
        self.background.run(async move { slot.restart(data).await }).await
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
        let spec = self.slot.spec.clone();
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
        self.background.run(calling).await
    }

    /// Takes the server, for the end of the testbed. None comes after it.
    pub(crate) fn close(&self) -> Option<Server> {
        self.slot.close()
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
