//! Each fact that is wrong gives its finding, and no other.

use std::time::Duration;

use super::*;
use crate::node::Fault;
use crate::protocol::memory::MemoryId;

const INFO: &str = "redis_version:7.4.0\nrun_id:a\naof_enabled:1\naof_last_write_status:ok\n\
    aof_last_bgrewrite_status:ok\nrdb_last_bgsave_status:ok\naof_delayed_fsync:0\nmaxmemory:0\nused_memory:1000\n\
    maxmemory_policy:noeviction\nconnected_clients:1\nmaxclients:10000\nconnected_slaves:0";

fn server() -> ServerFacts {
    ServerFacts {
        info: Some(Info::read(INFO)),
        fsync: vec![("appendfsync".into(), "always".into())],
        round_trip: Duration::from_millis(1),
        clock: Some(Clock {
            ahead: 0,
            within: 500,
        }),
        delays: Some(Vec::new()),
        sentinels: Some(0),
        ..ServerFacts::default()
    }
}

/// Returns three nodes on hosts of their own, without faults.
fn set() -> SetFacts {
    let node = |number: u128| NodeFacts {
        name: format!("n{number}").into(),
        down: None,
        left_out: None,
        write: Ok(Duration::from_millis(2)),
        server: Ok(ServerFacts {
            host: Some(format!("h{number}").into()),
            memory: Some(MemoryId::from(number)),
            ..server()
        }),
    };
    SetFacts {
        nodes: (0..3).map(node).collect(),
        ttl: Duration::from_secs(30),
        prefix: "p:".into(),
        lists: Lists::default(),
        endless: Endless::default(),
    }
}

/// Returns the findings as "NODE CODE".
fn found(facts: &SetFacts) -> Vec<String> {
    let words = |finding: &Finding| format!("{} {}", finding.node.as_deref().unwrap_or("all"), finding.code);
    judge(facts).iter().map(words).collect()
}

fn with_node(change: impl FnOnce(&mut NodeFacts)) -> SetFacts {
    let mut facts = set();
    change(&mut facts.nodes[1]);
    facts
}

fn with_server(change: impl FnOnce(&mut ServerFacts)) -> SetFacts {
    with_node(|node| {
        if let Ok(server) = &mut node.server {
            change(server);
        }
    })
}

/// Replaces fields of the server's INFO.
fn with_info(fields: &str) -> SetFacts {
    with_server(|server| server.info = Some(Info::read(&format!("{INFO}\n{fields}"))))
}

#[test]
fn nothing_is_found_in_the_recommended_set_up() {
    assert_eq!(found(&set()), [""; 0]);
}

#[test]
fn what_a_server_shows_is_judged() {
    for (fields, code) in [
        ("aof_last_write_status:err", "n1 aof_write_failed"),
        ("aof_last_bgrewrite_status:err", "n1 aof_rewrite_failed"),
        ("rdb_last_bgsave_status:err", "n1 snapshot_failed"),
        ("aof_delayed_fsync:3", "n1 slow_disk"),
        ("maxmemory:1111", "n1 memory_nearly_full"),
        ("connected_clients:9000", "n1 connections_nearly_full"),
        ("connected_slaves:1", "n1 replicas_connected"),
        ("aof_enabled:0", "n1 appendonly_off"),
        ("maxmemory_policy:allkeys-lru", "n1 eviction"),
    ] {
        assert_eq!(found(&with_info(fields)), [code], "{fields}");
    }
    for fields in ["maxmemory:1112", "connected_clients:8999", "maxclients:0"] {
        assert_eq!(found(&with_info(fields)), [""; 0], "{fields}");
    }
}

#[test]
fn a_slow_server_is_judged_by_the_budget() {
    let answers_in = |millis| with_server(|server| server.round_trip = Duration::from_millis(millis));
    let writes_in = |millis| with_node(|node| node.write = Ok(Duration::from_millis(millis)));
    let delayed_by =
        |event: &str, millis| with_server(|server| server.delays = Some(vec![(event.to_owned(), millis)]));
    for (facts, expected) in [
        (answers_in(300), None),
        (answers_in(301), Some(("slow_answers", Severity::Warning))),
        (answers_in(3_000), Some(("slow_answers", Severity::Error))),
        (writes_in(1_000), None),
        (writes_in(1_001), Some(("slow_write", Severity::Warning))),
        (delayed_by("aof-fsync-always", 1_000), None),
        (
            delayed_by("aof-fsync-always", 1_001),
            Some(("slow_disk", Severity::Warning)),
        ),
        (delayed_by("command", 1_001), None),
    ] {
        let findings = judge(&facts);
        let told = findings.iter().map(|finding| (finding.code, finding.severity));
        assert_eq!(told.collect::<Vec<_>>(), Vec::from_iter(expected));
    }
}

#[test]
fn what_could_not_be_asked_is_told() {
    for (facts, expected) in [
        (
            with_server(|server| server.delays = None),
            &["n1 not_checked"][..],
        ),
        (with_server(|server| server.sentinels = None), &["n1 not_checked"]),
        (with_server(|server| server.info = None), &["n1 not_checked"]),
        (
            with_node(|node| node.server = Err(Fault::Busy)),
            &["n1 not_checked"],
        ),
        (
            with_node(|node| {
                (node.down, node.server) = (Some(Fault::Busy), Err(Fault::Busy));
            }),
            &["n1 busy"],
        ),
    ] {
        assert_eq!(found(&facts), expected);
    }
    let mut facts = set();
    facts.endless.is_partial = true;
    facts.endless.faults.push(("n2".into(), Fault::Loading));
    assert_eq!(found(&facts), ["n2 not_checked", "all not_checked"]);
    // Its refusal of writes is told once.
    facts.endless = Endless::default();
    facts.nodes[2].write = Err(Fault::CannotPersist);
    facts.lists.faults.push(("n2".into(), Fault::CannotPersist));
    assert_eq!(found(&facts), ["n2 cannot_persist"]);
}

#[test]
fn a_fault_is_told_once_and_lacking_rights_by_name() {
    let forbidden = || Fault::NoPermission { needs: "" };
    let of_announcing = Lack {
        name: "+publish".into(),
        need: Need::Announcing,
    };
    // It explains no refused write.
    let facts = with_node(|node| {
        node.write = Err(forbidden());
        node.server = Ok(ServerFacts {
            host: Some("h1".into()),
            lacks: vec![of_announcing],
            ..server()
        });
    });
    assert_eq!(found(&facts), ["n1 no_permission", "n1 cannot_publish"]);
    let lack = Lack {
        name: "+set".into(),
        need: Need::Locks,
    };
    for (facts, expected) in [
        (
            with_node(|node| node.write = Err(forbidden())),
            "n1 no_permission",
        ),
        (
            with_node(|node| {
                node.write = Err(forbidden());
                node.server = Ok(ServerFacts {
                    host: Some("h1".into()),
                    lacks: vec![lack],
                    ..server()
                });
            }),
            "n1 missing_rights",
        ),
        (
            with_node(|node| {
                let info = Info::read(&format!("{INFO}\nrdb_last_bgsave_status:err"));
                node.write = Err(Fault::CannotPersist);
                node.server = Ok(ServerFacts {
                    host: Some("h1".into()),
                    info: Some(info),
                    ..server()
                });
            }),
            "n1 cannot_persist",
        ),
        (
            with_node(|node| {
                node.left_out = Some(Fault::Restarted {
                    ago: Duration::ZERO,
                    remaining: Duration::ZERO,
                });
            }),
            "n1 restart_guard",
        ),
    ] {
        assert_eq!(found(&facts), [expected]);
    }
}

#[test]
fn clocks_are_judged_as_far_as_they_are_known() {
    let ahead = |ahead, within| with_server(|server| server.clock = Some(Clock { ahead, within }));
    for (facts, expected) in [
        (ahead(1_001_000, 499), &["n1 clock_off"][..]),
        (ahead(-2_000_000, 1_000), &["n1 clock_off"]),
        (ahead(900_000, 1_000), &[]),
        (ahead(900_000, 200_000), &["n1 not_checked"]),
        (with_server(|server| server.clock = None), &[]),
    ] {
        let within = facts.nodes[0].server.as_ref().map(|server| server.clock);
        assert_eq!(found(&facts), expected, "{within:?}");
    }
}

#[test]
fn nodes_are_judged_together() {
    let mut facts = set();
    facts.nodes.truncate(2);
    assert_eq!(found(&facts), ["all too_few_nodes"]);
    facts = set();
    facts.nodes.extend(set().nodes.pop());
    assert_eq!(found(&facts), ["all even_number", "all same_host"]);
    facts = with_server(|server| server.memory = Some(MemoryId::from(0)));
    assert_eq!(found(&facts), [""; 0], "the same process: told when it connects");
    facts = with_server(|server| {
        (server.memory, server.info) = (
            Some(MemoryId::from(0)),
            Some(Info::read(&format!("{INFO}\nrun_id:b"))),
        );
    });
    assert_eq!(found(&facts), ["n1 copied_data"]);
    facts = with_server(|server| server.elsewhere = vec!["[::1]:6379".into()]);
    assert_eq!(found(&facts), ["n1 several_servers"]);
    facts = set();
    facts.endless.locks = vec!["a".into(), "b".into(), "c".into(), "d".into()];
    assert!(judge(&facts)[0].seen.contains("4 keys") && judge(&facts)[0].seen.ends_with("a, b, c, ..."));
}

/// The document for users has a row for each code.
#[test]
fn every_code_is_documented() {
    let sources = [
        include_str!("node.rs"),
        include_str!("rights.rs"),
        include_str!("set.rs"),
        include_str!("settings.rs"),
        include_str!("finding.rs"),
    ];
    let mut codes: Vec<&str> = Vec::new();
    for source in sources {
        for call in ["Finding::error(", "Finding::warning(", "partial("] {
            let first = source.split(call).skip(1).map(str::trim_start);
            codes.extend(first.filter_map(|rest| rest.strip_prefix('"')?.split('"').next()));
        }
    }
    codes.extend(
        include_str!("faults.rs")
            .split("Unfit::")
            .filter_map(|rest| rest.split_once("=> \"")?.1.split_once("\",\n"))
            .map(|(code, _)| code)
            .filter(|code| !code.contains(' ')),
    );
    codes.extend([
        "not_checked",
        "out_of_memory",
        "no_replicas",
        "cannot_persist",
        "restart_guard",
    ]);
    assert!(codes.len() > 35, "{codes:?}");
    let document = include_str!("../../docs/tool.md");
    let missing: Vec<_> = codes
        .into_iter()
        .filter(|code| !document.contains(&format!("`{code}`")))
        .collect();
    assert!(missing.is_empty(), "docs/tool.md lacks {missing:?}");
}
