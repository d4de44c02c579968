//! Clocks that jump: the machine is suspended, or nodes' clocks are put forward (R4).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{AcquireError, Lease, LeaseHandle, LossReason, Redlock, RedlockBuilder, RunError};
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::{Plan, ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

const TTL: Duration = ms(3_000);
/// The TTL less 1 % and 2 ms.
const VALID: Duration = ms(2_968);

/// Tells the library that the machine was suspended.
#[derive(Clone, Default)]
struct Machine(Arc<AtomicU64>);

impl Machine {
    fn builder(&self) -> RedlockBuilder {
        let slept = self.0.clone();
        Redlock::builder().suspended_time(move || ms(slept.load(SeqCst)))
    }

    fn suspend(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, SeqCst);
    }
}

async fn acquire(redlock: &Redlock, watchdog: bool) -> Lease {
    let request = redlock.lock("job").ttl(TTL).watchdog(watchdog);
    request.try_acquire().await.unwrap()
}

fn obedient(nodes: usize) -> Vec<Arc<ScriptedNode>> {
    scripted_nodes(nodes, |_, action| at_once(Ok(yes(action))))
}

fn extensions(node: &ScriptedNode) -> usize {
    node.calls().iter().filter(|call| call.is_extend()).count()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_machine_slept_through_is_lost() {
    for watchdog in [true, false] {
        let machine = Machine::default();
        let nodes = obedient(3);
        let lease = acquire(&redlock(&nodes, machine.builder()), watchdog).await;
        sleep(ms(500)).await;
        let before = lease.remaining();
        assert!(lease.is_held());
        machine.suspend(before);
        // At once, before any task has run.
        assert!(!lease.is_held());
        assert_eq!(lease.remaining(), ms(0));
        assert!(lease.deadline() <= Instant::now().into_std());
        let lost = timeout(ms(150), lease.lost())
            .await
            .expect("the loss was not reported");
        assert!(
            matches!(lost.reason, LossReason::Suspended { slept } if slept == before),
            "{lost}"
        );
        assert_eq!(extensions(&nodes[0]), 0, "the lost lease was renewed");
        lease.extend().await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_outlives_a_suspension_is_renewed_at_once() {
    let machine = Machine::default();
    let nodes = obedient(3);
    let lease = acquire(&redlock(&nodes, machine.builder()), true).await;
    sleep(ms(500)).await;
    let deadline = lease.deadline();
    machine.suspend(ms(2_000));
    assert_eq!(lease.deadline(), deadline - ms(2_000));
    assert!(lease.is_held());
    sleep(ms(150)).await;
    assert_eq!(extensions(&nodes[0]), 1);
    assert!(lease.remaining() > ms(2_500));
    sleep(ms(10_000)).await;
    assert!(lease.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_suspension_before_the_answers_come_is_counted() {
    let machine = Machine::default();
    let asleep = machine.clone();
    let nodes = scripted_nodes(3, move |_, action| {
        if matches!(action, Action::Acquire { .. }) {
            asleep.suspend(TTL);
        }
        Plan::Answer(ms(1), Ok(yes(action)))
    });
    let error = redlock(&nodes, machine.builder())
        .lock("job")
        .ttl(TTL)
        .try_acquire();
    let error = error.await.unwrap_err();
    assert!(matches!(error, AcquireError::TooLate { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn scoped_work_does_not_go_on_after_a_suspension() {
    let machine = Machine::default();
    let redlock = redlock(&obedient(3), machine.builder());
    let asleep = machine.clone();
    let run = redlock.lock("job").ttl(TTL).run(|_| async move {
        asleep.suspend(TTL);
        sleep(Duration::MAX).await;
    });
    let error = timeout(ms(200), run).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, RunError::Lost(lost) if matches!(lost.reason, LossReason::Suspended { .. })),
        "{error}"
    );
}

/// Sends requests to all nodes. Their answers show their clocks.
async fn touch(redlock: &Redlock) {
    let other = redlock.lock("other").ttl(TTL).watchdog(false).try_acquire();
    let _ = other.await;
}

#[tokio::test(start_paused = true)]
async fn a_minority_of_clocks_put_forward_changes_nothing() {
    let nodes = obedient(5);
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, false).await;
    let deadline = lease.deadline();
    nodes[0].put_forward(ms(3_600_000));
    nodes[4].put_forward(ms(3_600_000));
    touch(&redlock).await;
    assert!(lease.is_held());
    assert_eq!(lease.deadline(), deadline);
}

#[tokio::test(start_paused = true)]
async fn a_quorum_of_clocks_put_forward_shortens_the_lease() {
    let nodes = obedient(5);
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, false).await;
    let deadline = lease.deadline();
    for (node, by) in [(0, 1_000), (1, 1_500), (2, 2_000)] {
        nodes[node].put_forward(ms(by));
    }
    touch(&redlock).await;
    assert_eq!(
        lease.deadline(),
        deadline - ms(1_000),
        "the two unchanged clocks, and the first of the others"
    );
    sleep(VALID - ms(1_000)).await;
    let lost = timeout(ms(1), lease.lost()).await.unwrap();
    let LossReason::ClockPutForward { nodes } = &lost.reason else {
        panic!("{lost}")
    };
    assert_eq!(nodes.len(), 3, "{lost}");
}

#[tokio::test(start_paused = true)]
async fn clocks_put_forward_beyond_the_deadline_end_the_lease_at_once() {
    let nodes = scripted_nodes(3, |_, action| match action {
        Action::Extend { .. } => at_once(Err(Fault::OutOfMemory)),
        action => at_once(Ok(yes(action))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, true).await;
    nodes[1].put_forward(TTL);
    nodes[2].put_forward(TTL);
    assert!(lease.is_held(), "no answer has shown the step yet");
    touch(&redlock).await;
    assert!(!lease.is_held());
    let lost = timeout(ms(1), lease.lost()).await.unwrap();
    assert!(
        matches!(lost.reason, LossReason::ClockPutForward { .. }),
        "{lost}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_makes_good_what_the_clocks_took() {
    let nodes = obedient(3);
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, true).await;
    sleep(ms(300)).await;
    nodes.iter().for_each(|node| node.put_forward(ms(1_000)));
    touch(&redlock).await;
    sleep(ms(1)).await;
    assert_eq!(extensions(&nodes[0]), 1, "at once");
    assert_eq!(lease.remaining(), VALID - ms(1));
    // The step is subtracted only once.
    sleep(ms(20_000)).await;
    assert!(lease.is_held());
}

/// A node that confirms an extension has the key, whatever its clock did before.
#[tokio::test(start_paused = true)]
async fn an_extension_counts_in_spite_of_a_clock_that_was_put_forward_before() {
    let nodes = obedient(3);
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, false).await;
    sleep(ms(100)).await;
    nodes.iter().for_each(|node| node.put_forward(ms(1_000)));
    let left = lease.extend().await.unwrap();
    // Only the answers show the step, so it may have come after this extension.
    assert!(left >= VALID - ms(1_000), "{left:?}");
    assert_eq!(lease.extend().await.unwrap(), VALID);
    let _ = Reply::Extended;
}

/// A step after the node has extended the key shortens the key's life.
#[tokio::test(start_paused = true)]
async fn a_clock_put_forward_while_an_extension_is_in_flight_shortens_it() {
    let nodes = scripted_nodes(3, |_, action| match action {
        Action::Extend { .. } => Plan::Answer(ms(100), Ok(Reply::Extended)),
        action => at_once(Ok(yes(action))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, false).await;
    sleep(ms(1_500)).await;
    let step = async {
        sleep(ms(50)).await;
        nodes.iter().for_each(|node| node.put_forward(ms(1_000)));
    };
    let (left, ()) = tokio::join!(lease.extend(), step);
    assert_eq!(left.unwrap(), VALID - ms(100) - ms(1_000));
}

/// Returns nodes whose clocks are put forward by `by` before they grant. Their answers to the acquire show that.
fn ahead_before_they_grant(by: Duration) -> Vec<Arc<ScriptedNode>> {
    (0..3)
        .map(|number| {
            Arc::new_cyclic(|this: &Weak<ScriptedNode>| {
                let (this, mut by, mut held) = (this.clone(), by, false);
                ScriptedNode::with_script(number, move |action| {
                    if let (Action::Acquire { .. }, Some(this)) = (action, this.upgrade()) {
                        this.put_forward(std::mem::take(&mut by));
                    }
                    at_once(Ok(match action {
                        Action::Acquire { .. } if std::mem::replace(&mut held, true) => Reply::Held {
                            remaining: None,
                            holder: None,
                        },
                        Action::Release { .. } => {
                            held = false;
                            Reply::Released { notified: false }
                        }
                        action => yes(action),
                    }))
                })
            })
        })
        .collect()
}

/// The step may have come before or after the grant. It counts as after.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_short_from_the_beginning_is_renewed_before_it_ends() {
    let redlock = redlock(&ahead_before_they_grant(ms(2_500)), Redlock::builder());
    let lease = acquire(&redlock, true).await;
    sleep(ms(20_000)).await;
    assert!(lease.is_held());
}

/// The library asked nothing for a day, and the clocks were set meanwhile.
#[tokio::test(start_paused = true)]
async fn clocks_that_were_put_forward_long_ago_cost_no_lock() {
    let redlock = redlock(&ahead_before_they_grant(ms(60_000)), Redlock::builder());
    let lease = acquire(&redlock, false).await;
    assert!(lease.remaining() > ms(2_900), "{lease:?}");
}

/// A clock that runs too fast is a little further ahead at each answer.
#[tokio::test(start_paused = true)]
async fn small_steps_cost_no_renewal_each() {
    let nodes = obedient(3);
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, true).await;
    for _ in 0..50 {
        nodes.iter().for_each(|node| node.put_forward(ms(5)));
        touch(&redlock).await;
        sleep(ms(10)).await;
    }
    assert_eq!(extensions(&nodes[0]), 0, "after a sixth of the TTL");
    // The steps are subtracted, and the next renewal makes good for them.
    sleep(ms(251)).await;
    assert_eq!(extensions(&nodes[0]), 1, "a quarter of a second before its time");
    assert!(lease.remaining() > ms(2_900), "{lease:?}");
}

/// The machine is suspended beyond the deadline at the moment at which a renewal is confirmed.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_seen_to_be_over_is_not_held_again() {
    let slept = Arc::new(AtomicU64::new(0));
    // Counts the looks at the clock since the extension was sent.
    let looks = Arc::new(AtomicU64::new(u64::MAX / 2));
    let seen = Arc::new(AtomicBool::new(true));
    let watched = Arc::new(OnceLock::<LeaseHandle>::new());
    let (time, look, held, lease) = (slept.clone(), looks.clone(), seen.clone(), watched.clone());
    let machine = Redlock::builder().suspended_time(move || {
        if look.fetch_add(1, SeqCst) == 1 {
            time.fetch_add(2_000, SeqCst);
            held.store(lease.get().unwrap().is_held(), SeqCst);
        }
        ms(time.load(SeqCst))
    });
    let nodes = scripted_nodes(3, move |node, action| {
        if node == 2 && matches!(action, Action::Extend { .. }) {
            looks.store(0, SeqCst);
        }
        at_once(Ok(yes(action)))
    });
    let lease = acquire(&redlock(&nodes, machine), false).await;
    watched.set(lease.handle()).ok().unwrap();
    sleep(ms(1_500)).await;
    let outcome = lease.extend().await;
    assert!(
        !seen.load(SeqCst),
        "the lease had not ended during the suspension"
    );
    assert!(outcome.is_err() && !lease.is_held(), "{outcome:?}, {lease:?}");
}

/// The third node has the key as well, although the attempt did not wait for its answer.
#[tokio::test(start_paused = true)]
async fn a_minority_of_clocks_changes_nothing_for_a_new_lease_either() {
    let nodes = scripted_nodes(3, |node, action| {
        Plan::Answer(ms(if node == 2 { 10 } else { 1 }), Ok(yes(action)))
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let lease = acquire(&redlock, false).await;
    sleep(ms(50)).await;
    let deadline = lease.deadline();
    nodes[0].put_forward(ms(1_000));
    touch(&redlock).await;
    assert_eq!(lease.deadline(), deadline, "the two others keep it");
}
