//! What happened, as a database has it.

use std::fmt;

use tokio_postgres::Client;

use crate::order::{Grant, in_order};
use crate::postgres::Database;

/// How many locks there are to compete for.
pub(crate) const RESOURCES: i32 = 16;

/// `moment` orders what happens in different processes: whoever draws later gets the larger number.
const TABLES: &str = "
    CREATE SEQUENCE moment;
    CREATE TABLE fences (resource INT PRIMARY KEY, token BIGINT NOT NULL);
    INSERT INTO fences SELECT resource, 0 FROM generate_series(0, 63) resource;
    CREATE TABLE grants (
        resource INT NOT NULL,
        token    BIGINT NOT NULL,
        began    BIGINT NOT NULL,  -- drawn before the attempt
        granted  BIGINT NOT NULL,  -- drawn after it
        won      BIGINT NOT NULL,  -- drawn with the first write
        ended    BIGINT,           -- drawn before the lease was given up; null if it was not
        raised   BOOL NOT NULL,    -- took a second round
        admitted BOOL NOT NULL,    -- first write, larger than all before it
        in_time  BOOL NOT NULL     -- refused, though its lease had not ended
    )";

/// Before an attempt.
pub(crate) const BEGIN: &str = "SELECT nextval('moment')";

/// After a grant: the first write under a lease. Parameters: resource, token, moments of the beginning and of the grant, whether
/// it took a second round.
pub(crate) const WON: &str = "
    WITH admitted AS (
        UPDATE fences SET token = $2 WHERE resource = $1 AND token < $2 RETURNING token
    )
    INSERT INTO grants
    SELECT $1, $2, $3, $4, nextval('moment'), NULL, $5, EXISTS (SELECT FROM admitted), false
    RETURNING admitted";

/// Before a lease is given up.
pub(crate) const ENDED: &str =
    "UPDATE grants SET ended = nextval('moment') WHERE resource = $1 AND token = $2";

/// The store has refused somebody who held the lock. If somebody with a larger token held it at that time, two held it. It may
/// also be that the other's whole lease fell into this one's attempt, and all counters were lost in between: neither began
/// after the other had won, so that their tokens may be in either order.
pub(crate) const REFUSED_IN_TIME: &str =
    "UPDATE grants SET in_time = true WHERE resource = $1 AND token = $2";

const TWO_HOLDERS: &str = "
    SELECT count(*) FROM grants refused
    WHERE in_time AND EXISTS (
        SELECT FROM grants newer
        WHERE newer.resource = refused.resource AND newer.token > refused.token
          AND newer.granted < refused.won
          AND (newer.ended IS NULL OR newer.ended > refused.granted)
    )";

pub(crate) struct History {
    client: Client,
}

pub(crate) struct Report {
    grants: usize,
    raised: usize,
    /// First writes that the store refused, for a newer one had come; and those among them whose lease had not ended.
    refused: (usize, usize),
    /// Of the latter, those while whose lease a newer one was held.
    two_holders: i64,
}

impl History {
    pub(crate) async fn begin(database: &Database) -> History {
        let client = database.connect().await;
        client.batch_execute(TABLES).await.unwrap();
        History { client }
    }

    pub(crate) async fn grants(&self) -> i64 {
        let row = self
            .client
            .query_one("SELECT count(*) FROM grants", &[])
            .await
            .unwrap();
        row.get(0)
    }

    /// I2: no token twice; and whoever began after another had won has the larger one. `exclusive`: and the lock never had
    /// two holders.
    pub(crate) async fn check(&self, exclusive: bool) -> Report {
        let order = "SELECT resource, token, began, granted, raised, admitted, in_time FROM grants ORDER BY resource, granted";
        let rows = self.client.query(order, &[]).await.unwrap();
        let mut report = Report {
            grants: rows.len(),
            raised: 0,
            refused: (0, 0),
            two_holders: 0,
        };
        for resource in 0..RESOURCES {
            let grants: Vec<Grant> = rows
                .iter()
                .filter(|row| row.get::<_, i32>(0) == resource)
                .map(|row| Grant {
                    token: row.get(1),
                    began: row.get(2),
                    won: row.get(3),
                })
                .collect();
            assert!(
                grants.len() > 10,
                "too little to learn from: {} grants",
                grants.len()
            );
            in_order(&grants);
        }
        for row in &rows {
            report.raised += usize::from(row.get::<_, bool>(4));
            report.refused.0 += usize::from(!row.get::<_, bool>(5));
            report.refused.1 += usize::from(row.get::<_, bool>(6));
        }
        assert!(report.raised > 0, "no second round was ever needed: {report}");
        let holders = self.client.query_one(TWO_HOLDERS, &[]).await.unwrap();
        report.two_holders = holders.get(0);
        assert!(
            !exclusive || report.two_holders == 0,
            "two holders at a time: {report}"
        );
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} grants, no token twice, none out of order; {} ({:.1} %) took a second round; {} first writes refused as stale, {} of them within their lease, {} while another held it",
            self.grants,
            self.raised,
            100.0 * self.raised as f64 / self.grants as f64,
            self.refused.0,
            self.refused.1,
            self.two_holders,
        )
    }
}
