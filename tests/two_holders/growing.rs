//! How to change the list of nodes: end all clients, wait until their registrations have expired, and start clients with the new
//! list.

use quorlock::testbed::{Data, Testbed};

use crate::common::eventually;
use crate::lists::tells_both_lists;
use crate::{Client, Holders, all_up, short};

/// Changes from the first three of five servers to `list`.
async fn change_to(list: &[usize]) {
    let testbed = Testbed::start(5).await.unwrap();
    for new in &testbed.nodes()[3..] {
        new.restart(Data::Wipe).await.unwrap();
    }
    let old = testbed.urls()[..3].to_vec();
    let new: Vec<_> = list.iter().map(|&node| testbed.nodes()[node].url()).collect();
    let holders = Holders::default();
    let (mut clients, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut client = Client::connected("the old list", || short(&old)).await;
        let lease = client.acquire("job", &holders).await;
        // A kept handle does not keep its client registered.
        handles.push(lease.handle());
        drop(lease.release().await);
        clients.push(client);
    }
    let mut changed = Client::new("the new list", || short(&new));
    while let Some(client) = clients.pop() {
        // The new list is refused while an old client runs.
        let attempt = changed.try_acquire("job", &holders).await;
        let error = attempt.expect_err("the new list was accepted while a client of the old list runs");
        assert!(tells_both_lists(&error, [&old, &new]), "{error}");
        client.end(&holders).await;
    }
    changed.succeed("job", &holders).await;
    // From now on, the old list is refused.
    let mut left_over = Client::new("the old list, once more", || short(&old));
    let attempt = left_over.try_acquire("job", &holders).await;
    let error = attempt.expect_err("the old list was accepted while a client of the new list runs");
    assert!(tells_both_lists(&error, [&old, &new]), "{error}");
    all_up(changed.redlock()).await;
    eventually("new nodes grant locks, too", async || {
        let lease = changed.redlock().lock("job").try_acquire().await;
        let Ok(lease) = lease else { return false };
        let granted = testbed.nodes()[list[list.len() - 1]]
            .command(&["EXISTS", "quorlock:job"])
            .await;
        drop(lease.release().await);
        granted.unwrap().as_int() == Some(1)
    })
    .await;
}

#[tokio::test]
async fn a_node_is_replaced_by_a_server_with_another_address() {
    change_to(&[0, 1, 3]).await;
}

#[tokio::test]
async fn a_set_grows_from_three_nodes_to_five() {
    change_to(&[0, 1, 2, 3, 4]).await;
}
