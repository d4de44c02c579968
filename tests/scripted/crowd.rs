use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use quorlock::Redlock;

use crate::nodes::{Server, ms, redlock};

pub(crate) const ONE_WAY: u64 = 10;

pub(crate) fn servers(nodes: usize) -> Vec<Arc<Server>> {
    (0..nodes)
        .map(|number| Server::new(number, || ms(ONE_WAY)))
        .collect()
}

pub(crate) fn manager(servers: &[Arc<Server>]) -> Redlock {
    redlock(servers, Redlock::builder().within(ms(600_000)))
}

/// Returns five servers with random one-way latencies (in microseconds). One may hang.
pub(crate) fn scattered(seed: u64, one_way: RangeInclusive<u64>, hung: Option<usize>) -> Vec<Arc<Server>> {
    let server = |number: usize| {
        let mut random = fastrand::Rng::with_seed(seed ^ (number as u64) << 32);
        let one_way = one_way.clone();
        Server::new(number, move || match hung == Some(number) {
            true => ms(100_000),
            false => Duration::from_micros(random.u64(one_way.clone())),
        })
    };
    (0..5).map(server).collect()
}

pub(crate) fn asked(servers: &[Arc<Server>]) -> usize {
    servers.iter().map(|server| server.acquires()).sum()
}
