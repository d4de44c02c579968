//! Who holds a lock: in errors, in inspections and in lists. And taking a lock away from its holder.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::process;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use quorlock::node::OwnerToken;
use quorlock::{AcquireError, Holder, Inspection, KeyValue, Leak, Lease, LockStatus, LossReason, Redlock};

use crate::common::{PATIENCE, ask, eventually};
use crate::polled::polled;
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    let mut all = behaviours![false;
        a_refusal_names_the_holder,
        a_nested_acquire_is_held_by_this_process,
        an_anonymous_client_is_not_named,
        an_inspection_tells_the_holder_and_takes_nothing,
        a_key_of_another_library_has_no_holder,
        a_broken_lock_is_lost_and_goes_to_the_next_waiter,
        a_break_with_another_owner_deletes_nothing,
    ];
    all.extend(behaviours![true;
        all_locks_are_listed_once,
        a_list_goes_on_after_a_dropped_call,
        values_of_others_do_no_harm,
        a_client_that_has_died_is_known_until_its_locks_end,
        connections_carry_the_name,
    ]);
    all
}

async fn named(world: &World, name: &str) -> Redlock {
    world.builder().name(name).connect().await.unwrap()
}

fn holder(error: &AcquireError) -> Option<Holder> {
    match error {
        AcquireError::Held { holder, .. } => holder.clone(),
        other => panic!("{other}"),
    }
}

async fn refusal(redlock: &Redlock, resource: &str) -> AcquireError {
    let lock = redlock.lock(resource).node_budget(PATIENCE / 2).ttl(PATIENCE);
    lock.try_acquire().await.unwrap_err()
}

/// Asks until the nodes have told who the holder is. Returns the text of the error, too.
async fn known_holder(redlock: &Redlock, resource: &str) -> (Holder, String) {
    let found = Cell::new(None);
    eventually("the holder is known", async || {
        let error = refusal(redlock, resource).await;
        let known = holder(&error).filter(|holder| holder.info.is_some());
        let is_known = known.is_some();
        found.set(known.map(|holder| (holder, error.to_string())));
        is_known
    })
    .await;
    found.into_inner().unwrap()
}

async fn a_refusal_names_the_holder(world: &World) {
    let resource = world.resource("job");
    let before = SystemTime::now();
    let billing = named(world, "billing").await;
    let lease = billing.lock(&resource).ttl(world.ttl()).acquire().await.unwrap();
    world.spread(&resource).await;
    let (holder, text) = known_holder(&world.redlock().await, &resource).await;
    let info = holder.info.clone().unwrap();
    assert_eq!((&*info.name, info.pid), ("billing", process::id()));
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert!(!info.host.is_empty() && !holder.is_this_client);
    let earliest = before - Duration::from_millis(1);
    assert!(
        holder.since >= earliest && holder.since <= SystemTime::now(),
        "{holder:?}"
    );
    assert!(
        text.contains(&format!("held by billing on {} (pid ", info.host)),
        "{text}"
    );
    let _ = lease.release().await;
}

async fn a_nested_acquire_is_held_by_this_process(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let lease = redlock.lock(&resource).ttl(world.ttl()).acquire().await.unwrap();
    world.spread(&resource).await;
    let nested = redlock
        .lock(&resource)
        .ttl(world.ttl())
        .node_budget(world.generous_budget());
    let error = nested.try_acquire().await.unwrap_err();
    assert!(holder(&error).unwrap().is_this_client, "{error}");
    assert!(error.to_string().contains("held by this process"), "{error}");
    let _ = lease.release().await;
}

async fn an_anonymous_client_is_not_named(world: &World) {
    let resource = world.resource("job");
    let hidden = world.builder().anonymous().connect().await.unwrap();
    let lease = hidden.lock(&resource).ttl(world.ttl()).acquire().await.unwrap();
    world.spread(&resource).await;
    let lock = world.redlock().await.inspect(&resource).await.unwrap();
    let holder = lock.holder.clone().unwrap();
    assert_eq!((holder.info, holder.is_this_client), (None, false));
    assert_eq!(lock.owner(), Some(lease.owner()));
    let _ = lease.release().await;
}

async fn an_inspection_tells_the_holder_and_takes_nothing(world: &World) {
    let resource = world.resource("job");
    let (looks, holds) = (world.redlock().await, named(world, "holds").await);
    let free = looks.inspect(&resource).await.unwrap();
    assert_eq!(
        (free.status, free.keys(), free.holder),
        (LockStatus::Free, 0, None)
    );
    assert_eq!(world.copies(&resource).await, 0);

    let lease = holds
        .lock(&resource)
        .ttl(world.ttl())
        .watchdog(false)
        .acquire()
        .await
        .unwrap();
    world.spread(&resource).await;
    let held = looks.inspect(&resource).await.unwrap();
    assert_eq!(held.status, LockStatus::Held);
    assert_eq!(held.owner(), Some(lease.owner()));
    assert_eq!(held.holder.as_ref().unwrap().info.as_ref().unwrap().name, "holds");
    assert_eq!(held.keys(), world.live().len());
    assert!(held.remaining().unwrap() <= world.ttl());
    assert_eq!(held.counter(), lease.fencing_token().map(u64::from));
    let unknown = held.nodes.iter().filter(|node| node.key.is_err()).count();
    assert_eq!(unknown, world.nodes() - world.live().len());
    assert!(lease.is_held());
    let _ = lease.release().await;
    world.gone(&resource).await;
    assert_eq!(looks.inspect(&resource).await.unwrap().status, LockStatus::Free);
}

async fn a_key_of_another_library_has_no_holder(world: &World) {
    let resource = world.resource("job");
    world
        .tell::<String>("SET", &resource, &["somebody", "PX", "60000"])
        .await;
    let redlock = world.redlock().await;
    let lock = redlock.inspect(&resource).await.unwrap();
    assert_eq!(
        (lock.status, lock.owner(), lock.holder),
        (LockStatus::Held, None, None)
    );
    assert_eq!(holder(&refusal(&redlock, &resource).await), None);
    // A UUID of version 4, as quorlock 0.1 sets.
    let older = "6b0f3c5e-6a0e-4f0b-9d55-2f0c1d5f2a11";
    world.tell::<String>("SET", &resource, &[older]).await;
    let lock = redlock.inspect(&resource).await.unwrap();
    assert_eq!(lock.owner().map(|owner| owner.value()).as_deref(), Some(older));
    assert_eq!((&lock.holder, lock.remaining()), (&None, None));
    let text = refusal(&redlock, &resource).await.to_string();
    let is_told = text.contains("by themselves") || text.contains("by itself");
    assert!(text.contains("no expiry: ") && is_told, "{text}");
    world.delete(&resource).await;
}

/// A time that cannot be formatted, another writing of an owner token, and a large value.
async fn values_of_others_do_no_harm(world: &World) {
    let redlock = world.redlock().await;
    let large = "x".repeat(2 << 20);
    for value in [
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
        "01A22951-9B43-788F-A88B-4954003A191E",
        &large,
    ] {
        let resource = world.resource("job");
        world.tell::<String>("SET", &resource, &[value]).await;
        let lock = redlock.inspect(&resource).await.unwrap();
        assert_eq!((lock.status, &lock.holder), (LockStatus::Held, &None));
        let key = lock.nodes[0].key.clone().unwrap().value;
        match key {
            KeyValue::Owner(owner) => assert_eq!(owner.value(), value),
            KeyValue::Other(text) => assert_eq!(*text, value[..value.len().min(64)]),
            other => panic!("{other:?}"),
        }
        let text = refusal(&redlock, &resource).await.to_string();
        assert!(text.contains("already held"), "{text}");
    }
}

async fn a_broken_lock_is_lost_and_goes_to_the_next_waiter(world: &World) {
    let resource = world.resource("job");
    let (holds, waits, operator) = (
        world.redlock().await,
        world.redlock().await,
        world.redlock().await,
    );
    let ttl = Duration::from_secs(15);
    let lease = holds
        .lock(&resource)
        .ttl(ttl)
        .node_budget(ttl / 2)
        .forever()
        .acquire()
        .await
        .unwrap();
    world.spread(&resource).await;
    let next = tokio::spawn(
        waits
            .lock(&resource)
            .ttl(ttl)
            .node_budget(ttl / 2)
            .forever()
            .acquire(),
    );
    let shown = operator.inspect(&resource).await.unwrap().owner().unwrap();
    let votes = operator.break_lock(&resource, shown).await.unwrap();
    assert!(votes.yes() >= world.quorum(), "{votes}");
    let next = next.await.unwrap().unwrap();
    assert_ne!(next.owner(), shown);
    let lost = lease.lost().await;
    assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}");
    assert!(next.fencing_token() > lease.fencing_token() || next.fencing_token().is_none());
    let _ = next.release().await;
}

async fn a_break_with_another_owner_deletes_nothing(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, world.ttl()).await;
    let other = OwnerToken::from(7);
    let votes = world.redlock().await.break_lock(&resource, other).await.unwrap();
    assert_eq!((votes.yes(), votes.no()), (0, world.live().len()), "{votes}");
    assert_eq!(world.copies(&resource).await, world.live().len());
    let _ = lease.release().await;
}

async fn listed(redlock: &Redlock, pattern: &str, counters: bool) -> (Vec<Inspection>, usize) {
    let mut locks = match counters {
        true => redlock.locks_and_counters(pattern),
        false => redlock.locks(pattern),
    };
    let mut found = Vec::new();
    while let Some(lock) = locks.next().await {
        found.push(lock);
    }
    let faults = locks.faults().count();
    (found, faults)
}

/// Acquires locks, and waits for the nodes that a quorum did not wait for: a list may miss a lock that is acquired meanwhile.
async fn on_all_nodes(
    world: &World,
    redlock: &Redlock,
    prefix: &str,
    names: &BTreeSet<String>,
) -> Vec<Lease> {
    let acquire = |name: &String| {
        redlock
            .lock(name)
            .ttl(PATIENCE)
            .node_budget(PATIENCE / 2)
            .acquire()
    };
    let leases = join_all(names.iter().map(acquire)).await;
    let keys: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
    let count: Vec<&[u8]> = [&b"EXISTS"[..]]
        .into_iter()
        .chain(keys.iter().map(String::as_bytes))
        .collect();
    for url in world.live() {
        eventually("the keys are on each node", async || {
            ask::<usize>(url, &count).await.unwrap() == keys.len()
        })
        .await;
    }
    leases.into_iter().map(Result::unwrap).collect()
}

async fn all_locks_are_listed_once(world: &World) {
    // A prefix that is a pattern, too.
    let builder = || world.builder().key_prefix("list[1]*:");
    let holds = builder().name("holds").connect().await.unwrap();
    let looks = builder().connect().await.unwrap();
    // More than two pages.
    let names: BTreeSet<String> = (0..600).map(|number| format!("job/{number}")).collect();
    let leases = on_all_nodes(world, &holds, "list[1]*:", &names).await;
    let missing = world.nodes() - world.live().len();
    for (pattern, expected) in [("*", names.len()), ("job/1*", 111), ("job/17", 1), ("other*", 0)] {
        let (found, faults) = listed(&looks, pattern, false).await;
        assert_eq!(faults, missing);
        let found_names: BTreeSet<String> = found.iter().map(|lock| lock.resource.to_string()).collect();
        assert_eq!(
            (found.len(), found_names.len()),
            (expected, expected),
            "{pattern}"
        );
        let is_held = |lock: &Inspection| lock.status == LockStatus::Held;
        assert!(found.iter().all(is_held));
        let name = |lock: &Inspection| Some(lock.holder.as_ref()?.info.as_ref()?.name.clone());
        assert!(found.iter().all(|lock| name(lock).as_deref() == Some("holds")));
    }
    for released in join_all(leases.into_iter().map(|lease| lease.release())).await {
        drop(released);
    }
    leftovers_are_told_apart(world, &looks).await;
}

/// A dropped call loses no lock.
async fn a_list_goes_on_after_a_dropped_call(world: &World) {
    let builder = || world.builder().key_prefix("dropped:");
    let holds = builder().name("holds").connect().await.unwrap();
    let names = (0..20).map(|number| number.to_string()).collect();
    let leases = on_all_nodes(world, &holds, "dropped:", &names).await;
    let looks = builder().connect().await.unwrap();
    let mut locks = looks.locks("*");
    let (mut found, mut polls) = (BTreeSet::new(), 1);
    loop {
        match polled(locks.next(), polls).await {
            Some(Some(lock)) => assert!(found.insert(lock.resource.to_string()), "{} twice", lock.resource),
            Some(None) => break,
            None => {}
        }
        polls = polls % 40 + 1;
    }
    assert_eq!(found.len(), leases.len());
    drop(leases);
}

/// A key without an expiry, one on too few nodes, one of another type, and a counter without an expiry.
async fn leftovers_are_told_apart(world: &World, looks: &Redlock) {
    let key = |name: &str| format!("list[1]*:{name}");
    let tell = async |url: &String, words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let _: redis::Value = ask(url, &words).await.unwrap();
    };
    for url in world.live() {
        tell(
            url,
            &["SET", &key("endless"), "6b0f3c5e-6a0e-4f0b-9d55-2f0c1d5f2a11"],
        )
        .await;
        tell(url, &["HSET", &key("wrong"), "a", "b"]).await;
        tell(url, &["SET", &key("counted#fence"), "5"]).await;
    }
    // On the last node that answers, so that the first ones do not have it.
    let is_minority = world.nodes() > 1;
    if is_minority {
        let last = world.live().last().unwrap();
        tell(last, &["SET", &key("partial"), "somebody", "PX", "600000"]).await;
    }
    eventually("released locks are gone", async || {
        let (found, _) = listed(looks, "*", false).await;
        found.len() == 2 + usize::from(is_minority)
    })
    .await;
    let (found, _) = listed(looks, "*", true).await;
    let leaks = |name: &str| {
        let lock = found.iter().find(|lock| &*lock.resource == name);
        lock.map(|lock| lock.leaks(true)).unwrap_or_default()
    };
    assert_eq!(leaks("endless"), [Leak::Endless]);
    assert_eq!(leaks("wrong"), [Leak::WrongType]);
    assert_eq!(leaks("counted"), [Leak::EndlessCounter]);
    let (named, _) = listed(looks, "counted", true).await;
    assert_eq!(named.len(), 1, "a pattern is that of names, also for counters");
    let (named, _) = listed(looks, "endless", true).await;
    assert_eq!(named.len(), 1);
    assert_eq!(
        leaks("partial"),
        // With nodes missing, the others may have it, too.
        if is_minority && world.all_live() {
            vec![Leak::Partial]
        } else {
            vec![]
        }
    );
    // Counters of released locks expire by themselves.
    assert_eq!(leaks("job/17"), []);
    let wrong = looks.inspect("wrong").await.unwrap();
    assert_eq!(wrong.nodes[0].key.as_ref().unwrap().value, KeyValue::WrongType);
}

async fn a_client_that_has_died_is_known_until_its_locks_end(world: &World) {
    let resource = world.resource("job");
    let dies = named(world, "dies").await;
    std::mem::forget(
        dies.lock(&resource)
            .ttl(PATIENCE)
            .watchdog(false)
            .acquire()
            .await
            .unwrap(),
    );
    world.spread(&resource).await;
    drop(dies);
    let (holder, _) = known_holder(&world.redlock().await, &resource).await;
    assert_eq!(holder.info.unwrap().name, "dies");
}

async fn connections_carry_the_name(world: &World) {
    let _redlock = named(world, "a name").await;
    for url in world.live() {
        eventually("the connection has its name", async || {
            let clients: String = ask(url, &[b"CLIENT", b"LIST"]).await.unwrap();
            clients.contains(" name=quorlock/a_name/")
        })
        .await;
    }
}
