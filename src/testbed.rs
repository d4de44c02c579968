//! Real Redis masters on loopback, for tests and demonstrations (feature `testbed`).
//!
//! A [`Testbed`] runs independent `redis-server` or `valkey-server` processes on free ports, with their data in a temporary
//! folder. Their settings are those for locks: every write is on disk before it is acknowledged, and nothing is evicted. Nodes
//! can be [killed](TestNode::kill), [stopped](TestNode::stop) and [restarted](TestNode::restart), with or without their data. A
//! [`Proxy`] simulates network failures in front of a node.
//!
//! Dropping the testbed ends the servers and removes the folder, also in a panic and outside a runtime. The same happens if this
//! process dies in any way, `kill -9` included.
//!
//! ```
//! use quorlock::testbed::{Data, Testbed};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let testbed = Testbed::start(3).await?;
//! println!("{}", testbed.urls().join(" ")); // hand these to the service under test
//!
//! let node = &testbed.nodes()[0];
//! node.command(&["SET", "greeting", "hello"]).await?;
//! node.restart(Data::Keep).await?;
//! assert_eq!(node.command(&["GET", "greeting"]).await?.as_str(), Some("hello"));
//!
//! testbed.shutdown().await;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! It needs Unix (`/bin/sh`) and a server binary: the one that the variable `QUORLOCK_REDIS_SERVER` names, otherwise
//! `valkey-server` or `redis-server` on the `PATH`.

mod background;
mod binary;
mod error;
mod forward;
mod guard;
mod node;
mod port;
mod proxy;
mod resp;
mod server;
mod slot;

use std::{
    env, fmt,
    path::{Path, PathBuf},
    thread,
};

use futures_util::future::try_join_all;
use tempfile::TempDir;
use tokio::sync::oneshot;

use self::{
    background::Background,
    guard::Guard,
    slot::{Plan, TlsFiles},
};
pub use self::{error::TestbedError, node::TestNode, proxy::Proxy, resp::Value, slot::Data};

/// Running Redis masters. Dropping this ends them and removes their data.
///
/// The drop needs no runtime. It blocks for milliseconds; a process that does not end is killed after about two seconds.
/// [`shutdown`](Testbed::shutdown) does the same without blocking.
pub struct Testbed {
    nodes: Vec<TestNode>,
    background: Option<Background>,
    folder_guard: Option<Guard>,
    folder: Option<TempDir>,
    path: PathBuf,
}

impl Testbed {
    /// Starts this many nodes, without proxies. Returns when all of them answer.
    ///
    /// # Errors
    /// As [`TestbedBuilder::start`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the nodes that were started.
    pub async fn start(nodes: usize) -> Result<Testbed, TestbedError> {
        Testbed::builder().nodes(nodes).start().await
    }

    /// Returns a builder, for other settings than the default ones.
    pub fn builder() -> TestbedBuilder {
        TestbedBuilder::default()
    }

    /// Returns the nodes' URLs for clients, in order: those of the proxies if there are any, otherwise of the servers.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(TestNode::url).collect()
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[TestNode] {
        &self.nodes
    }

    /// Returns the node with this index, counted from 0. `None` if there is none.
    pub fn node(&self, index: usize) -> Option<&TestNode> {
        self.nodes.get(index)
    }

    /// Returns the folder with everything that the servers write. It is removed with the testbed.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Ends the testbed as a drop does, without blocking the runtime.
    ///
    /// # Cancel safety
    /// If the future is dropped, also before its first poll, the end goes on in the background.
    pub fn shutdown(self) -> impl Future<Output = ()> + Send {
        let (done, ended) = oneshot::channel::<()>();
        let end = move || {
            drop(self);
            drop(done);
        };
        // If no thread can be started, the closure and so the testbed is dropped right here.
        if let Err(error) = thread::Builder::new()
            .name("quorlock-testbed-end".into())
            .spawn(end)
        {
            tracing::warn!(%error, "no thread could be started to end a testbed, so the caller was blocked");
        }
        async move {
            let _ = ended.await; // resolves when the sender is dropped
        }
    }

    fn end(&mut self) {
        let mut servers: Vec<_> = self.nodes.iter().filter_map(TestNode::close).collect();
        for server in &mut servers {
            server.guard().release(); // so that all end at once
        }
        for server in servers {
            if let Err(error) = server.end() {
                tracing::warn!(%error, "a testbed server could not be ended properly");
            }
        }
        self.background = None; // ends proxies, and servers that are being started
        self.folder_guard = None; // removes the folder
        if let Some(folder) = self.folder.take()
            && folder.path().exists()
            && let Err(error) = folder.close()
        {
            tracing::warn!(%error, folder = %self.path.display(), "a testbed folder could not be removed");
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Testbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testbed")
            .field("folder", &self.path)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Testbed`].
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `start`"]
pub struct TestbedBuilder {
    nodes: usize,
    server: Option<PathBuf>,
    settings: Vec<(String, String)>,
    password: Option<String>,
    tls: Option<TlsFiles>,
    proxies: bool,
    unix_sockets: bool,
}

impl Default for TestbedBuilder {
    fn default() -> Self {
        TestbedBuilder {
            nodes: 5,
            server: None,
            settings: Vec::new(),
            password: None,
            tls: None,
            proxies: false,
            unix_sockets: false,
        }
    }
}

impl TestbedBuilder {
    /// Sets how many nodes to start. Default: 5.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the server binary: a path, or a name on the `PATH`. A script must `exec` the server. Default: the binary that
    /// `QUORLOCK_REDIS_SERVER` names, otherwise `valkey-server` or `redis-server`.
    pub fn server(mut self, server: impl Into<PathBuf>) -> Self {
        self.server = Some(server.into());
        self
    }

    /// Adds a server setting, as in `redis.conf`, with or without leading dashes: `.arg("maxmemory", "10mb")`. It overrides the
    /// testbed's own. Do not set `port`, `bind`, `dir` and `logfile`: the testbed needs its own to find its servers. For
    /// `requirepass`, use [`password`](TestbedBuilder::password).
    pub fn arg(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Self {
        let name = name.as_ref().trim_start_matches('-').to_owned();
        self.settings.push((name, value.into()));
        self
    }

    /// Sets the password of all servers, which is part of the URLs. Default: none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets whether each node has a [`Proxy`] in front. Default: no.
    pub fn proxies(mut self, proxies: bool) -> Self {
        self.proxies = proxies;
        self
    }

    /// Sets whether each server also listens on a Unix socket ([`TestNode::unix_url`]). Default: no.
    pub fn unix_sockets(mut self, unix_sockets: bool) -> Self {
        self.unix_sockets = unix_sockets;
        self
    }

    /// Lets each server also listen for TLS, on a port of its own ([`TestNode::tls_url`]). The PEM files are its certificate
    /// (valid for 127.0.0.1), the key, and the CA for client certificates. Clients need a certificate only with
    /// `.arg("tls-auth-clients", "yes")`. Default: no TLS.
    pub fn tls(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>, ca: impl AsRef<Path>) -> Self {
        // Servers run in their own folders. An empty path stays as it is: the server reports it.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.tls = Some(TlsFiles {
            cert: absolute(cert.as_ref()),
            key: absolute(key.as_ref()),
            ca: absolute(ca.as_ref()),
        });
        self
    }

    /// Starts the nodes. Returns when all of them answer.
    ///
    /// # Errors
    /// [`TestbedError::ServerMissing`] without a server binary. [`TestbedError::Exited`] or [`TestbedError::NotReady`], with the
    /// end of its log, if a server did not start (a wrong setting, for example). The others are then ended.
    ///
    /// # Cancel safety
    /// Dropping the future ends the nodes that were started.
    pub async fn start(self) -> Result<Testbed, TestbedError> {
        if self.nodes == 0 {
            return Err(TestbedError::NoNodes);
        }
        let server = binary::find(self.server)?;
        let temporary = env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix("quorlock-testbed-")
            .tempdir()
            .map_err(TestbedError::folder("create a folder in", temporary))?;
        let path = folder.path().to_owned();
        let folder_guard = Guard::folder(&path).map_err(TestbedError::system(
            "start /bin/sh to guard the testbed's folder",
        ))?;
        let background = Background::start()?;
        let handle = background.handle().clone();
        // From here on, dropping this cleans up after any error.
        let mut testbed = Testbed {
            nodes: Vec::new(),
            background: Some(background),
            folder_guard: Some(folder_guard),
            folder: Some(folder),
            path,
        };

        let plan = Plan {
            server,
            settings: self.settings,
            password: self.password,
            tls: self.tls,
            unix_sockets: self.unix_sockets,
            proxies: self.proxies,
        };
        let starts = (0..self.nodes).map(|node| {
            let folder = testbed.path.join(node.to_string());
            handle.run(TestNode::start(node, plan.clone(), folder, handle.clone()))
        });
        testbed.nodes = try_join_all(starts).await?;
        Ok(testbed)
    }
}
