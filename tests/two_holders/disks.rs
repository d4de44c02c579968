//! Data directories that are copied, put back, or swapped.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::try_join_all;
use quorlock::RedlockBuilder;
use quorlock::testbed::{Data, TestNode, Testbed, TestbedError};
use tokio::time::sleep;

use crate::{Client, Holders, WINDOW, acquire_on_two, short, wide};

/// The longest time between two looks with the settings of `wide`.
const LOOK_PERIOD: Duration = Duration::from_secs(5);

fn data(node: &TestNode) -> PathBuf {
    node.folder().join("data")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn back_up(node: &TestNode) {
    copy(&data(node), &node.folder().join("backup"));
}

async fn put_back(node: &TestNode) -> Result<(), TestbedError> {
    node.kill().await?;
    fs::remove_dir_all(data(node)).unwrap();
    fs::rename(node.folder().join("backup"), data(node)).unwrap();
    node.restart(Data::Keep).await
}

/// Two of three nodes get back the data that they had `age` before the grant.
async fn put_back_after<B: Fn(&[String]) -> RedlockBuilder>(age: Duration, builder: B) {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let builder = || builder(&urls);
    let holders = Holders::default();
    let mut first = Client::connected("first", builder).await;
    let mut second = Client::connected("second", builder).await;
    let majority = &testbed.nodes()[..2];
    majority.iter().for_each(back_up);
    sleep(age).await;
    let lease = first.acquire("job", &holders).await;
    try_join_all(majority.iter().map(put_back)).await.unwrap();
    second.contest(&lease, &holders).await;
}

/// Registrations in the backup have expired.
#[tokio::test]
async fn a_backup_from_long_ago_is_put_back_on_a_majority() {
    put_back_after(2 * WINDOW, |urls| short(urls).watchdog(false)).await;
}

/// Registrations in the backup live, but the holder has registered again since.
#[tokio::test]
async fn a_backup_from_some_seconds_before_is_put_back_on_a_majority() {
    put_back_after(LOOK_PERIOD + Duration::from_secs(1), wide).await;
}

/// The lease stands on two of three nodes. One of these swaps its disk with server `other`.
async fn swapped_with(other: usize) {
    let testbed = Testbed::start(4).await.unwrap();
    let urls = testbed.urls()[..3].to_vec();
    let holders = Holders::default();
    let mut first = Client::connected("first", || wide(&urls)).await;
    let mut second = Client::connected("second", || wide(&urls)).await;
    let lease = acquire_on_two(&testbed, &mut first, &second, &holders).await;
    let (node, other) = (&testbed.nodes()[1], &testbed.nodes()[other]);
    try_join_all([node, other].map(TestNode::kill)).await.unwrap();
    let aside = testbed.folder().join("aside");
    fs::rename(data(node), &aside).unwrap();
    fs::rename(data(other), data(node)).unwrap();
    fs::rename(aside, data(other)).unwrap();
    let restarts = [node, other].map(|node| node.restart(Data::Keep));
    try_join_all(restarts).await.unwrap();
    second.contest(&lease, &holders).await;
    assert!(lease.is_held(), "the lease ended before the contest did");
}

#[tokio::test]
async fn a_node_swaps_its_disk_with_a_server_outside_the_set() {
    swapped_with(3).await;
}

#[tokio::test]
async fn a_node_swaps_its_disk_with_another_node() {
    swapped_with(2).await;
}
