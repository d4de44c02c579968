//! Servers that are far away: what goes there and what comes back takes its time.
//!
//! On threads that sleep. The testbed's proxies go by tokio's timers, which count in milliseconds; this is late by some
//! hundredths of one.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Where servers are reached, each over a distance, for as long as this process lives.
pub(crate) struct Distances {
    pub(crate) addresses: Vec<SocketAddr>,
    one_ways: Vec<OneWay>,
}

/// In microseconds.
type OneWay = Arc<AtomicU64>;

impl Distances {
    /// At first, they are near.
    pub(crate) fn to(servers: &[SocketAddr]) -> io::Result<Distances> {
        let one_ways: Vec<OneWay> = servers.iter().map(|_| OneWay::default()).collect();
        let doors = servers.iter().zip(&one_ways);
        let addresses = doors.map(|(server, one_way)| door(*server, one_way.clone()));
        Ok(Distances {
            addresses: addresses.collect::<io::Result<_>>()?,
            one_ways,
        })
    }

    /// A round trip takes twice as long.
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
            // Where the server is gone, the client sees a connection that ends.
            let _ = client.and_then(|client| carry(&client, server, &one_way));
        }
    });
    Ok(address)
}

/// Both ways.
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

/// The end of a connection is the end of what is sent.
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
    // Whoever it was has gone, which the other end will see.
    let _ = to.shutdown(Shutdown::Both);
}

/// By default, Linux has a thread sleep for up to 50 us longer than it wants to.
fn be_punctual() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}
