//! Hostile input: names, URLs, settings and replies. Nothing panics, not even in a background task, and nothing hangs.
//!
//! Each target runs over its corpus (`corpus/`, which `cargo fuzz` also starts from) and over mutations of it.
//! `QUORLOCK_MUTATIONS` sets their number, and `QUORLOCK_SEED` chooses them. A failed case is printed as bytes, for the corpus.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod memory;
mod mutations;
mod panic_collector;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use mutations::{Cases, cases};
use targets::replies::{World, case};
use targets::{decoder, names, options, urls};
use tokio::task::JoinSet;

/// Cases that run at a time: most of a case is waiting for silent nodes.
const AT_A_TIME: usize = 12;

#[test]
fn names_and_prefixes_are_used_literally_or_refused() {
    for data in cases("names", 4_000) {
        let _printer = mutations::PrintOnPanic(&data);
        names::run(&data);
    }
}

#[test]
fn urls_are_read_or_refused_without_showing_a_password() {
    for data in cases("urls", 20_000) {
        let _printer = mutations::PrintOnPanic(&data);
        urls::run(&data);
    }
}

#[test]
fn replies_are_decoded_alike_in_pieces_of_any_size() {
    for data in cases("decoder", 20_000) {
        let _printer = mutations::PrintOnPanic(&data);
        decoder::run(&data);
    }
}

#[test]
fn settings_are_refused_or_kept_to() {
    for data in cases("options", 4_000) {
        let _printer = mutations::PrintOnPanic(&data);
        options::run(&data);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_neither_panic_nor_hang_nor_spoil_the_lock() {
    let panic_collector = panic_collector::PanicCollector::set();
    let world = Arc::new(World::start().await);
    let Cases { seed, list } = mutations::seeded("replies", 1_000);
    let mut running = JoinSet::new();
    for data in list {
        if running.len() == AT_A_TIME {
            finish(running.join_next().await, &panic_collector);
        }
        let world = world.clone();
        running.spawn(async move {
            let _printer = mutations::PrintOnPanic(&data);
            case(&world, &data).await;
        });
    }
    while let Some(ended) = running.join_next().await {
        finish(Some(ended), &panic_collector);
    }
    // The lying proxies' last connections end in background tasks.
    tokio::time::sleep(Duration::from_millis(50)).await;
    panic_collector.assert_none(&format!("QUORLOCK_SEED={seed}"));
}

/// Without hostile input: a node goes away for good.
#[tokio::test]
async fn clean_ups_end_quietly_when_their_manager_is_gone_and_a_node_stays_away() {
    let panic_collector = panic_collector::PanicCollector::set();
    let ttl = Duration::from_millis(300);
    let testbed = quorlock::testbed::Testbed::start(1).await.unwrap();
    let redlock = common::connect(&testbed).await;
    let lease = redlock.lock("r").ttl(ttl).acquire().await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    testbed.nodes()[0].kill().await.unwrap();
    drop((lease, redlock));
    common::eventually("everything has ended", async || tasks() == 0).await;
    panic_collector.assert_none("after the end");
}

fn finish(
    ended: Option<Result<(), tokio::task::JoinError>>,
    panic_collector: &panic_collector::PanicCollector,
) {
    if let Some(Err(failed)) = ended {
        panic!("{failed}: {:?}", panic_collector.panics());
    }
}
