//! Managers that wait: their connections for announcements.

use futures_util::future::join_all;
use quorlock::testbed::TestNode;
use tokio::task::JoinSet;

use crate::common::{connect, eventually};
use crate::measure::Usage;
use crate::{nothing_is_left, testbed};

const NODES: usize = 5;
/// Enough for their memory to stand out.
const MANAGERS: usize = 16;
/// Most memory of a manager in bytes, for all nodes. Two thirds of it are measured, to within a few percent.
const MOST_EACH: u64 = 1 << 20;

pub(crate) async fn listen() {
    let testbed = testbed(NODES).await;
    let before = Usage::now(&testbed).await;
    let holder = connect(&testbed).await;
    let lease = holder.lock("job").acquire().await.unwrap();
    let managers = join_all((0..MANAGERS).map(|_| connect(&testbed))).await;
    for manager in &managers {
        manager.lock("job").try_acquire().await.unwrap_err();
    }
    let connected = Usage::now(&testbed).await;
    println!("before     {before}\nconnected  {connected}: {MANAGERS} managers");

    let mut waiting = JoinSet::new();
    for manager in &managers {
        waiting.spawn(manager.lock("job").forever().acquire());
    }
    for node in testbed.nodes() {
        eventually("all have subscribed", async || listeners(node).await >= MANAGERS).await;
    }
    let listening = Usage::now(&testbed).await;
    let each = listening.each(&connected, MANAGERS);
    println!("listening  {listening}: {each} bytes each, for {NODES} nodes");
    assert!(waiting.try_join_next().is_none(), "a waiter got the held lock");

    waiting.shutdown().await;
    drop((lease, holder, managers));
    nothing_is_left(&testbed, &before).await;
    assert!(each <= MOST_EACH, "a manager takes {each} bytes");
}

async fn listeners(node: &TestNode) -> usize {
    let counted = ["PUBSUB", "NUMSUB", "quorlock:job#free"];
    let answer = node.command(&counted).await.unwrap();
    let listeners = answer.as_array().unwrap()[1].as_int().unwrap();
    usize::try_from(listeners).unwrap()
}
