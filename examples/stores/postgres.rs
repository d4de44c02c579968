//! Writes to PostgreSQL that only the newest holder of a lock can make.

use std::fmt;

use quorlock::FencingToken;
use tokio_postgres::{Client, GenericClient, Transaction};

/// The tables.
pub(crate) const SCHEMA: &str = include_str!("schema.sql");
/// One row, one statement.
pub(crate) const UPDATE: &str = include_str!("update.sql");
/// One row, before it is read to be written back changed.
pub(crate) const READ: &str = include_str!("read.sql");
/// The guard of a resource, first in a transaction.
pub(crate) const FENCE: &str = include_str!("fence.sql");
/// An insert behind the guard, in one statement.
pub(crate) const APPEND: &str = include_str!("append.sql");

/// A write that did not happen.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// A newer holder has written. Trying again does not help: this hold is over.
    Stale(FencingToken),
    /// The database failed.
    Database(tokio_postgres::Error),
}

/// One row that carries its own token.
pub(crate) async fn set_status(
    client: &impl GenericClient,
    token: FencingToken,
    invoice: i64,
    status: &str,
) -> Result<(), WriteError> {
    let updated = client
        .execute(UPDATE, &[&token.as_i64(), &invoice, &status])
        .await?;
    if updated == 0 {
        return Err(WriteError::Stale(token));
    }
    Ok(())
}

/// One row, to be written back changed: from here on no older holder writes it.
pub(crate) async fn status_to_change(
    client: &impl GenericClient,
    token: FencingToken,
    invoice: i64,
) -> Result<String, WriteError> {
    match client.query_opt(READ, &[&token.as_i64(), &invoice]).await? {
        Some(row) => Ok(row.get(0)),
        None => Err(WriteError::Stale(token)),
    }
}

/// One more row in a table that is only appended to.
pub(crate) async fn record_payment(
    client: &impl GenericClient,
    resource: &str,
    token: FencingToken,
    invoice: i64,
    cents: i64,
) -> Result<(), WriteError> {
    let inserted = client
        .execute(APPEND, &[&resource, &token.as_i64(), &invoice, &cents])
        .await?;
    if inserted == 0 {
        return Err(WriteError::Stale(token));
    }
    Ok(())
}

/// A transaction in which any statements are the newest holder's. It holds back other holders' until it ends.
pub(crate) async fn begin<'a>(
    client: &'a mut Client,
    resource: &str,
    token: FencingToken,
) -> Result<Transaction<'a>, WriteError> {
    let transaction = client.transaction().await?;
    let admitted = transaction
        .query_opt(FENCE, &[&resource, &token.as_i64()])
        .await?;
    if admitted.is_none() {
        transaction.rollback().await?; // the guard's row is locked by a refusal, too
        return Err(WriteError::Stale(token));
    }
    Ok(transaction)
}

impl From<tokio_postgres::Error> for WriteError {
    fn from(error: tokio_postgres::Error) -> Self {
        WriteError::Database(error)
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Stale(token) => write!(
                f,
                "refused: there was a newer holder than the one with token {token}"
            ),
            WriteError::Database(error) => write!(f, "the database failed: {error}"),
        }
    }
}

impl std::error::Error for WriteError {}
