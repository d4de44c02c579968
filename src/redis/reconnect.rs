//! Keeps one node connected: opens a link, hands it to the pipeline, waits for its end, and starts again.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connection::authentication;
use super::credentials::{SHORTEST_PERIOD, renewed_after};
use super::endpoint::Endpoint;
use super::fault;
use super::link::{Link, Opened};
use super::members::Members;
use super::pipeline::Pipeline;
use crate::node::Fault;
use crate::protocol::backoff::Backoff;

/// Shortest pause between attempts to connect.
const FASTEST: Duration = Duration::from_millis(5);
/// Longest pause between attempts to connect to a node that cannot be connected to.
const SLOWEST: Duration = Duration::from_millis(500);
/// Longest pause for a node that passes the probe and then closes the connection: it could have given locks meanwhile.
const SLOWEST_DROPPED: Duration = Duration::from_millis(50);
/// Shortest pause for a node that passes the probe and then answers nothing.
const HUNG_FASTEST: Duration = Duration::from_millis(250);
/// Longest pause for such a node.
const HUNG_SLOWEST: Duration = Duration::from_secs(2);
/// How long a doubted connection may stay silent while another one is opened beside it (T4). After that, the node is out of reach
/// until the other one is open.
const GRACE: Duration = Duration::from_millis(500);

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Opened, Fault>> + Send + 'a>>;

/// Runs until dropped.
pub(super) async fn keep_connected(endpoint: Arc<Endpoint>, pipeline: Arc<Pipeline>, members: Arc<Members>) {
    let mut breaker = Breaker::default();
    let mut is_out_of_reach = false;
    let mut opening: Opening<'_> = Box::pin(Link::open(&endpoint));
    loop {
        let adopted = opening.await.and_then(|opened| adopt(&endpoint, opened, None));
        let (end, fault, next) = match adopted {
            Ok(opened) => {
                let serving = pin!(serve(&endpoint, &pipeline, &members, opened));
                tell_when_back(&endpoint, &mut is_out_of_reach, serving).await
            }
            Err(fault) => (End::Failed, fault, None),
        };
        endpoint.addresses.set_current(None);
        pipeline.down(&fault);
        // The loss is announced once: each announcement makes the client look at all nodes.
        if breaker.is_closed() || end == End::Served {
            members.changed();
        }
        if !std::mem::replace(&mut is_out_of_reach, true) {
            tracing::info!(node = &*endpoint.name, %fault, "node out of reach");
        }
        opening = match next {
            Some(next) => next,
            None => {
                sleep(breaker.delay(end, fastrand::u32(..))).await;
                Box::pin(Link::open(&endpoint))
            }
        };
    }
}

/// Waits until the connection has ended. Logs that a node is back, once its connection has lasted for a while.
async fn tell_when_back<T>(
    endpoint: &Endpoint,
    is_out_of_reach: &mut bool,
    mut serving: Pin<&mut impl Future<Output = T>>,
) -> T {
    if *is_out_of_reach {
        tokio::select! {
            biased;
            ended = &mut serving => return ended,
            () = sleep(SLOWEST) => {}
        }
        *is_out_of_reach = false;
        tracing::info!(node = &*endpoint.name, "node in reach again");
    }
    serving.await
}

/// Uses the link, and the links that take its place, until one of them ends. Returns how it ended, the fault, and a second
/// connection that is still being opened.
async fn serve<'a>(
    endpoint: &'a Endpoint,
    pipeline: &Pipeline,
    members: &Members,
    mut opened: Opened,
) -> (End, Fault, Option<Opening<'a>>) {
    // Whether the previous connection answered nothing but the probe (R3).
    let mut is_suspect = false;
    loop {
        let Opened {
            link,
            mut reader,
            writer,
            valid_for,
        } = opened;
        let link = Arc::new(link);
        let since = Instant::now();
        pipeline.up(Arc::clone(&link), writer);
        members.changed();
        endpoint.addresses.set_current(link.peer());
        let closed = || match link.has_served() || since.elapsed() > SLOWEST {
            true => End::Served,
            false => End::Dropped,
        };
        opened = tokio::select! {
            biased; // first take in what has come
            fault = pipeline.serve(&link, &mut reader) => return (closed(), fault::as_disconnected(fault), None),
            fault = link.changed() => return (closed(), fault, None),
            // The next iteration drops the old connection, which resets it.
            replaced = replacement(endpoint, pipeline, &link, is_suspect) => match replaced {
                Ok(next) => {
                    is_suspect = !pipeline.has_answered();
                    next
                }
                Err(next) => {
                    let end = if pipeline.has_answered() { End::Served } else { End::Hung };
                    return (end, fault::disconnected("no answer for too long".into()), next);
                }
            },
            never = reauthenticate(endpoint, pipeline, &link, valid_for) => match never {},
            next = follow(endpoint, &link) => {
                if let (Some(from), Some(to)) = (link.peer(), next.link.peer()) {
                    tracing::info!(node = &*endpoint.name, %from, %to, "node moved: its name leads to another address, which is used now");
                }
                // Requests in flight on the old connection fail.
                pipeline.down(&fault::disconnected("the node's name leads elsewhere".into()));
                next
            }
        };
    }
}

/// Opens another connection whenever the one in use is silent for too long (T4). Returns the other one, if it is open before the
/// one in use has answered. If neither happens within the grace, returns the connection that is still being opened.
async fn replacement<'a>(
    endpoint: &'a Endpoint,
    pipeline: &Pipeline,
    link: &Link,
    is_suspect: bool,
) -> Result<Opened, Option<Opening<'a>>> {
    let mut end = Instant::now();
    loop {
        pipeline.wait_until_doubted().await;
        // At most once per grace period, because a node may be slow each time.
        tokio::select! {
            () = pipeline.wait_until_trusted() => continue,
            () = sleep_until(end) => {}
        }
        end = Instant::now() + GRACE;
        // A server that passed the probe and then hung twice in a row gets no further connection (R3).
        if is_suspect && !pipeline.has_answered() {
            tokio::select! {
                () = pipeline.wait_until_trusted() => continue,
                () = sleep_until(end) => return Err(None),
            }
        }
        let mut opening: Opening<'a> = Box::pin(Link::open(endpoint));
        tokio::select! {
            biased;
            () = pipeline.wait_until_trusted() => {}
            outcome = &mut opening => match outcome.and_then(|opened| adopt(endpoint, opened, Some(link))) {
                Ok(mut opened) => {
                    opened.link.inherit_serial(link);
                    tracing::info!(node = &*endpoint.name, "no answer on the connection: another one replaces it");
                    return Ok(opened);
                }
                Err(fault) => {
                    tracing::debug!(node = &*endpoint.name, %fault, "no answer on the connection, and another one cannot be opened");
                    tokio::select! {
                        () = pipeline.wait_until_trusted() => {}
                        () = sleep_until(end) => return Err(None),
                    }
                }
            },
            () = sleep_until(end) => return Err(Some(opening)),
        }
    }
}

/// Waits until the node's name leads to another server that passes the probe (M3). Until then, the connection stays in use.
async fn follow(endpoint: &Endpoint, link: &Link) -> Opened {
    let mut known = None;
    loop {
        let found = endpoint.addresses.moved(link.peer()).await;
        let opened = Link::open_at(endpoint, found).await;
        let fault = match opened.and_then(|opened| adopt(endpoint, opened, Some(link))) {
            Ok(opened) => return opened,
            Err(fault) => fault,
        };
        if known.as_ref() != Some(&fault) {
            let name = &*endpoint.name;
            tracing::info!(node = name, %fault, "the name leads to another server, which cannot be used: the connection is kept");
        }
        known = Some(fault);
    }
}

/// Authenticates again before the credentials expire, for as long as the connection lives. Never completes.
async fn reauthenticate(
    endpoint: &Endpoint,
    pipeline: &Pipeline,
    link: &Arc<Link>,
    valid_for: Option<Duration>,
) -> Infallible {
    let Some(mut period) = valid_for else {
        return std::future::pending().await;
    };
    let mut pause = renewed_after(period);
    loop {
        sleep(pause).await;
        let renewed = async {
            let (config, valid_for) = endpoint.node.with_current_credentials().await?;
            let commands = Vec::from_iter(authentication(&config));
            let replies = pipeline.ask(link, &commands).await?;
            match replies.iter().all(|reply| reply.as_str() == Some("OK")) {
                true => Ok(valid_for),
                false => Err(fault::disconnected("the server did not accept AUTH".into())),
            }
        };
        let late = |_| Err(fault::disconnected("no answer".into()));
        match timeout(endpoint.timeout, renewed).await.unwrap_or_else(late) {
            Ok(next) => {
                period = next.unwrap_or(period);
                pause = renewed_after(period);
            }
            Err(fault) => {
                tracing::warn!(node = &*endpoint.name, %fault, "not authenticated again, so the server may end the connection: it is tried again");
                // A fifth of the validity is left for retries.
                pause = (period / 10).max(SHORTEST_PERIOD);
            }
        }
    }
}

fn adopt(endpoint: &Endpoint, opened: Opened, before: Option<&Link>) -> Result<Opened, Fault> {
    opened.link.adopt(endpoint, before).map(|()| opened)
}

/// How a connection, or an attempt to connect, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has answered requests, or has lasted for a while.
    Served,
    /// It passed the probe, and was closed soon after, without a request.
    Dropped,
    /// It could not be opened.
    Failed,
    /// It passed the probe, and then answered nothing.
    Hung,
}

/// How long a node is left alone (R3). The time grows with the number of failures in a row.
#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    hangs: u32,
}

impl Breaker {
    /// Returns whether the node has not failed since it last served.
    fn is_closed(&self) -> bool {
        self.failures == 0
    }

    /// Returns the pause until the next attempt. `random` spreads it.
    fn delay(&mut self, end: End, random: u32) -> Duration {
        match end {
            End::Served => *self = Breaker::default(),
            End::Dropped | End::Failed => {}
            End::Hung => self.hangs = self.hangs.saturating_add(1),
        }
        self.failures = self.failures.saturating_add(1);
        let slowest = if end == End::Dropped {
            SLOWEST_DROPPED
        } else {
            SLOWEST
        };
        let usual = Backoff::new(FASTEST, slowest).delay(self.failures, random);
        match self.hangs {
            0 => usual,
            hangs => usual.max(Backoff::new(HUNG_FASTEST, HUNG_SLOWEST).delay(hangs, random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fails_is_left_alone_for_longer_each_time_up_to_a_limit() {
        let mut breaker = Breaker::default();
        let delays: Vec<Duration> = (0..20).map(|_| breaker.delay(End::Failed, u32::MAX)).collect();
        assert!(delays.is_sorted() && delays[0] < delays[5], "{delays:?}");
        assert_eq!(delays[19], SLOWEST);
    }

    #[test]
    fn a_node_that_lets_itself_be_connected_to_and_hangs_is_left_alone_for_longer_still() {
        let mut breaker = Breaker::default();
        let delays: Vec<Duration> = (0..20).map(|_| breaker.delay(End::Hung, u32::MAX)).collect();
        assert!(delays.is_sorted() && delays[0] <= HUNG_FASTEST * 2, "{delays:?}");
        assert_eq!(delays[19], HUNG_SLOWEST);
        assert_eq!(breaker.delay(End::Failed, u32::MAX), HUNG_SLOWEST);
    }

    #[test]
    fn a_node_that_drops_its_connections_is_left_alone_for_a_moment_only() {
        let mut breaker = Breaker::default();
        let delays = (0..20).map(|_| breaker.delay(End::Dropped, u32::MAX));
        assert_eq!(delays.last(), Some(SLOWEST_DROPPED));
        assert_eq!(breaker.delay(End::Failed, u32::MAX), SLOWEST);
    }

    #[test]
    fn a_connection_that_was_of_use_makes_up_for_all_before() {
        let mut breaker = Breaker::default();
        for _ in 0..20 {
            breaker.delay(End::Hung, u32::MAX);
        }
        assert!(breaker.delay(End::Served, u32::MAX) <= FASTEST * 2);
        assert!(!breaker.is_closed());
    }
}
