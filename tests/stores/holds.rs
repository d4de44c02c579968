//! Several statements under one lease, and inserts, guarded by a row for the resource.

use futures_util::future::join_all;
use quorlock::FencingToken;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::patterns::{APPEND, FENCE, begin, record_payment, set_status};
use crate::{assert_never_back, blocked, dealt, is_stale, pid, store, token};

const RESOURCE: &str = "invoice:42";

/// Returns the payments' tokens, in the order of the rows.
async fn appended(client: &Client) -> Vec<FencingToken> {
    let rows = client
        .query("SELECT fencing_token FROM payments ORDER BY id", &[])
        .await;
    let tokens = rows.unwrap();
    tokens
        .iter()
        .map(|row| row.get::<_, i64>(0).try_into().unwrap())
        .collect()
}

/// Inserts two rows in one transaction. Returns whether they were admitted.
async fn pay_twice(client: &mut Client, token: FencingToken) -> bool {
    let transaction = match begin(client, RESOURCE, token).await {
        Ok(transaction) => transaction,
        Err(error) => return !is_stale::<()>(Err(error)),
    };
    let insert = "INSERT INTO payments (invoice, cents, fencing_token) VALUES (42, 5, $1)";
    for _ in 0..2 {
        transaction.execute(insert, &[&token.as_i64()]).await.unwrap();
    }
    transaction.commit().await.unwrap();
    true
}

#[tokio::test]
async fn a_transaction_is_the_newest_holders_or_nobodys() {
    let (_database, mut client) = store().await;
    assert!(
        pay_twice(&mut client, token(33)).await,
        "the first transaction was refused"
    );
    assert!(
        pay_twice(&mut client, token(33)).await,
        "the same holder was refused"
    );
    assert!(!pay_twice(&mut client, token(32)).await);
    assert!(pay_twice(&mut client, token(34)).await);
    assert!(!pay_twice(&mut client, token(33)).await);
    let tokens: Vec<_> = appended(&client).await.iter().map(|token| token.get()).collect();
    assert_eq!(tokens, [33, 33, 33, 33, 34, 34]);

    // Each resource has its own tokens.
    assert!(!is_stale(begin(&mut client, "invoice:43", token(1)).await));
}

#[tokio::test]
async fn a_refused_transaction_holds_nobody_up() {
    let (database, mut older) = store().await;
    let mut newer = database.connect().await;
    drop(begin(&mut newer, RESOURCE, token(30)).await.unwrap()); // rolled back
    let transaction = begin(&mut newer, RESOURCE, token(34)).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(is_stale(begin(&mut older, RESOURCE, token(33)).await));
    // The refused holder's connection lives on.
    assert!(pay_twice(&mut newer, token(34)).await);
    assert!(pay_twice(&mut older, token(35)).await);
}

#[tokio::test]
async fn an_insert_is_the_newest_holders_or_nobodys() {
    let (_database, client) = store().await;
    for (value, admitted) in [(33, true), (33, true), (32, false), (34, true), (33, false)] {
        let result = record_payment(&client, RESOURCE, token(value), 42, 5).await;
        assert_eq!(is_stale(result), !admitted, "{value}");
    }
    let tokens: Vec<_> = appended(&client).await.iter().map(|token| token.get()).collect();
    assert_eq!(tokens, [33, 33, 34]);
}

#[tokio::test]
async fn without_a_token_nothing_is_admitted() {
    let (_database, client) = store().await;
    for _ in 0..2 {
        let fence = client.query_opt(FENCE, &[&RESOURCE, &None::<i64>]).await;
        assert_eq!(fence.unwrap_err().code(), Some(&SqlState::NOT_NULL_VIOLATION));
        let append = client
            .execute(APPEND, &[&RESOURCE, &None::<i64>, &42i64, &5i64])
            .await;
        assert_eq!(append.unwrap_err().code(), Some(&SqlState::NOT_NULL_VIOLATION));
        assert_eq!(appended(&client).await, []);
        // The next round has a row to conflict with.
        client.query_one(FENCE, &[&RESOURCE, &Some(33i64)]).await.unwrap();
    }
}

#[tokio::test]
async fn an_insert_that_looks_for_newer_rows_by_itself_checks_nothing() {
    let (database, client) = store().await;
    let mut older = database.connect().await;
    let naive = "INSERT INTO payments (invoice, cents, fencing_token) SELECT 42, 5, $1
        WHERE NOT EXISTS (SELECT FROM payments WHERE fencing_token > $1)";
    let transaction = older.transaction().await.unwrap();
    assert_eq!(transaction.execute(naive, &[&33i64]).await.unwrap(), 1);
    // There is no row yet at which both could meet, so neither waits.
    assert_eq!(client.execute(naive, &[&34i64]).await.unwrap(), 1);
    transaction.commit().await.unwrap();
    let visible = client.query("SELECT FROM payments", &[]).await.unwrap();
    assert_eq!(
        visible.len(),
        2,
        "expected this insert to admit the older holder, too"
    );
}

#[tokio::test]
async fn two_holders_transactions_come_one_after_the_other() {
    for commits in [true, false] {
        let (database, mut newer) = store().await;
        let (mut older, observer) = (database.connect().await, database.connect().await);
        let transaction = begin(&mut newer, RESOURCE, token(34)).await.unwrap();

        let waiting = pid(&older).await;
        let write = tokio::spawn(async move { pay_twice(&mut older, token(33)).await });
        blocked(&observer, waiting).await;
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        assert_eq!(write.await.unwrap(), !commits);
    }
}

#[tokio::test]
async fn a_newer_holder_reads_the_last_write_of_the_older_one() {
    let (database, mut older) = store().await;
    let (mut newer, observer) = (database.connect().await, database.connect().await);
    let open = "INSERT INTO invoices (id, status) VALUES (42, 'open')";
    observer.batch_execute(open).await.unwrap();
    let transaction = begin(&mut older, RESOURCE, token(33)).await.unwrap();
    set_status(&transaction, token(33), 42, "sent").await.unwrap();

    let waiting = pid(&newer).await;
    let read = tokio::spawn(async move {
        let transaction = begin(&mut newer, RESOURCE, token(34)).await.unwrap();
        let row = transaction.query_one("SELECT status FROM invoices", &[]).await;
        row.unwrap().get::<_, String>(0)
    });
    blocked(&observer, waiting).await;
    transaction.commit().await.unwrap();
    assert_eq!(read.await.unwrap(), "sent");
}

#[tokio::test]
async fn no_row_is_appended_after_a_newer_one_in_any_order_of_writers() {
    let (database, client) = store().await;
    let writers = dealt(8, 40).into_iter().enumerate().map(|(number, tokens)| {
        let database = &database;
        async move {
            let mut client = database.connect().await;
            let mut told = Vec::new();
            for token in tokens {
                // Half of the writers use transactions.
                if number % 2 == 0 {
                    if pay_twice(&mut client, token).await {
                        told.extend([token, token]);
                    }
                } else if !is_stale(record_payment(&client, RESOURCE, token, 42, 5).await) {
                    told.push(token);
                }
            }
            told
        }
    });
    let told = join_all(writers).await.concat();
    assert_never_back(&appended(&client).await, told, token(320));
}
