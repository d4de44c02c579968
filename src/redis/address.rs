//! The addresses of a node's name: which of them to connect to, and when the name moves elsewhere (M3).
//!
//! The client library tries one address after the other, and waits for each of them. So it gets a single address, chosen here. An
//! IP address and a Unix socket are connected to as they are.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fred::types::config::{Config, ServerConfig};
use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;

use super::blocking::on_a_thread;
use crate::node::Fault;
use crate::sys::mutex::lock;

/// How long an attempt to connect may take before the next address is tried beside it (RFC 8305).
const STAGGER: Duration = Duration::from_millis(250);
/// Shortest period in which a name is resolved again.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);

type Resolver = dyn Fn(Arc<str>, u16) -> BoxFuture<'static, Found> + Send + Sync;
/// At least one address, or why there is none.
type Found = Result<Vec<SocketAddr>, Arc<str>>;

pub(super) struct Addresses {
    /// Host and port. `None` for an IP address or a Unix socket, which cannot move.
    name: Option<(Arc<str>, u16)>,
    period: Duration,
    resolver: Box<Resolver>,
    /// The latest look-up. While it is in flight, no other one begins: callers share it.
    look_up: Mutex<Option<Shared<BoxFuture<'static, Found>>>>,
    /// The address that was chosen last, until locks are taken there. The next choice tries the others first: a server that
    /// accepts connections may still not answer.
    unproven: Mutex<Option<SocketAddr>>,
    current: watch::Sender<Option<SocketAddr>>,
}

impl Addresses {
    /// Takes the name from the configuration. It is resolved again every `period`, less up to half of that at random.
    pub(super) fn new(config: &Config, period: Duration) -> Addresses {
        Addresses::resolved_by(Box::new(look_up), config, period)
    }

    fn resolved_by(resolver: Box<Resolver>, config: &Config, period: Duration) -> Addresses {
        let name = match &config.server {
            // Without the feature, the library's TLS would verify the address in place of the name.
            _ if config.uses_tls() && cfg!(not(feature = "tls")) => None,
            ServerConfig::Centralized { server } if server.host.parse::<IpAddr>().is_err() => {
                Some(((*server.host).into(), server.port))
            }
            _ => None,
        };
        Addresses {
            name,
            period: period.max(SHORTEST_PERIOD),
            resolver,
            look_up: Mutex::default(),
            unproven: Mutex::default(),
            current: watch::Sender::default(),
        }
    }

    /// Resolves the name. Returns no addresses if there is no name.
    pub(super) async fn find(&self) -> Result<Vec<SocketAddr>, Fault> {
        let Some((host, port)) = &self.name else {
            return Ok(Vec::new());
        };
        let look_up = {
            let mut latest = lock(&self.look_up);
            match latest.as_ref().filter(|latest| latest.peek().is_none()) {
                Some(in_flight) => in_flight.clone(),
                None => latest
                    .insert((self.resolver)(host.clone(), *port).shared())
                    .clone(),
            }
        };
        look_up.await.map_err(|why| Fault::Disconnected {
            reason: format!("cannot resolve {host}: {why}").into(),
        })
    }

    /// Returns the first address that accepts a connection. `None` if none is given. A single address is not tried.
    pub(super) async fn choose(&self, found: Vec<SocketAddr>) -> Result<Option<SocketAddr>, Fault> {
        if found.len() < 2 {
            return Ok(found.first().copied());
        }
        let order = in_order(&found, *lock(&self.unproven));
        let connect = |address| TcpStream::connect(address).map(|stream| stream.map(drop));
        let chosen = race(&order, connect).await;
        let chosen = chosen.map_err(|reason| Fault::Disconnected {
            reason: reason.into(),
        })?;
        *lock(&self.unproven) = Some(chosen);
        Ok(Some(chosen))
    }

    /// Resolves the name. Returns whether it still leads to `peer`: `true` also without a name, or if it cannot be resolved.
    pub(super) async fn still_leads_to(&self, peer: Option<SocketAddr>) -> bool {
        match (peer, self.find().await) {
            (Some(peer), Ok(found)) => found.is_empty() || found.contains(&peer),
            _ => true,
        }
    }

    /// Resolves the name every period. Returns its addresses once `peer` is not among them. Never completes without a name.
    pub(super) async fn moved(&self, peer: Option<SocketAddr>) -> Vec<SocketAddr> {
        let (Some(peer), Some((host, _))) = (peer, &self.name) else {
            return std::future::pending().await;
        };
        let mut is_known_to_fail = false;
        loop {
            sleep(self.period.mul_f64(1.0 - fastrand::f64() / 2.0)).await;
            match self.find().await {
                Ok(found) if !found.contains(&peer) => return found,
                Ok(_) => is_known_to_fail = false,
                Err(fault) if !is_known_to_fail => {
                    is_known_to_fail = true;
                    tracing::debug!(name = &**host, %peer, %fault, "name not resolved: the connection is kept");
                }
                Err(_) => {}
            }
        }
    }

    /// Sets the address that locks are taken at from now on. `None` if there is none.
    pub(super) fn set_current(&self, peer: Option<SocketAddr>) {
        if peer.is_some() {
            *lock(&self.unproven) = None;
        }
        self.current.send_replace(peer);
    }

    /// Returns the address that locks are taken at. `None` without a connection or a name.
    pub(super) fn current(&self) -> Option<SocketAddr> {
        *self.current.borrow()
    }

    /// Completes when locks are taken at another address than `peer`.
    pub(super) async fn wait_until_elsewhere(&self, peer: Option<SocketAddr>) {
        let mut current = self.current.subscribe();
        let is_elsewhere = |current: &Option<SocketAddr>| current.is_some() && *current != peer;
        // The sender is in `self`.
        let _ = current.wait_for(is_elsewhere).await;
    }
}

/// Returns the configuration with the address in place of the name. TLS goes on to verify the name.
pub(super) fn pinned(config: &Config, address: Option<SocketAddr>) -> Config {
    let mut config = config.clone();
    if let (Some(address), ServerConfig::Centralized { server }) = (address, &mut config.server) {
        #[cfg(feature = "tls")]
        server.tls_server_name.get_or_insert(server.host.clone());
        // Unlike the IP address alone, this text keeps the scope of a link-local address.
        let text = address.to_string();
        let host = text.rsplit_once(':').map_or(&*text, |(host, _)| host);
        server.host = host.trim_matches(['[', ']']).into();
        server.port = address.port();
    }
    config
}

fn look_up(host: Arc<str>, port: u16) -> BoxFuture<'static, Found> {
    let resolved = on_a_thread(move || (&*host, port).to_socket_addrs().map(Vec::from_iter));
    Box::pin(async {
        match resolved.await? {
            Ok(found) if found.is_empty() => Err("it has no address".into()),
            Ok(found) => Ok(found),
            Err(error) => Err(error.to_string().into()),
        }
    })
}

/// Keeps the system's order (RFC 6724), but alternates between families, and puts `last` behind all others.
fn in_order(found: &[SocketAddr], last: Option<SocketAddr>) -> Vec<SocketAddr> {
    let is_first = |address: &SocketAddr| address.is_ipv6() == found[0].is_ipv6();
    let (first, second): (Vec<SocketAddr>, Vec<SocketAddr>) =
        found.iter().partition(|address| is_first(address));
    let turns = (0..found.len()).flat_map(|turn| [first.get(turn), second.get(turn)]);
    let mut order: Vec<SocketAddr> = turns.flatten().copied().collect();
    order.sort_by_key(|address| Some(*address) == last);
    order
}

/// Returns the first address that accepts, or why none does. Tries the next one when an attempt fails or takes too long.
async fn race<F>(addresses: &[SocketAddr], connect: impl Fn(SocketAddr) -> F) -> Result<SocketAddr, String>
where
    F: Future<Output = io::Result<()>>,
{
    let attempt = |address: &SocketAddr| {
        let (address, connected) = (*address, connect(*address));
        async move { (address, connected.await) }
    };
    let mut waiting = addresses.iter();
    let mut attempts: FuturesUnordered<_> = waiting.next().map(attempt).into_iter().collect();
    let mut refusals = Vec::new();
    loop {
        tokio::select! {
            ended = attempts.next() => match ended {
                Some((address, Ok(()))) => return Ok(address),
                Some((address, Err(error))) => refusals.push(format!("{address}: {error}")),
                None => return Err(refusals.join("; ")),
            },
            () = sleep(STAGGER), if waiting.len() > 0 => {}
        }
        attempts.extend(waiting.next().map(attempt));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use fred::types::config::Server;
    use tokio::time::{Instant, timeout};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(5);

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn config(host: &str) -> Config {
        Config {
            server: ServerConfig::Centralized {
                server: Server::new(host, 7),
            },
            ..Config::default()
        }
    }

    /// Returns the addresses of `name`, whose look-ups give these answers and then hang; and the number of look-ups.
    fn answered(answers: Vec<Found>) -> (Addresses, Arc<AtomicUsize>) {
        let answers = Mutex::new(VecDeque::from(answers));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let resolver = move |_: Arc<str>, _| -> BoxFuture<'static, Found> {
            count.fetch_add(1, Relaxed);
            match lock(&answers).pop_front() {
                Some(answer) => std::future::ready(answer).boxed(),
                None => std::future::pending().boxed(),
            }
        };
        let addresses = Addresses::resolved_by(Box::new(resolver), &config("name"), PERIOD);
        (addresses, asked)
    }

    /// Races to 10.0.0.1, .2 and .3. Returns the outcome, and after how long each attempt began.
    async fn raced(
        outcomes: [Option<io::Result<()>>; 3],
    ) -> (Result<SocketAddr, String>, Vec<(u8, Duration)>) {
        let start = Instant::now();
        let (outcomes, attempts) = (Mutex::new(VecDeque::from(outcomes)), Mutex::default());
        let addresses = [at("10.0.0.1:7"), at("10.0.0.2:7"), at("10.0.0.3:7")];
        let connect = |address: SocketAddr| {
            let IpAddr::V4(ip) = address.ip() else {
                panic!("{address}")
            };
            let begin: &Mutex<Vec<(u8, Duration)>> = &attempts;
            lock(begin).push((ip.octets()[3], start.elapsed()));
            match lock(&outcomes).pop_front().unwrap() {
                Some(outcome) => std::future::ready(outcome).boxed(),
                None => std::future::pending().boxed(),
            }
        };
        let outcome = race(&addresses, connect).await;
        (outcome, attempts.into_inner().unwrap())
    }

    fn refused() -> Option<io::Result<()>> {
        Some(Err(io::ErrorKind::ConnectionRefused.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_holds_the_next_one_up_for_the_stagger_only() {
        let (outcome, attempts) = raced([None, None, Some(Ok(()))]).await;
        assert_eq!(outcome, Ok(at("10.0.0.3:7")));
        assert_eq!(attempts, [(1, Duration::ZERO), (2, STAGGER), (3, 2 * STAGGER)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_is_followed_by_the_next_one_at_once() {
        let (outcome, attempts) = raced([refused(), Some(Ok(())), None]).await;
        assert_eq!(outcome, Ok(at("10.0.0.2:7")));
        assert_eq!(attempts, [(1, Duration::ZERO), (2, Duration::ZERO)]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_reasons_of_all_addresses_are_named_if_none_accepts() {
        let (outcome, _) = raced([refused(), refused(), refused()]).await;
        assert_eq!(
            outcome.unwrap_err(),
            "10.0.0.1:7: connection refused; 10.0.0.2:7: connection refused; 10.0.0.3:7: connection refused"
        );
    }

    #[test]
    fn families_take_turns_and_the_unproven_address_comes_last() {
        let found = ["[::1]:7", "[::2]:7", "[::3]:7", "10.0.0.1:7"].map(at);
        assert_eq!(
            in_order(&found, None),
            ["[::1]:7", "10.0.0.1:7", "[::2]:7", "[::3]:7"].map(at)
        );
        let last = in_order(&found, Some(found[0]));
        assert_eq!(last, ["10.0.0.1:7", "[::2]:7", "[::3]:7", "[::1]:7"].map(at));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_has_moved_once_it_no_longer_leads_to_the_peer_and_is_resolved_once_a_period() {
        let (a, b) = (at("10.0.0.1:7"), at("10.0.0.2:7"));
        let (addresses, asked) = answered(vec![
            Ok(vec![a]),
            Err("no answer".into()),
            Ok(vec![b, a]),
            Ok(vec![b]),
        ]);
        let start = Instant::now();
        assert_eq!(addresses.moved(Some(a)).await, [b]);
        assert_eq!(asked.load(Relaxed), 4);
        let periods = start.elapsed().div_duration_f64(PERIOD);
        assert!((2.0..=4.0).contains(&periods), "{periods}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_hangs_is_joined() {
        let (addresses, asked) = answered(Vec::new());
        for _ in 0..3 {
            timeout(PERIOD, addresses.find()).await.unwrap_err();
        }
        assert_eq!(asked.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_and_sockets_are_never_resolved_and_do_not_move() {
        let path = "/run/redis.sock".into();
        let socket = Config {
            server: ServerConfig::Unix { path },
            ..Config::default()
        };
        for config in [config("10.0.0.1"), config("::1"), socket] {
            let unused = |_, _| -> BoxFuture<'static, Found> { panic!("resolved") };
            let addresses = Addresses::resolved_by(Box::new(unused), &config, PERIOD);
            assert_eq!(addresses.find().await, Ok(Vec::new()));
            assert_eq!(addresses.choose(Vec::new()).await, Ok(None));
            let hours = Duration::from_secs(10_000);
            timeout(hours, addresses.moved(None)).await.unwrap_err();
        }
    }

    #[test]
    fn the_address_takes_the_place_of_the_name_but_not_of_the_name_in_the_certificate() {
        let mut config = config("name");
        for (address, host) in [("10.0.0.1:8", "10.0.0.1"), ("[fe80::1%2]:8", "fe80::1%2")] {
            let ServerConfig::Centralized { server } = pinned(&config, Some(at(address))).server else {
                panic!("not one server")
            };
            assert_eq!((&*server.host, server.port), (host, 8));
            #[cfg(feature = "tls")]
            assert_eq!(server.tls_server_name.as_deref(), Some("name"));
        }
        config.username = Some("user".into());
        assert_eq!(pinned(&config, None), config);
    }
}
