//! PostgreSQL's advisory locks: each waiter has a session, and waits in the server or polls.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::{Client, NoTls, Statement};

use crate::contender::{Contender, ContenderKind, Failure};
use crate::servers::Addresses;

const EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Advisory {
    client: Client,
    lock: Statement,
    unlock: Statement,
    polls: bool,
}

impl Contender for Advisory {
    type Held = String;

    async fn connect(
        who: ContenderKind,
        addresses: &Addresses,
        waiters: usize,
    ) -> Result<Vec<Self>, Failure> {
        let address = addresses.postgres.as_deref().ok_or("no server")?;
        let polls = who == ContenderKind::PostgresPolling;
        let mut sessions = Vec::new();
        for _ in 0..waiters {
            let session = Advisory::open(address, polls).await;
            sessions.push(session.map_err(|error| error.to_string())?);
        }
        Ok(sessions)
    }

    async fn acquire(&self, key: &str) -> Result<String, Failure> {
        loop {
            let asked = self.client.query_one(&self.lock, &[&key]).await;
            let answer = asked.map_err(|error| error.to_string())?;
            if !self.polls || answer.get(0) {
                return Ok(key.to_owned());
            }
            sleep(EVERY).await;
        }
    }

    async fn release(&self, key: String) -> Result<(), Failure> {
        let asked = self.client.query_one(&self.unlock, &[&key]).await;
        match asked.map_err(|error| error.to_string())?.get(0) {
            true => Ok(()),
            false => Err("was not held".into()),
        }
    }
}

impl Advisory {
    async fn open(address: &str, polls: bool) -> Result<Advisory, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
        tokio::spawn(connection); // ends with the client
        let how = if polls {
            "pg_try_advisory_lock"
        } else {
            "pg_advisory_lock"
        };
        let call = |function| format!("SELECT {function}(hashtextextended($1, 0))");
        Ok(Advisory {
            lock: client.prepare(&call(how)).await?,
            unlock: client.prepare(&call("pg_advisory_unlock")).await?,
            client,
            polls,
        })
    }
}
