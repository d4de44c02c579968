//! The history of a trial, in a database.

use rustix::time::{ClockId, clock_gettime};
use tokio_postgres::{Client, Statement};

/// How many locks there are to compete for: more where each is held for a moment only.
pub(crate) fn resources(guarded: bool) -> i32 {
    if guarded { 8 } else { 16 }
}

/// `moment` orders events of different processes: a number that is drawn later is larger. Times are those of [`now`].
pub(crate) const TABLES: &str = "
    CREATE SEQUENCE moment;
    CREATE TABLE leases (
        id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        worker   BIGINT NOT NULL,
        resource INT NOT NULL,
        token    BIGINT NOT NULL,
        began    BIGINT NOT NULL,  -- moment before the attempt
        won      BIGINT NOT NULL,  -- moment after it
        granters INT NOT NULL,     -- a bit for each node that is known to have granted it
        raised   BOOL NOT NULL,    -- its token took a second round
        start    BIGINT NOT NULL,  -- a time at which it was held
        seen     BIGINT NOT NULL,  -- the last time at which its holder saw it as held
        until    BIGINT NOT NULL,  -- its deadline, as its holder last saw it
        ended    BIGINT,           -- when its holder released it, or learned that it was lost
        ending   TEXT              -- how it ended
    );
    CREATE TABLE failures (worker BIGINT NOT NULL, reason TEXT NOT NULL, faults TEXT[] NOT NULL);
    -- What processes that ended in order have counted.
    CREATE TABLE counted (worker BIGINT NOT NULL, what TEXT NOT NULL, count BIGINT NOT NULL);
    -- Accepts tokens that are not smaller than the largest so far. A write reads and writes in one transaction.
    CREATE TABLE fenced (resource INT PRIMARY KEY, token BIGINT NOT NULL, value BIGINT NOT NULL);
    -- Accepts every write: the value that was read before, plus one.
    CREATE TABLE unfenced (resource INT PRIMARY KEY, writes BIGINT NOT NULL, value BIGINT NOT NULL);
    INSERT INTO fenced SELECT resource, 0, 0 FROM generate_series(0, 15) resource;
    INSERT INTO unfenced SELECT resource, 0, 0 FROM generate_series(0, 15) resource;
    CREATE TABLE writes (
        resource INT NOT NULL,
        token    BIGINT NOT NULL,
        value    BIGINT,                       -- in the fenced table; NULL if it was refused
        in_time  BOOL NOT NULL DEFAULT false   -- refused while the lease was held
    )";

const BEGIN: &str = "SELECT nextval('moment')";
const WON: &str = "
    INSERT INTO leases (worker, resource, token, began, won, granters, raised, start, seen, until)
    VALUES ($1, $2, $3, $4, nextval('moment'), $5, $6, $7, $7, $8) RETURNING id";
const READ: &str = "SELECT value FROM unfenced WHERE resource = $1";
const OVERWRITE: &str = "UPDATE unfenced SET value = $2, writes = writes + 1 WHERE resource = $1";
const WRITE: &str = "
    WITH admitted AS (
        UPDATE fenced SET token = $2, value = value + 1 WHERE resource = $1 AND token <= $2 RETURNING value
    )
    INSERT INTO writes SELECT $1, $2, (SELECT value FROM admitted) RETURNING value";
const REFUSED_IN_TIME: &str =
    "UPDATE writes SET in_time = true WHERE resource = $1 AND token = $2 AND value IS NULL";
const SEEN: &str = "UPDATE leases SET seen = $2, until = $3 WHERE id = $1";
const ENDS: &str = "UPDATE leases SET ended = $2 WHERE id = $1";
const ENDED: &str = "UPDATE leases SET ending = $2 WHERE id = $1";
const FAILED: &str = "INSERT INTO failures VALUES ($1, $2, $3)";

/// Returns the time in nanoseconds, on a clock that all processes share.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// One task's connection to the database.
pub(crate) struct Journal {
    client: Client,
    statements: Statements,
}

struct Statements {
    begin: Statement,
    won: Statement,
    read: Statement,
    overwrite: Statement,
    write: Statement,
    refused_in_time: Statement,
    seen: Statement,
    ends: Statement,
    ended: Statement,
    failed: Statement,
}

pub(crate) struct Won {
    pub(crate) worker: i64,
    pub(crate) resource: i32,
    pub(crate) token: i64,
    pub(crate) began: i64,
    pub(crate) granters: i32,
    pub(crate) raised: bool,
    pub(crate) start: i64,
    pub(crate) until: i64,
}

impl Journal {
    pub(crate) async fn open(client: Client) -> Journal {
        let statements = Statements {
            begin: client.prepare(BEGIN).await.unwrap(),
            won: client.prepare(WON).await.unwrap(),
            read: client.prepare(READ).await.unwrap(),
            overwrite: client.prepare(OVERWRITE).await.unwrap(),
            write: client.prepare(WRITE).await.unwrap(),
            refused_in_time: client.prepare(REFUSED_IN_TIME).await.unwrap(),
            seen: client.prepare(SEEN).await.unwrap(),
            ends: client.prepare(ENDS).await.unwrap(),
            ended: client.prepare(ENDED).await.unwrap(),
            failed: client.prepare(FAILED).await.unwrap(),
        };
        Journal { client, statements }
    }

    /// Returns the moment before an attempt.
    pub(crate) async fn begin(&self) -> i64 {
        self.client
            .query_one(&self.statements.begin, &[])
            .await
            .unwrap()
            .get(0)
    }

    /// Records a lease. Returns its number.
    pub(crate) async fn won(&self, won: &Won) -> i64 {
        let Won {
            worker,
            resource,
            token,
            began,
            granters,
            raised,
            start,
            until,
        } = won;
        let row = self
            .client
            .query_one(
                &self.statements.won,
                &[worker, resource, token, began, granters, raised, start, until],
            )
            .await;
        row.unwrap().get(0)
    }

    pub(crate) async fn failed(&self, worker: i64, reason: &str, faults: &[String]) {
        let failed = self
            .client
            .execute(&self.statements.failed, &[&worker, &reason, &faults])
            .await;
        failed.unwrap();
    }

    pub(crate) async fn read(&self, resource: i32) -> i64 {
        let row = self.client.query_one(&self.statements.read, &[&resource]).await;
        row.unwrap().get(0)
    }

    /// Writes to the table that accepts everything.
    pub(crate) async fn overwrite(&self, resource: i32, value: i64) {
        let done = self
            .client
            .execute(&self.statements.overwrite, &[&resource, &value])
            .await;
        done.unwrap();
    }

    /// Writes to the table that checks tokens. Returns whether the write was accepted.
    pub(crate) async fn write(&self, resource: i32, token: i64) -> bool {
        let row = self
            .client
            .query_one(&self.statements.write, &[&resource, &token])
            .await;
        row.unwrap().get::<_, Option<i64>>(0).is_some()
    }

    /// Records that the store refused a holder's write: then two held the lock.
    pub(crate) async fn refused_in_time(&self, resource: i32, token: i64) {
        let done = self
            .client
            .execute(&self.statements.refused_in_time, &[&resource, &token])
            .await;
        done.unwrap();
    }

    /// Records that the lease is held at a time, and its deadline.
    pub(crate) async fn seen(&self, lease: i64, time: i64, until: i64) {
        let done = self
            .client
            .execute(&self.statements.seen, &[&lease, &time, &until])
            .await;
        done.unwrap();
    }

    /// Records the end of a lease, before the lock is released: the next lease begins later.
    pub(crate) async fn ends(&self, lease: i64, time: i64) {
        let done = self.client.execute(&self.statements.ends, &[&lease, &time]).await;
        done.unwrap();
    }

    pub(crate) async fn ended(&self, lease: i64, how: &str) {
        let done = self.client.execute(&self.statements.ended, &[&lease, &how]).await;
        done.unwrap();
    }
}
