//! One of the processes that compete for the locks.

use std::process::ExitCode;
use std::time::Duration;

use quorlock::node::Reply;
use quorlock::{AcquireError, Lease, Redlock};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use crate::history::{BEGIN, ENDED, REFUSED_IN_TIME, RESOURCES, WON};
use crate::task::Task;

pub(crate) const TTL: Duration = Duration::from_secs(1);
const TASKS: usize = 2;

/// Takes locks until its input ends.
pub(crate) async fn work(task: Task) -> ExitCode {
    fastrand::seed(task.number);
    let over = CancellationToken::new();
    let builder = Redlock::builder()
        .urls(task.nodes.split(','))
        .ttl(TTL)
        .watchdog(false)
        .restart_guard(false);
    let redlock = builder
        .connect_timeout(Duration::from_secs(30))
        .connect()
        .await
        .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (client, connection) = tokio_postgres::connect(&task.database, NoTls).await.unwrap();
        tokio::spawn(connection);
        tasks.spawn(compete(redlock.clone(), client, over.clone()));
    }
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    over.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    redlock.shutdown().await;
    ExitCode::SUCCESS
}

async fn compete(redlock: Redlock, client: Client, over: CancellationToken) {
    let begin = client.prepare(BEGIN).await.unwrap();
    let won = client.prepare(WON).await.unwrap();
    let ended = client.prepare(ENDED).await.unwrap();
    while !over.is_cancelled() {
        let resource = fastrand::i32(0..RESOURCES);
        let began: i64 = client.query_one(&begin, &[]).await.unwrap().get(0);
        match redlock.lock(format!("job{resource}")).try_acquire().await {
            Ok(lease) => {
                let granted: i64 = client.query_one(&begin, &[]).await.unwrap().get(0);
                let token = lease.fencing_token().unwrap().as_i64();
                let raised = raised(&lease);
                if fastrand::u8(..) < 16 {
                    // Long enough for nodes to forget it meanwhile, and for somebody else to get it as well.
                    sleep(Duration::from_millis(fastrand::u64(30..100))).await;
                }
                let row = client
                    .query_one(&won, &[&resource, &token, &began, &granted, &raised])
                    .await
                    .unwrap();
                let admitted: bool = row.get(0);
                // Who was too late may have been overtaken. Who was not should not have been.
                if !admitted && lease.is_held() {
                    client
                        .execute(REFUSED_IN_TIME, &[&resource, &token])
                        .await
                        .unwrap();
                }
                let fate = fastrand::u8(..);
                if fate >= 16 {
                    client.execute(&ended, &[&resource, &token]).await.unwrap();
                }
                match fate {
                    // As if the process had died: nobody makes the counters agree again (F4).
                    0..16 => std::mem::forget(lease),
                    16..32 => drop(lease),
                    _ => {
                        let _ = lease.release().await;
                    }
                }
            }
            Err(AcquireError::Held { .. } | AcquireError::NoQuorum { .. } | AcquireError::TooLate { .. }) => {
                sleep(Duration::from_micros(fastrand::u64(500..5_000))).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether it took a second round to certify the token.
fn raised(lease: &Lease) -> bool {
    lease
        .votes()
        .iter()
        .any(|vote| matches!(vote.answer, Some(Ok(Reply::Raised { .. }))))
}
