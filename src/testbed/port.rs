//! Free ports, which a node keeps.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::net::{TcpListener, TcpSocket};

/// A loopback port that the kernel has picked.
///
/// On Linux, a bound socket that never listens keeps the port. The kernel then picks it for no other process, but a server can
/// bind it with SO_REUSEADDR, as every Redis does. So a node that is down keeps its port. On other systems, such a socket would
/// be in the way: the port is only probably free, and a start has to be retried.
#[derive(Debug)]
pub(crate) struct Port {
    addr: SocketAddr,
    _keep: Option<TcpSocket>,
}

impl Port {
    pub(crate) fn pick() -> io::Result<Port> {
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let addr = socket.local_addr()?;
        Ok(Port {
            addr,
            _keep: cfg!(target_os = "linux").then_some(socket),
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Listens on the port. Call this on a runtime.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        bind(self.addr)?.listen(1024)
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}
