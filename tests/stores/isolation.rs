//! Stricter isolation levels: the patterns are still correct, but errors must be retried.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::patterns::{FENCE, UPDATE, set_status};
use crate::{store, token};

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Begins a transaction and takes its snapshot.
async fn begun(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    let transaction = client
        .build_transaction()
        .isolation_level(level)
        .start()
        .await
        .unwrap();
    transaction.batch_execute("SELECT FROM invoices").await.unwrap();
    transaction
}

#[tokio::test]
async fn a_guarded_update_behind_a_newer_one_is_to_be_retried_and_refused_then() {
    for level in LEVELS {
        let (database, newer) = store().await;
        let open = "INSERT INTO invoices (id, status) VALUES (42, 'open')";
        newer.batch_execute(open).await.unwrap();
        let mut older = database.connect().await;
        let transaction = begun(&mut older, level).await;
        set_status(&newer, token(34), 42, "paid").await.unwrap();

        let update = transaction.execute(UPDATE, &[&33i64, &42i64, &"void"]).await;
        let code = update.unwrap_err().code().cloned();
        assert_eq!(code, Some(SqlState::T_R_SERIALIZATION_FAILURE));
        transaction.rollback().await.unwrap();

        let transaction = begun(&mut older, level).await;
        let update = transaction.execute(UPDATE, &[&33i64, &42i64, &"void"]).await;
        assert_eq!(update.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_guard_behind_another_is_to_be_retried_and_judged_then() {
    for level in LEVELS {
        for (value, admitted) in [(33i64, false), (34, true), (35, true)] {
            let (database, other) = store().await;
            let mut client = database.connect().await;
            other.query_one(FENCE, &[&"it", &1i64]).await.unwrap();
            let transaction = begun(&mut client, level).await;
            other.query_one(FENCE, &[&"it", &34i64]).await.unwrap();

            let fence = transaction.query_opt(FENCE, &[&"it", &value]).await;
            let code = fence.unwrap_err().code().cloned();
            assert_eq!(code, Some(SqlState::T_R_SERIALIZATION_FAILURE));
            transaction.rollback().await.unwrap();

            let transaction = begun(&mut client, level).await;
            let fence = transaction.query_opt(FENCE, &[&"it", &value]).await.unwrap();
            assert_eq!(fence.is_some(), admitted, "{value}");
        }
    }
}
