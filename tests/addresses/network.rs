//! Names, and the servers that they lead to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use quorlock::testbed::TestNode;
use quorlock::{Redlock, RedlockBuilder};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::MOMENT;

static NAMES: Mutex<BTreeMap<&str, Vec<IpAddr>>> = Mutex::new(BTreeMap::new());

/// Makes the name lead to these addresses.
pub(crate) fn lead(name: &'static str, to: &[SocketAddr]) {
    let mut names = NAMES.lock().unwrap();
    names.insert(name, to.iter().map(SocketAddr::ip).collect());
    let mut hosts = String::new();
    for (name, addresses) in &*names {
        for address in addresses {
            writeln!(hosts, "{address} {name}").unwrap();
        }
    }
    // In one write: a resolver may be reading.
    let mut file = OpenOptions::new().write(true).open("/etc/hosts").unwrap();
    file.write_all(format!("{hosts:\n<4096}").as_bytes()).unwrap();
}

/// Binds one port on all of these addresses.
pub(crate) async fn one_port<const N: usize>(addresses: [&str; N]) -> [TcpSocket; N] {
    let bind = |address: &str, port: u16| {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::new(address.parse().unwrap(), port))
            .map(|()| socket)
    };
    loop {
        let first = bind(addresses[0], 0).unwrap();
        let port = first.local_addr().unwrap().port();
        let others = addresses[1..].iter().map(|address| bind(address, port));
        if let Ok(others) = others.collect::<Result<Vec<_>, _>>() {
            let sockets: Vec<TcpSocket> = [first].into_iter().chain(others).collect();
            return sockets.try_into().unwrap_or_else(|_| unreachable!());
        }
    }
}

/// Forwards connections to a node until the set is dropped.
pub(crate) fn open(door: TcpSocket, node: &TestNode) -> (SocketAddr, JoinSet<()>) {
    let (address, server) = (door.local_addr().unwrap(), node.direct_addr());
    let listener: TcpListener = door.listen(64).unwrap();
    let mut doors = JoinSet::new();
    doors.spawn(async move {
        let mut guests = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            guests.spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                // Ends with either side.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, doors)
}

/// Makes an address lose all first packets, as behind a firewall that drops them.
pub(crate) async fn swallow(door: TcpSocket) -> (SocketAddr, impl Sized) {
    let address = door.local_addr().unwrap();
    let listener = door.listen(0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(MOMENT, TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (address, (listener, waiting))
}

/// Returns settings for nodes that were just started. Names are resolved several times a second.
pub(crate) fn builder(url: String) -> RedlockBuilder {
    let window = Duration::from_millis(600);
    Redlock::builder()
        .url(url)
        .restart_guard(false)
        .guard_window(window)
}
