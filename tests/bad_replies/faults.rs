//! A lying node is reported with the right fault, and counts again once it answers correctly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use quorlock::simulation::{Fault, NodeState, Unfit};
use quorlock::testbed::{Data, Testbed};
use quorlock::{AcquireError, Redlock};

use crate::common::{connect, eventually, unguarded};
use crate::targets::forgery::{Afterwards, ForgedReply};
use crate::targets::lying_proxy::LyingProxy;
use crate::targets::resp::Value;

const BUDGET: Duration = Duration::from_secs(2);
/// If a node grants the lock but answers otherwise, it keeps the key for this long.
const TTL: Duration = Duration::from_secs(16);

/// Returns a proxy that answers everything with `said` while the flag is set.
async fn lying_proxy(testbed: &Testbed, said: &[u8], then: Afterwards) -> (LyingProxy, Arc<AtomicBool>) {
    let lying = Arc::new(AtomicBool::new(false));
    let (lies, said) = (lying.clone(), said.to_vec());
    let forge_reply = move |truth: &Value| match lies.load(SeqCst) {
        true => ForgedReply {
            bytes: said.clone(),
            then,
        },
        false => ForgedReply::says(truth.write()),
    };
    let server = testbed.nodes()[0].direct_addr();
    (LyingProxy::start(server, Box::new(forge_reply)).await, lying)
}

async fn fault(redlock: &Redlock, resource: &str, budget: Duration) -> Fault {
    let lock = redlock.lock(resource).ttl(TTL).node_budget(budget);
    match lock.try_acquire().await {
        Err(AcquireError::NoQuorum { votes, .. }) => {
            let answer = votes.iter().next().unwrap().answer.clone();
            answer.expect("an answer").expect_err("a fault")
        }
        other => panic!("{other:?}"),
    }
}

fn is_protocol(fault: &Fault) -> bool {
    matches!(fault, Fault::Protocol { .. })
}

fn is_lost(fault: &Fault) -> bool {
    matches!(fault, Fault::ConnectionLost { .. } | Fault::Disconnected { .. })
}

fn is_of_a_cluster(fault: &Fault) -> bool {
    matches!(fault, Fault::Unfit(Unfit::ClusterMember))
}

/// Such replies count as neither "held" nor a grant (R5).
#[tokio::test]
async fn senseless_replies_are_faults_with_the_right_name() {
    type Row<'a> = (&'a [u8], Afterwards, fn(&Fault) -> bool);
    let ahead =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64 + 11 * 366 * 86_400_000_000;
    let counter = |counter: &str| format!("*2\r\n:{counter}\r\n:1\r\n").into_bytes();
    let (years_ahead, zero) = (counter(&ahead.to_string()), counter("0"));
    let (beyond, most) = (counter("9007199254740992"), counter("9223372036854775807"));
    let table: [Row<'_>; 33] = [
        (b"+OK\r\n", Afterwards::GoOn, is_protocol),
        (b":5\r\n", Afterwards::GoOn, is_protocol),
        (b"$-1\r\n", Afterwards::GoOn, is_protocol),
        (b"*-1\r\n", Afterwards::GoOn, is_protocol),
        (b"*0\r\n", Afterwards::GoOn, is_protocol),
        (b"*1\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (
            b"*2\r\n:1795000000000000\r\n:x\r\n",
            Afterwards::GoOn,
            is_protocol,
        ),
        (
            b"*2\r\n:1795000000000000\r\n*0\r\n",
            Afterwards::GoOn,
            is_protocol,
        ),
        (
            b"*2\r\n*3\r\n$1\r\n5\r\n$0\r\n\r\n:0\r\n:1\r\n",
            Afterwards::GoOn,
            is_protocol,
        ),
        (b"*2\r\n$-1\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (b"*3\r\n:1\r\n:1\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (b"*2\r\n:-9\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (&zero, Afterwards::GoOn, is_protocol),
        (&years_ahead, Afterwards::GoOn, is_protocol),
        (&beyond, Afterwards::GoOn, is_protocol),
        (&most, Afterwards::GoOn, is_protocol),
        (b"$3\r\n\xff\xfe\xfd\r\n", Afterwards::GoOn, is_protocol),
        (b"$-2\r\n", Afterwards::GoOn, is_protocol),
        (b":9223372036854775808\r\n", Afterwards::GoOn, is_protocol),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Afterwards::GoOn, is_protocol),
        (b"\r\n", Afterwards::GoOn, is_protocol),
        (b"_\r\n", Afterwards::GoOn, is_protocol),
        (b"%1\r\n+a\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (b">2\r\n+a\r\n:1\r\n", Afterwards::GoOn, is_protocol),
        (
            b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
            Afterwards::GoOn,
            is_protocol,
        ),
        (b"-MOVED 1 127.0.0.1:1\r\n", Afterwards::GoOn, is_of_a_cluster),
        (b"-ASK 1 127.0.0.1:1\r\n", Afterwards::GoOn, is_of_a_cluster),
        (b"-NOAUTH x\r\n", Afterwards::GoOn, |fault| {
            matches!(fault, Fault::Auth { .. })
        }),
        (b"-\r\n", Afterwards::GoOn, |fault| {
            matches!(fault, Fault::Server { .. })
        }),
        (b"$1000000000\r\n", Afterwards::GoOn, is_protocol),
        (b"*1000000000\r\n", Afterwards::GoOn, is_protocol),
        // The connection is given up in time.
        (b"", Afterwards::Silence, is_lost),
        (b"*3\r\n:179", Afterwards::Close, is_lost),
    ];
    let testbed = Testbed::start(1).await.unwrap();
    let judged = table.iter().enumerate().map(async |(row, (said, then, fits))| {
        let resource = format!("r{row}");
        let (lying_proxy, lying) = lying_proxy(&testbed, said, *then).await;
        let redlock = unguarded([lying_proxy.url()]).connect().await.unwrap();
        lying.store(true, SeqCst);
        // A busy machine may answer late, so the budget is short only where a time-out is right.
        let budget = match fits(&Fault::Timeout { after: BUDGET }) {
            true => BUDGET,
            false => TTL * 3 / 4,
        };
        let fault = fault(&redlock, &resource, budget).await;
        lying.store(false, SeqCst);
        // The client may have to connect again, and the clean-up of the first attempt to finish.
        let forgiven = format!("counts again after {}", said.escape_ascii());
        let lock = async || redlock.lock(&*resource).try_acquire().await;
        eventually(&forgiven, async || lock().await.is_ok()).await;
        redlock.shutdown().await;
        (!fits(&fault)).then(|| format!("{} is {fault:?}", said.escape_ascii()))
    });
    let wrong: Vec<String> = join_all(judged).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_node_that_lies_in_its_greeting_is_down_for_that_reason() {
    let testbed = Testbed::start(3).await.unwrap();
    let (lying_proxy, lying) = lying_proxy(&testbed, b"$5\r\nhello\r\n", Afterwards::GoOn).await;
    lying.store(true, SeqCst);
    let mut urls = testbed.urls();
    let before = connect(&testbed).await;
    urls[0] = lying_proxy.url();
    // What looks like a wrong list of nodes is refused when it is there from the beginning,
    let refused = unguarded(&urls).connect().await.unwrap_err();
    assert!(
        refused.to_string().contains("INFO could not be read"),
        "{refused}"
    );
    // Later, the node is down.
    lying.store(false, SeqCst);
    let redlock = unguarded(urls).connect().await.unwrap();
    lying.store(true, SeqCst);
    eventually("down", async || {
        let _ = redlock.lock("r").try_acquire().await;
        let state = redlock.nodes()[0].state.clone();
        matches!(state, NodeState::Down(Fault::Unfit(_)))
    })
    .await;
    let lease = redlock.lock("r").acquire().await.unwrap();
    assert_eq!(lease.votes().faults(), 1, "{}", lease.votes());
    drop((lease, before));
}

/// A node's clock is a century ahead, and another node is away, so the two known clocks disagree. The counter from the wrong
/// clock must not be passed on (F5).
#[tokio::test]
async fn a_clock_a_century_ahead_does_not_take_a_resource_away_from_the_others() {
    const CENTURY: i64 = 100 * 366 * 24 * 3_600;
    let forge_reply = move |truth: &Value| {
        let mut forged = truth.clone();
        match &mut forged {
            // TIME.
            Value::List(b'*', items) if matches!(&items[..], [Value::Text(b'$', _), Value::Text(b'$', micros)] if micros.len() <= 6) => {
                if let Value::Text(b'$', seconds) = &mut items[0] {
                    let forged: i64 = String::from_utf8_lossy(seconds).parse().unwrap();
                    *seconds = (forged + CENTURY).to_string().into();
                }
            }
            // An acquire's counter, started from that clock, and the time.
            Value::List(b'*', items) => {
                if let [Value::Int(counter), Value::Int(micros)] = &mut items[..] {
                    *micros += CENTURY * 1_000_000;
                    *counter = *micros;
                }
            }
            _ => {}
        }
        ForgedReply::says(forged.write())
    };
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("appendonly", "no")
        .start()
        .await
        .unwrap();
    let lying_proxy = LyingProxy::start(testbed.nodes()[0].direct_addr(), Box::new(forge_reply)).await;
    let mut urls = testbed.urls();
    urls[0] = lying_proxy.url();
    testbed.nodes()[2].kill().await.unwrap();
    let redlock = unguarded(urls).connect().await.unwrap();
    // Nothing that the two agree on.
    redlock.lock("r").try_acquire().await.unwrap_err();
    redlock.shutdown().await;

    testbed.nodes()[2].restart(Data::Wipe).await.unwrap();
    testbed.nodes()[0].kill().await.unwrap();
    let honest = connect(&testbed).await;
    let _ = honest.lock("r").acquire().await.unwrap().release().await;
}
