//! An error has the same name on every server, in commands and in scripts. `src/redis/fault_samples.tsv` has every wording.

use std::fs;

use quorlock::Redlock;
use quorlock::testbed::{TestNode, Testbed};

use crate::common::unguarded;
use crate::{eventually, is_up, only_fault, testbed};

const SAMPLES: &str = include_str!("../../src/redis/fault_samples.tsv");

/// Scripts that run a command in line 12, as the samples do, and catch its error or raise it.
const CAUGHT: &str =
    "\n\n\n\n\n\n\n\n\n\n\nlocal reply = redis.pcall(unpack(ARGV)) return reply.err or reply";
const RAISED: &str = "\n\n\n\n\n\n\n\n\n\n\nreturn redis.call(unpack(ARGV))";

const SET: [&str; 3] = ["SET", "quorlock:other", "x"];
const GET: [&str; 2] = ["GET", "quorlock:job"];

/// Nodes, the first of which is broken. The client connected to that one before.
struct World {
    testbed: Testbed,
    redlock: Redlock,
    digest: String,
}

impl World {
    async fn start(nodes: usize) -> World {
        let testbed = testbed(nodes, false).await;
        let redlock = unguarded(&testbed.urls()[..1]).connect().await.unwrap();
        let digest = tell(&testbed.nodes()[0], &["SCRIPT", "LOAD", RAISED]).await;
        World {
            testbed,
            redlock,
            digest: digest.unwrap(),
        }
    }

    fn node(&self) -> &TestNode {
        &self.testbed.nodes()[0]
    }

    async fn set(&self, name: &str, value: &str) {
        tell(self.node(), &["CONFIG", "SET", name, value]).await;
    }

    /// Checks that the node refuses a command with a known error of this fault.
    async fn refuses(&self, fault: &str, command: &[&str]) {
        let answer = self.node().command(command).await.unwrap();
        // Redis 6.2 adds a line break to a caught error.
        let message = answer.as_str().unwrap().trim_end();
        let message = message.replace(&self.digest, "<digest>");
        let known = SAMPLES.lines().any(|sample| {
            let mut columns = sample.split('\t');
            columns.next() == Some(fault) && columns.next_back() == Some(&*message)
        });
        assert!(known, "no sample of {fault}: {message}");
    }

    /// Checks the same for the command by itself and in scripts.
    async fn refuses_everywhere(&self, fault: &str, command: &[&str]) {
        self.refuses(fault, command).await;
        for script in [
            ["EVAL", CAUGHT, "0"],
            ["EVAL", RAISED, "0"],
            ["EVALSHA", &self.digest, "0"],
        ] {
            self.refuses(fault, &[&script, command].concat()).await;
        }
    }

    async fn gives(&self, fault: &str) {
        let given = self.given().await;
        assert_eq!(given.split(' ').next(), Some(fault), "{given}");
    }

    async fn given(&self) -> String {
        let error = self.redlock.lock("job").try_acquire().await.unwrap_err();
        format!("{:?}", only_fault(&error))
    }
}

/// Returns the answer if it is a text.
async fn tell(node: &TestNode, command: &[&str]) -> Option<String> {
    let answer = node.command(command).await.unwrap();
    assert!(!answer.is_error(), "{command:?}: {answer:?}");
    answer.as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_server_out_of_memory_is_named() {
    let world = World::start(1).await;
    world.set("maxmemory", "1").await;
    world.refuses_everywhere("OutOfMemory", &SET).await;
    world.gives("OutOfMemory").await;
}

#[tokio::test]
async fn a_server_that_lacks_replicas_is_named() {
    let world = World::start(1).await;
    world.set("min-replicas-to-write", "1").await;
    world.refuses_everywhere("NoReplicas", &SET).await;
    world.gives("NoReplicas").await;
}

#[tokio::test]
async fn a_server_that_cannot_persist_is_named() {
    let world = World::start(1).await;
    // A snapshot cannot replace this folder.
    fs::create_dir_all(world.node().folder().join("data/dump.rdb/in-the-way")).unwrap();
    world.set("save", "3600 1").await;
    tell(world.node(), &["BGSAVE"]).await;
    eventually("the snapshot has failed", async || {
        let info = tell(world.node(), &["INFO", "persistence"]).await.unwrap();
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    world.refuses_everywhere("CannotPersist", &SET).await;
    world.gives("CannotPersist").await;
}

/// Port 1 has no server, so the master never answers.
#[tokio::test]
async fn a_server_that_became_a_replica_is_named_whether_or_not_it_still_answers() {
    let world = World::start(1).await;
    tell(world.node(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    world.refuses_everywhere("ReadOnly", &SET).await;
    world.gives("ReadOnly").await;

    let world = World::start(1).await;
    world.set("replica-serve-stale-data", "no").await;
    tell(world.node(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    world.refuses_everywhere("MasterDown", &GET).await;
    world.gives("MasterDown").await;
}

#[tokio::test]
async fn a_key_with_other_data_is_named() {
    let world = World::start(1).await;
    tell(world.node(), &["RPUSH", GET[1], "data"]).await;
    world.refuses_everywhere("WrongType", &GET).await;
    world.gives("WrongType").await;
}

#[tokio::test]
async fn missing_rights_are_named() {
    let world = World::start(1).await;
    let user = async |rights: &[&str]| {
        tell(world.node(), &[&["ACL", "SETUSER", "default"], rights].concat()).await;
    };
    user(&["-set"]).await;
    world.refuses_everywhere("NoPermission", &SET).await;
    world.gives("NoPermission").await;
    user(&["+set", "-pubsub"]).await;
    world
        .refuses_everywhere("NoPermission", &["PUBSUB", "NUMSUB", "channel"])
        .await;
    user(&["+pubsub", "resetkeys", "~others:*"]).await;
    world.refuses_everywhere("NoPermission", &GET).await;
    world.gives("NoPermission").await;
    user(&["allkeys", "resetchannels"]).await;
    world
        .refuses_everywhere("NoPermission", &["PUBLISH", "channel", "x"])
        .await;
    user(&["-eval", "-evalsha"]).await;
    for command in [["EVAL", RAISED, "0"], ["EVALSHA", &world.digest, "0"]] {
        world.refuses("NoPermission", &command).await;
    }
    world.gives("NoPermission").await;
}

#[tokio::test]
async fn a_server_busy_with_a_script_is_named() {
    let world = World::start(1).await;
    world.set("lua-time-limit", "1").await;
    let working = world.node().command(&["EVAL", "while true do end", "0"]);
    let meanwhile = async {
        eventually("the server is busy", async || {
            world.node().command(&["PING"]).await.unwrap().is_error()
        })
        .await;
        world.refuses_everywhere("Busy", &GET).await;
        world.gives("Busy").await;
        tell(world.node(), &["SCRIPT", "KILL"]).await;
    };
    let (ended, ()) = tokio::join!(working, meanwhile);
    assert!(ended.unwrap().is_error());
}

/// The server loads its master's data. Redis 6.2 looks at its connections only every 2 MB.
#[tokio::test]
async fn a_server_that_loads_its_data_is_named() {
    let world = World::start(2).await;
    let master = &world.testbed.nodes()[1];
    let fill = "for i = 1, 400 do redis.call('SETRANGE', 'k' .. i, 65535, 'x') end";
    tell(master, &["EVAL", fill, "0"]).await;
    for [name, value] in [["rdbcompression", "no"], ["repl-diskless-sync-delay", "0"]] {
        tell(master, &["CONFIG", "SET", name, value]).await;
    }
    world.set("key-load-delay", "20000").await;
    let interval = ["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"];
    let _ = world.node().command(&interval).await.unwrap();
    let addr = master.direct_addr();
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    loop {
        tell(world.node(), &["REPLICAOF", &host, &port]).await;
        eventually("the server loads its data", async || {
            world.node().command(&["PING"]).await.unwrap().is_error()
        })
        .await;
        world.refuses("Loading", &GET).await;
        match &*world.given().await {
            "Loading" => return,
            // A look at this moment finds a replica first.
            "Unfit(Replica)" => {}
            other => panic!("{other}"),
        }
        eventually("the server is a master again", async || {
            let made = world.node().command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
            !made.is_error() && is_up(&world.redlock, 0)
        })
        .await;
    }
}
