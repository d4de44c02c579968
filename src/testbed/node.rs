//! One node: its port, folder and proxy stay when its server is restarted.

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

/// One Redis master of a [`Testbed`](super::Testbed). It keeps its address, folder and proxy when its server is restarted.
pub struct TestNode {
    slot: Arc<Slot>,
    background: Handle,
    proxy: Option<Proxy>,
}

impl TestNode {
    /// Starts a node on a free port. Call this on the background thread.
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

    /// Returns the URL for clients, with the password: that of the proxy if there is one, otherwise of the server.
    pub fn url(&self) -> String {
        self.slot.url(self.addr())
    }

    /// Returns the URL of the server itself, past the proxy.
    pub fn direct_url(&self) -> String {
        self.slot.url(self.direct_addr())
    }

    /// Returns the URL of the server's Unix socket (`redis+unix:///path`), past the proxy. `None` without
    /// [Unix sockets](super::TestbedBuilder::unix_sockets).
    pub fn unix_url(&self) -> Option<String> {
        self.slot.unix_url()
    }

    /// Returns the URL of the server's TLS port (`rediss://…`), past the proxy. `None` without [TLS](super::TestbedBuilder::tls).
    pub fn tls_url(&self) -> Option<String> {
        self.slot.tls_url()
    }

    /// Returns the address in [`url`](TestNode::url).
    pub fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.direct_addr(), Proxy::addr)
    }

    /// Returns the address of the server itself.
    pub fn direct_addr(&self) -> SocketAddr {
        self.slot.spec.addr
    }

    /// Returns the node's folder, with `data/` and `server.log`. It is removed with the testbed.
    pub fn folder(&self) -> &Path {
        &self.slot.spec.folder
    }

    /// Returns the server's pid. `None` while no server runs.
    pub fn pid(&self) -> Option<u32> {
        self.slot.pid()
    }

    /// Returns the proxy in front of the node. `None` without [proxies](super::TestbedBuilder::proxies).
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// Kills the server (SIGKILL), also a stopped one. Returns when it is gone, and at once if there is none.
    ///
    /// # Errors
    /// [`TestbedError::System`] if the process could not be ended.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the server is killed all the same.
    pub async fn kill(&self) -> Result<(), TestbedError> {
        let slot = self.slot.clone();
        self.background.run(async move { slot.kill().await }).await
    }

    /// Stops the server (SIGSTOP) before this returns. It keeps its connections and answers nothing. Requests wait in the kernel.
    ///
    /// # Errors
    /// [`TestbedError::NotRunning`] if there is no server.
    pub fn stop(&self) -> Result<(), TestbedError> {
        self.slot.signal("STOP")
    }

    /// Resumes a stopped server (SIGCONT). It then executes the requests that it was sent meanwhile.
    ///
    /// # Errors
    /// [`TestbedError::NotRunning`] if there is no server.
    pub fn resume(&self) -> Result<(), TestbedError> {
        self.slot.signal("CONT")
    }

    /// Kills the server if it runs, and starts it again on the same port. Returns when it answers PING.
    ///
    /// # Errors
    /// [`TestbedError::Exited`] or [`TestbedError::NotReady`] if the server does not start; the node is then down.
    /// [`TestbedError::Folder`] if the data could not be wiped.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the server is restarted all the same.
    pub async fn restart(&self, data: Data) -> Result<(), TestbedError> {
        let slot = self.slot.clone();
        self.background.run(async move { slot.restart(data).await }).await
    }

    /// Sends a command to the server itself, over a new connection. A server's error is a [`Value::Error`], not an `Err`.
    ///
    /// # Errors
    /// [`TestbedError::Timeout`] without an answer within 2 s; [`TestbedError::Connection`] if the server is down.
    ///
    /// # Cancel safety
    /// If the future is dropped, the command may still be executed.
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

    /// Takes the server, for the end of the testbed. No server starts after this.
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
