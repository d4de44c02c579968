//! The same name in two databases is two locks, also to their announcements.

use futures_util::StreamExt;
use quorlock::testbed::Testbed;
use quorlock::{Redlock, ReleaseOutcome};
use tokio::time::timeout;

use crate::common::{PATIENCE, eventually};

#[tokio::test]
async fn who_waits_in_one_database_hears_no_release_in_another() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let in_database = async |number: usize| {
        let builder = Redlock::builder().url(format!("{}/{number}", node.url()));
        builder.restart_guard(false).connect().await.unwrap()
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
    eventually("the waiter listens", async || !channels().await.is_empty()).await;

    // Hears what the waiter hears.
    let server = redis::Client::open(node.url()).unwrap();
    let mut heard = server.get_async_pubsub().await.unwrap();
    for channel in channels().await {
        heard.subscribe(channel).await.unwrap();
    }
    let other = one.lock("job").acquire().await.unwrap();
    for lease in [other, held] {
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    // The first one is the release that the waiter waits for.
    let first = timeout(PATIENCE, heard.on_message().next())
        .await
        .unwrap()
        .unwrap();
    let message: String = first.get_payload().unwrap();
    assert!(
        message.ends_with(owner.as_str().unwrap()),
        "{message} is not the release by {:?}",
        owner.as_str()
    );
    drop(waiting.await.unwrap().unwrap());
}
