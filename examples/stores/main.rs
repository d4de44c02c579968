//! A database that refuses stale writers. Give it tokens as leases have them, in any order, and see who gets in:
//!
//! ```text
//! DATABASE_URL=postgres://me@localhost/test cargo run --example stores -- 33 34 33
//! ```
//!
//! Everything happens in temporary tables: the database is as it was afterwards. The SQL is in the files beside this one;
//! `docs/stores.md` explains it.

mod postgres;

use std::error::Error;

use postgres::{SCHEMA, WriteError, begin, record_payment, set_status, status_to_change};
use quorlock::FencingToken;
use tokio_postgres::{Client, NoTls};

const RESOURCE: &str = "invoice:42";
const INVOICE: i64 = 42;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is to name a PostgreSQL database")?;
    let tokens: Vec<FencingToken> = std::env::args()
        .skip(1)
        .map(|token| token.parse().map_err(|error| format!("{token}: {error}")))
        .collect::<Result<_, _>>()?;
    if tokens.is_empty() {
        return Err("give one or more tokens, such as 33 34 33".into());
    }

    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(&SCHEMA.replace("CREATE TABLE", "CREATE TEMPORARY TABLE"))
        .await?;
    client
        .execute(
            "INSERT INTO invoices (id, status) VALUES ($1, 'open')",
            &[&INVOICE],
        )
        .await?;

    for token in tokens {
        match settle(&mut client, token).await {
            Ok(()) => println!("{token}: written"),
            Err(error @ WriteError::Stale(_)) => println!("{error}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What one holder does: a look at the row that it is to change, a write of one statement, then several that depend on what it
/// reads.
async fn settle(client: &mut Client, token: FencingToken) -> Result<(), WriteError> {
    if status_to_change(client, token, INVOICE).await? == "paid" {
        return Ok(());
    }
    record_payment(client, RESOURCE, token, INVOICE, 1000).await?;

    let transaction = begin(client, RESOURCE, token).await?;
    let paid: i64 = transaction
        .query_one(
            "SELECT sum(cents)::BIGINT FROM payments WHERE invoice = $1",
            &[&INVOICE],
        )
        .await?
        .get(0);
    let status = if paid < 2000 { "partly paid" } else { "paid" };
    set_status(&transaction, token, INVOICE, status).await?;
    transaction.commit().await?;
    Ok(())
}
