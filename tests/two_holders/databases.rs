//! One name in two databases is two locks, with separate announcements.

use futures_util::StreamExt;
use quorlock::ReleaseOutcome;
use quorlock::testbed::Testbed;
use tokio::time::timeout;

use crate::common::{PATIENCE, eventually, unguarded};

#[tokio::test]
async fn a_waiter_in_one_database_hears_no_release_in_another() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let in_database = async |number: usize| {
        let url = format!("{}/{number}", node.url());
        unguarded([url]).connect().await.unwrap()
    };
    let (zero, waiter, one) = (in_database(0).await, in_database(0).await, in_database(1).await);
    let held = zero.lock("job").acquire().await.unwrap();
    let owner = node.command(&["GET", "quorlock:job"]).await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").within(PATIENCE).acquire());
    let channels = async || {
        let answer = node.command(&["PUBSUB", "CHANNELS", "*"]).await.unwrap();
        let names = answer.as_array().unwrap().iter();
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    eventually("the waiter has subscribed", async || !channels().await.is_empty()).await;

    // Subscribes to the waiter's channels.
    let server = redis::Client::open(node.url()).unwrap();
    let mut heard = server.get_async_pubsub().await.unwrap();
    for channel in channels().await {
        heard.subscribe(channel).await.unwrap();
    }
    let other = one.lock("job").acquire().await.unwrap();
    for lease in [other, held] {
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    // The first release heard must be the one that the waiter waits for. The waiter announces itself before.
    let mut messages = heard.on_message();
    let released = loop {
        let message = timeout(PATIENCE, messages.next()).await.unwrap().unwrap();
        let message: String = message.get_payload().unwrap();
        if !message.starts_with('w') {
            break message;
        }
    };
    let owner = owner.as_str().unwrap();
    assert!(
        released[1..].starts_with(owner),
        "{released} is not the release by {owner}"
    );
    drop(messages);
    drop(waiting.await.unwrap().unwrap());
}
