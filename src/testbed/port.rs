//! Free ports, and keeping them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::net::{TcpListener, TcpSocket};

/// A loopback port the kernel picked for us.
///
/// On Linux a bound socket that never listens keeps it: the kernel hands the port to nobody else, while whoever binds it
/// on purpose with SO_REUSEADDR (every Redis does) still can. So a node that is down does not lose its port. Elsewhere
/// such a socket would be in the way; there the port is only probably free, and whoever uses it has to try again.
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

    /// Listens on the port. To be called on a runtime.
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
