//! A row with its last writer's token: one guarded UPDATE.

use futures_util::future::join_all;
use tokio_postgres::Client;

use crate::patterns::{UPDATE, set_status, status_to_change};
use crate::{assert_never_back, blocked, dealt, is_stale, pid, store, token};

async fn invoice(client: &Client) -> (String, i64) {
    let row = client
        .query_one("SELECT status, fencing_token FROM invoices WHERE id = 42", &[])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

async fn open_invoice(client: &Client) {
    let insert = "INSERT INTO invoices (id, status) VALUES (42, 'open')";
    client.batch_execute(insert).await.unwrap();
}

#[tokio::test]
async fn an_older_holder_is_refused_and_the_same_one_is_not() {
    let (_database, client) = store().await;
    open_invoice(&client).await;
    set_status(&client, token(33), 42, "sent").await.unwrap();
    set_status(&client, token(33), 42, "paid").await.unwrap();
    assert!(is_stale(set_status(&client, token(32), 42, "void").await));
    assert_eq!(invoice(&client).await, ("paid".into(), 33));
    set_status(&client, token(34), 42, "shipped").await.unwrap();
    assert!(is_stale(set_status(&client, token(33), 42, "void").await));
    assert_eq!(invoice(&client).await, ("shipped".into(), 34));
}

#[tokio::test]
async fn without_a_token_nothing_is_written() {
    let (_database, client) = store().await;
    open_invoice(&client).await;
    for before in ["open", "paid"] {
        let updated = client
            .execute(UPDATE, &[&None::<i64>, &42i64, &"void"])
            .await
            .unwrap();
        assert_eq!(updated, 0);
        assert_eq!(invoice(&client).await.0, before);
        set_status(&client, token(33), 42, "paid").await.unwrap();
    }
}

/// Once the newer holder has read, the older one is refused, even before the newer one writes.
#[tokio::test]
async fn a_read_for_a_later_write_already_refuses_the_older_holder() {
    let (_database, client) = store().await;
    open_invoice(&client).await;
    set_status(&client, token(33), 42, "sent").await.unwrap();
    assert_eq!(status_to_change(&client, token(34), 42).await.unwrap(), "sent");
    assert!(is_stale(set_status(&client, token(33), 42, "void").await));
    assert!(is_stale(status_to_change(&client, token(33), 42).await));
    set_status(&client, token(34), 42, "sent, paid").await.unwrap();
    assert_eq!(invoice(&client).await, ("sent, paid".into(), 34));

    // After a read without the token, the older holder's write is lost.
    let (read, _) = invoice(&client).await;
    set_status(&client, token(34), 42, "sent, paid, rated")
        .await
        .unwrap();
    set_status(&client, token(35), 42, &format!("{read}, shipped"))
        .await
        .unwrap();
    assert_eq!(invoice(&client).await.0, "sent, paid, shipped");
}

/// Runs the script as `quorlock run` would.
#[tokio::test]
async fn a_script_is_told_when_it_is_refused() {
    let (database, client) = store().await;
    open_invoice(&client).await;
    let script = include_str!("../../examples/stores/job.sh");
    let run = |token: Option<&'static str>| {
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", script])
            .envs(database.environment())
            .env_remove("QUORLOCK_FENCING_TOKEN");
        command.envs(token.map(|token| ("QUORLOCK_FENCING_TOKEN", token)));
        async move { command.output().await.unwrap() }
    };
    for (token, code, said) in [
        (Some("33"), 0, ""),
        (Some("32"), 1, "refused: a newer run has written"),
        (Some("34"), 0, ""),
        (None, 2, "run me under quorlock run"),
        (Some("nonsense"), 3, "nonsense"),
    ] {
        let output = run(token).await;
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(said), "{token:?}: {errors}");
        match code {
            // Shells differ in how they treat an empty variable.
            2 => assert!(!output.status.success()),
            code => assert_eq!(output.status.code(), Some(code), "{token:?}: {errors}"),
        }
    }
    assert_eq!(invoice(&client).await, ("paid".into(), 34));
}

#[tokio::test]
async fn a_row_that_is_not_there_looks_the_same() {
    let (_database, client) = store().await;
    assert!(is_stale(set_status(&client, token(33), 42, "sent").await));
}

#[tokio::test]
async fn looking_first_and_writing_then_loses_what_the_guarded_update_keeps() {
    let (database, newer) = store().await;
    open_invoice(&newer).await;
    let mut older = database.connect().await;

    // A transaction does not help: at READ COMMITTED, rows may change after a read.
    let transaction = older.transaction().await.unwrap();
    let seen = transaction
        .query_one("SELECT fencing_token FROM invoices WHERE id = 42", &[])
        .await
        .unwrap();
    assert!(seen.get::<_, i64>(0) <= 33, "the row already has a newer token");

    // This holder is paused, and the next one writes.
    set_status(&newer, token(34), 42, "paid").await.unwrap();

    // The guarded update is refused.
    assert!(is_stale(set_status(&transaction, token(33), 42, "void").await));
    // An update that relies on the earlier check overwrites the newer state, and lowers the token.
    transaction
        .batch_execute("UPDATE invoices SET status = 'void', fencing_token = 33 WHERE id = 42")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(invoice(&newer).await, ("void".into(), 33));
}

#[tokio::test]
async fn an_older_holder_that_waits_for_a_newer_one_is_judged_by_what_that_one_leaves() {
    for commits in [true, false] {
        let (database, mut newer) = store().await;
        open_invoice(&newer).await;
        let (older, observer) = (database.connect().await, database.connect().await);
        let transaction = newer.transaction().await.unwrap();
        set_status(&transaction, token(34), 42, "paid").await.unwrap();

        let waiting = pid(&older).await;
        let write = tokio::spawn(async move { is_stale(set_status(&older, token(33), 42, "void").await) });
        blocked(&observer, waiting).await;
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        assert_eq!(write.await.unwrap(), commits);
        let left = if commits { ("paid", 34) } else { ("void", 33) };
        assert_eq!(invoice(&observer).await, (left.0.to_owned(), left.1));
    }
}

#[tokio::test]
async fn a_row_never_goes_back_in_any_order_of_writers() {
    let (database, client) = store().await;
    open_invoice(&client).await;
    // A trigger runs while its transaction locks the row, so numbers follow the order of commits.
    let audit = "
        CREATE TABLE audit (number BIGINT GENERATED ALWAYS AS IDENTITY, fencing_token BIGINT NOT NULL);
        CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO audit (fencing_token) VALUES (NEW.fencing_token);
            RETURN NULL;
        END $$;
        CREATE TRIGGER audit AFTER UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION audit();";
    client.batch_execute(audit).await.unwrap();

    let writers = dealt(8, 40).into_iter().map(|tokens| async {
        let client = database.connect().await;
        let mut told = Vec::new();
        for token in tokens {
            if !is_stale(set_status(&client, token, 42, &token.to_string()).await) {
                told.push(token);
            }
        }
        told
    });
    let told = join_all(writers).await.concat();

    assert_eq!(invoice(&client).await, ("320".into(), 320));
    let rows = client
        .query("SELECT fencing_token FROM audit ORDER BY number", &[])
        .await;
    let taken: Vec<_> = rows
        .unwrap()
        .iter()
        .map(|row| row.get::<_, i64>(0).try_into().unwrap())
        .collect();
    assert_never_back(&taken, told, token(320));
}
