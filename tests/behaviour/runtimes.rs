//! Calls from any runtime or from none, also after the manager's runtime has ended (T6).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Once, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use quorlock::node::{Fault, NodeState};
use quorlock::{
    AcquireError, ConnectError, ExtendError, Lease, Redlock, RedlockBuilder, ReleaseOutcome, RunError,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::common::PATIENCE;
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        dropping_a_lease_after_its_runtime_neither_panics_nor_blocks,
        a_lease_may_be_taken_from_another_runtime,
        a_lock_needs_no_timers_where_it_is_used,
        once_its_runtime_has_ended_every_call_says_so,
        waiters_learn_that_the_runtime_has_ended,
        connecting_needs_timers_and_io,
    ]
}

#[derive(Clone, Copy, Debug)]
enum From {
    WholeRuntime,
    RuntimeWithoutTimers,
    BareRuntime,
    NoRuntime,
}

const ELSEWHERE: [From; 4] = [
    From::WholeRuntime,
    From::RuntimeWithoutTimers,
    From::BareRuntime,
    From::NoRuntime,
];

impl From {
    fn block_on<T>(self, call: impl Future<Output = T>) -> T {
        match self {
            From::WholeRuntime => whole().block_on(call),
            From::RuntimeWithoutTimers => Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap()
                .block_on(call),
            From::BareRuntime => Builder::new_current_thread().build().unwrap().block_on(call),
            From::NoRuntime => without_runtime(call),
        }
    }
}

fn whole() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn without_runtime<T>(call: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(output) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Connects and takes leases on a new runtime, and ends that runtime.
fn ended(builder: RedlockBuilder, resources: &[String], ttl: Duration) -> (Redlock, Vec<Lease>) {
    let runtime = whole();
    runtime.block_on(async {
        let redlock = builder.connect().await.unwrap();
        let mut leases = Vec::new();
        for resource in resources {
            let lock = redlock.lock(resource.as_str()).ttl(ttl);
            leases.push(lock.acquire().await.unwrap());
        }
        (redlock, leases)
    })
}

async fn dropping_a_lease_after_its_runtime_neither_panics_nor_blocks(world: &World) {
    let builder = world.builder();
    let resource = world.resource("job");
    let (done, waiting) = mpsc::channel();
    thread::spawn(move || {
        let (redlock, mut leases) = ended(builder, &[resource], Duration::from_secs(3));
        let lease = leases.remove(0);
        let handle = lease.handle();
        drop(lease);
        drop((redlock, handle));
        done.send(()).unwrap();
    });
    let done = spawn_blocking(move || waiting.recv_timeout(PATIENCE));
    done.await
        .unwrap()
        .expect("dropping the lease panicked or blocked");
}

async fn a_lease_may_be_taken_from_another_runtime(world: &World) {
    count_panics();
    let redlock = world.redlock().await;
    for _ in 0..10 {
        let resource = world.resource("job");
        let lock = redlock.lock(resource.as_str());
        let elsewhere = spawn_blocking(move || whole().block_on(lock.acquire()).unwrap());
        let lease = elsewhere.await.unwrap();
        // The caller's runtime has ended before all answers came. The lease uses the manager's.
        assert!(lease.extend().await.is_ok());
        drop(lease);
        world.gone(&resource).await;
    }
    assert_eq!(PANICS.load(Relaxed), 0, "a task used a runtime that has ended");
}

/// Subscribes at once. The returned future completes when a process announces that it waits.
async fn waits(world: &World, resource: &str) -> impl Future<Output = ()> {
    let node = redis::Client::open(world.live()[0].as_str()).unwrap();
    let mut announced = node.get_async_pubsub().await.unwrap();
    announced
        .psubscribe(format!("quorlock:{resource}#free*"))
        .await
        .unwrap();
    async move {
        let mut messages = announced.on_message();
        let says = async {
            while let Some(message) = messages.next().await {
                if message.get_payload::<String>().unwrap().starts_with('w') {
                    return;
                }
            }
        };
        timeout(PATIENCE, says)
            .await
            .expect("no process announced that it waits");
    }
}

async fn a_lock_needs_no_timers_where_it_is_used(world: &World) {
    count_panics();
    let redlock = world.redlock().await;
    let other = world.redlock().await;
    for from in ELSEWHERE {
        // The waiter announces itself, and is notified of the release.
        let resource = world.resource("job");
        let lock = |redlock: &Redlock| redlock.lock(resource.as_str()).ttl(world.ttl());
        let held = lock(&other).acquire().await.unwrap();
        let said_that_it_waits = waits(world, &resource).await;
        let waiting = lock(&redlock).forever().acquire();
        let waiting = spawn_blocking(move || from.block_on(waiting).map(drop));
        said_that_it_waits.await;
        assert_eq!(held.release().await, ReleaseOutcome::Released);
        waiting.await.unwrap().unwrap();
        let (redlock, resource) = (redlock.clone(), world.resource("job"));
        let (ttl, budget) = (world.ttl(), world.generous_budget());
        let calls = async move {
            let lock = || redlock.lock(resource.as_str()).ttl(ttl).node_budget(budget);
            let lease = lock().try_acquire().await.unwrap();
            let waiting = lock().within(Duration::from_millis(20)).acquire().await;
            assert!(matches!(waiting, Err(AcquireError::Held { .. })), "{waiting:?}");
            assert!(lease.extend().await.is_ok());
            assert_eq!(lease.release().await, ReleaseOutcome::Released);
            assert_eq!(lock().run(|_| async { 7 }).await.unwrap(), 7);
            let detached = lock().acquire().await.unwrap().detach().unwrap();
            let lease = redlock.attach(&detached).await.unwrap();
            assert_eq!(
                redlock.inspect(&resource).await.unwrap().owner(),
                Some(lease.owner())
            );
            assert!(redlock.locks(&resource).next().await.is_some());
            let broken = redlock.break_lock(&resource, lease.owner()).await.unwrap();
            assert!(broken.yes() >= broken.quorum(), "{broken}");
            assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
            let lease = lock()
                .max_hold(Duration::from_millis(20))
                .acquire()
                .await
                .unwrap();
            lease.lost().await;
            redlock
        };
        let called: BoxFuture<'static, Redlock> = Box::pin(calls);
        spawn_blocking(move || drop(from.block_on(called))).await.unwrap();
    }
    let called = spawn_blocking(move || From::NoRuntime.block_on(redlock.shutdown()));
    called.await.unwrap();
    assert_eq!(PANICS.load(Relaxed), 0);
}

async fn once_its_runtime_has_ended_every_call_says_so(world: &World) {
    for from in ELSEWHERE {
        let (builder, resource) = (world.builder(), world.resource("job"));
        let resources: Vec<String> = (0..3).map(|_| world.resource("held")).collect();
        let calls = move || {
            let (redlock, mut leases) = ended(builder, &resources, Duration::from_secs(600));
            let (released, extended, lost) = (leases.remove(0), leases.remove(0), leases.remove(0));
            for node in redlock.nodes() {
                let NodeState::Down(Fault::Disconnected { reason }) = node.state else {
                    panic!("{node:?}")
                };
                assert!(reason.contains("runtime"), "{reason}");
            }
            from.block_on(async {
                let lock = || redlock.lock(resource.as_str());
                let outcomes = [
                    lock().try_acquire().await.map(drop),
                    lock().acquire().await.map(drop),
                    lock().forever().acquire().await.map(drop),
                ];
                for outcome in outcomes {
                    assert!(matches!(outcome, Err(AcquireError::RuntimeEnded)), "{outcome:?}");
                }
                let ran = lock().run(|_| async {}).await;
                assert!(matches!(ran, Err(RunError::Acquire(AcquireError::RuntimeEnded))));
                match extended.extend().await {
                    Err(ExtendError::NoQuorum { votes }) => assert_tells(&votes.to_string()),
                    other => panic!("{other:?}"),
                }
                match released.release().await {
                    ReleaseOutcome::Uncertain(votes) => assert_tells(&votes.to_string()),
                    other => panic!("{other:?}"),
                }
                assert!(lost.cancellation_token().is_cancelled());
                // A timer works, too.
                let lead = lost.remaining().saturating_sub(Duration::from_millis(300));
                lost.expiring(lead).await;
                redlock.shutdown().await;
            });
        };
        spawn_blocking(calls).await.unwrap();
    }
}

fn assert_tells(message: &str) {
    assert!(
        message.contains("the runtime that it was connected on has ended"),
        "{message}"
    );
}

async fn waiters_learn_that_the_runtime_has_ended(world: &World) {
    let resource = world.resource("job");
    let holder = world.redlock().await;
    let _held = holder.lock(resource.as_str()).acquire().await.unwrap();
    for from in ELSEWHERE {
        let (builder, resource) = (world.builder(), resource.clone());
        let calls = move || {
            let runtime = whole();
            let redlock = runtime.block_on(builder.connect()).unwrap();
            let mut waiting = Box::pin(redlock.lock(resource).forever().acquire());
            // The wait begins on the manager's runtime, and goes on elsewhere.
            runtime.block_on(async {
                let waits = tokio::time::timeout(Duration::from_millis(50), &mut waiting);
                waits.await.map(drop).unwrap_err();
            });
            thread::scope(|threads| {
                let waiting = threads.spawn(move || from.block_on(waiting).map(drop));
                drop(runtime);
                let outcome = waiting.join().unwrap();
                assert!(matches!(outcome, Err(AcquireError::RuntimeEnded)), "{outcome:?}");
            });
        };
        spawn_blocking(calls).await.unwrap();
    }
}

async fn connecting_needs_timers_and_io(world: &World) {
    let mut without_timers = Builder::new_current_thread();
    without_timers.enable_io();
    let mut without_io = Builder::new_current_thread();
    without_io.enable_time();
    for (mut runtime, lacks) in [(without_timers, "enable_time"), (without_io, "enable_io")] {
        let (connects, asks) = (world.builder(), world.builder());
        let called = spawn_blocking(move || {
            let runtime = runtime.build().unwrap();
            let connected = runtime.block_on(connects.connect()).map(drop);
            (connected, runtime.block_on(asks.registrations()).unwrap())
        });
        let (connected, found) = called.await.unwrap();
        let error = connected.unwrap_err();
        assert!(
            matches!(error, ConnectError::IncompleteRuntime { needs } if needs == lacks),
            "{error}"
        );
        assert_eq!(found.faults.len(), world.nodes());
        for (_, fault) in found.faults {
            assert!(fault.to_string().contains(lacks), "{fault}");
        }
    }
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics about a runtime that has ended, in any test.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.to_string().contains("being shutdown") {
                PANICS.fetch_add(1, Relaxed);
            }
            hook(panic);
        }));
    });
}
