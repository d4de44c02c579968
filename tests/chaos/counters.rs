//! What processes have counted, beside the history of what they did.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_postgres::{Client, NoTls};

use crate::counted::counted;
use crate::task::Task;

/// What both know, for each process: its number, the name of a counter, and the count. A lease that has just expired when it is
/// dropped counts as lost.
const TRUTH: &str = "
    SELECT worker, 'acquires_total acquired', count(*) FROM leases GROUP BY 1
    UNION ALL
    SELECT worker, 'acquires_total ' || CASE reason
            WHEN 'Held' THEN 'held' WHEN 'NoQuorum' THEN 'no_quorum' WHEN 'TooLate' THEN 'too_late'
            WHEN 'OtherNodes' THEN 'other_nodes' ELSE reason END, count(*)
        FROM failures GROUP BY 1, 2
    UNION ALL
    SELECT worker, 'releases_total ' || CASE ending
            WHEN 'released: Released' THEN 'released' WHEN 'released: AlreadyGone' THEN 'already_gone' ELSE 'uncertain' END,
            count(*)
        FROM leases WHERE ending LIKE 'released: %' GROUP BY 1, 2
    UNION ALL
    SELECT worker, 'lost or dropped', count(*) FROM leases
        WHERE ending LIKE 'lost: %' OR ending IN ('released: AlreadyGone', 'dropped') GROUP BY 1
    UNION ALL
    SELECT worker, 'stale_writes_refused_total', count(*) FROM writes JOIN leases USING (resource, token)
        WHERE value IS NULL GROUP BY 1";
const COUNTED: &str = "SELECT worker, what, count FROM counted";

/// Counts from now on, in all of this process.
pub(crate) fn record() -> PrometheusHandle {
    PrometheusBuilder::new().install_recorder().unwrap()
}

/// Writes down what was counted, if the process ends in order.
pub(crate) async fn write_down(prometheus: &PrometheusHandle, task: &Task) {
    let (client, connection) = tokio_postgres::connect(&task.database, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    // Some counters start at zero, where the history has nothing.
    let nonzero = counted(prometheus).into_iter().filter(|(_, count)| *count > 0.0);
    for (name, count) in nonzero {
        let what = match name.split(' ').next().unwrap() {
            "leases_lost_total" => "lost or dropped".to_owned(),
            _ if name == "releases_total dropped" => "lost or dropped".to_owned(),
            "acquires_total" | "releases_total" | "stale_writes_refused_total" => name,
            _ => continue,
        };
        *counts.entry(what).or_default() += count;
    }
    let insert = "INSERT INTO counted VALUES ($1, $2, $3)";
    for (what, count) in counts {
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&(task.number as i64), &what, &(count as i64)];
        client.execute(insert, &values).await.unwrap();
    }
}

/// Asserts that the processes that have ended in order have counted what they did. Returns how many there are.
pub(crate) async fn check(history: &Client) -> usize {
    let read = async |query: &str| {
        let rows = history.query(query, &[]).await.unwrap();
        let mut counts: BTreeMap<i64, BTreeMap<String, i64>> = BTreeMap::new();
        for row in rows {
            counts
                .entry(row.get(0))
                .or_default()
                .insert(row.get(1), row.get(2));
        }
        counts
    };
    let (counted, mut truth) = (read(COUNTED).await, read(TRUTH).await);
    truth.retain(|worker, _| counted.contains_key(worker));
    assert_eq!(counted, truth);
    counted.len()
}
