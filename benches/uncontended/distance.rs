//! Simulates distant servers: a delay each way.
//!
//! The testbed's proxies use tokio's timers, which count in milliseconds. These threads are late by some hundredths of one.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Addresses at which servers are reached over a distance. They exist as long as this process.
pub(crate) struct Distances {
    pub(crate) addresses: Vec<SocketAddr>,
    one_ways: Vec<OneWay>,
}

/// A delay in microseconds.
type OneWay = Arc<AtomicU64>;

impl Distances {
    /// Returns addresses without a delay.
    pub(crate) fn to(servers: &[SocketAddr]) -> io::Result<Distances> {
        let one_ways: Vec<OneWay> = servers.iter().map(|_| OneWay::default()).collect();
        let doors = servers.iter().zip(&one_ways);
        let addresses = doors.map(|(server, one_way)| door(*server, one_way.clone()));
        Ok(Distances {
            addresses: addresses.collect::<io::Result<_>>()?,
            one_ways,
        })
    }

    /// Sets the one-way delays.
    pub(crate) fn set(&self, one_ways: &[Duration]) {
        for (of, one_way) in self.one_ways.iter().zip(one_ways) {
            of.store(one_way.as_micros() as u64, Relaxed);
        }
    }
}

fn door(server: SocketAddr, one_way: OneWay) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // If the server is gone, the client sees its connection end.
            let _ = client.and_then(|client| carry(&client, server, &one_way));
        }
    });
    Ok(address)
}

/// Passes bytes on, both ways.
fn carry(client: &TcpStream, server: SocketAddr, one_way: &OneWay) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(client, &server), (&server, client)] {
        to.set_nodelay(true)?;
        let (from, to, one_way) = (from.try_clone()?, to.try_clone()?, one_way.clone());
        let (leaves, arrives) = mpsc::channel();
        thread::spawn(move || send(from, &one_way, &leaves));
        thread::spawn(move || deliver(to, &arrives));
    }
    Ok(())
}

/// Takes bytes in, with the time at which they are due. Ends with the connection.
fn send(mut from: TcpStream, one_way: &OneWay, leaves: &mpsc::Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 64 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + Duration::from_micros(one_way.load(Relaxed));
        if leaves.send((due, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn deliver(mut to: TcpStream, arrives: &mpsc::Receiver<(Instant, Vec<u8>)>) {
    be_punctual();
    for (due, bytes) in arrives {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // The other end must see that the connection has ended.
    let _ = to.shutdown(Shutdown::Both);
}

/// By default, Linux lets threads sleep up to 50 us too long.
fn be_punctual() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}
