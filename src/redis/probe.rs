//! What a server must be before it may vote (R1), read from its `INFO`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::doctor::Info;
use crate::node::Unfit;
use crate::protocol::memory::{MemoryId, Process};
use crate::sys::mutex::lock;

/// Major and minor version. Older servers cannot restrict channels, and the tests do not run on them.
const OLDEST_VERSION: (u32, u32) = (6, 2);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) process: Process,
    pub(super) version: Arc<str>,
}

impl Facts {
    /// Reads the facts. Fails if the server is of a kind that may not vote.
    pub(super) fn read(info: &Info) -> Result<Facts, Unfit> {
        let field = |name: &str| info.text(name);
        let need = |name: &str| {
            field(name).ok_or_else(|| Unfit::Unreadable {
                detail: format!("{name} is missing").into(),
            })
        };

        if field("redis_mode") == Some("sentinel") {
            return Err(Unfit::Sentinel);
        }
        if field("redis_mode") == Some("cluster") || field("cluster_enabled") == Some("1") {
            return Err(Unfit::ClusterMember);
        }
        if need("role")? != "master" {
            return Err(Unfit::Replica);
        }
        let version = info.version().map_or_else(|| need("redis_version"), Ok)?;
        if numbers(version).is_none_or(|version| version < OLDEST_VERSION) {
            return Err(Unfit::TooOld {
                version: version.into(),
            });
        }
        let run_id = need("run_id")?;
        let former_master = former_master(info);
        // They become parts of the record, which is split at spaces.
        if !is_id(run_id) || !former_master.as_deref().is_none_or(is_id) {
            return Err(Unfit::Unreadable {
                detail: "its run_id or master_replid2 is not an id".into(),
            });
        }
        Ok(Facts {
            process: Process {
                run_id: run_id.into(),
                former_master,
            },
            version: version.into(),
        })
    }
}

/// Returns whether the text can be an id. Redis and Valkey use 40 hexadecimal digits; other servers may differ.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the history that a promoted server has from its former master. `None` if there is none, which is written as zeros.
fn former_master(info: &Info) -> Option<Arc<str>> {
    let history = info.text("master_replid2")?;
    history.bytes().any(|digit| digit != b'0').then(|| history.into())
}

/// Returns whether `INFO replication` shows a master that has taken over no other server's data since `process` was read.
pub(super) fn is_still(info: &str, process: &Process) -> bool {
    let info = Info::read(info);
    let former = former_master(&info);
    info.text("role") == Some("master") && (former.is_none() || former == process.former_master)
}

/// Returns the major and the minor version. `None` if they are not numbers.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// The server of each node of a set, by run id, so that no server votes twice.
#[derive(Debug, Default)]
pub(super) struct RunIds(Mutex<HashMap<usize, Entry>>);

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    run_id: Arc<str>,
    memory: MemoryId,
}

impl RunIds {
    /// Refuses a server that another node than number `node` leads to already.
    pub(super) fn check(&self, node: usize, run_id: &Arc<str>) -> Result<(), Unfit> {
        refuse_twice(&lock(&self.0), node, run_id)
    }

    /// Enters the server behind node number `node`, in place of the one that was there before.
    pub(super) fn enter(
        &self,
        node: usize,
        name: &Arc<str>,
        run_id: &Arc<str>,
        memory: MemoryId,
    ) -> Result<(), Unfit> {
        let mut entries = lock(&self.0);
        refuse_twice(&entries, node, run_id)?;
        entries.insert(
            node,
            Entry {
                name: name.clone(),
                run_id: run_id.clone(),
                memory,
            },
        );
        Ok(())
    }

    /// Returns whether another server, that of another node, has this memory. Then this node has a copy, or the other one has changed
    /// since its probe. The same server under two names is no copy: it is refused, and keeps its memory.
    pub(super) fn is_taken(&self, node: usize, run_id: &Arc<str>, memory: MemoryId) -> bool {
        let entries = lock(&self.0);
        let mut others = entries.iter().filter(|(number, _)| **number != node);
        others.any(|(_, entry)| entry.memory == memory && entry.run_id != *run_id)
    }
}

fn refuse_twice(entries: &HashMap<usize, Entry>, node: usize, run_id: &Arc<str>) -> Result<(), Unfit> {
    let mut others = entries.iter().filter(|(number, _)| **number != node);
    match others.find(|(_, entry)| entry.run_id == *run_id) {
        Some((_, entry)) => Err(Unfit::Duplicate {
            other: entry.name.clone(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(change: &[(&str, &str)]) -> Info {
        let mut fields = vec![
            ("redis_version", "7.0.15"),
            ("redis_mode", "standalone"),
            ("run_id", "abc"),
            ("master_replid2", "0000000000000000000000000000000000000000"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("cluster_enabled", "0"),
        ];
        for (name, value) in change {
            fields.retain(|(field, _)| field != name);
            if !value.is_empty() {
                fields.push((name, value));
            }
        }
        let lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}:{value}\r\n"))
            .collect();
        Info::read(&format!("# Server\r\n{}\r\n", lines.concat()))
    }

    #[test]
    fn a_plain_master_may_vote() {
        let facts = Facts::read(&info(&[])).unwrap();
        assert_eq!(&*facts.process.run_id, "abc");
        assert_eq!(facts.process.former_master, None);
    }

    #[test]
    fn a_server_that_is_no_independent_master_may_not_vote() {
        let cases = [
            (("role", "slave"), Unfit::Replica),
            (("cluster_enabled", "1"), Unfit::ClusterMember),
            (("redis_mode", "cluster"), Unfit::ClusterMember),
            (("redis_mode", "sentinel"), Unfit::Sentinel),
            (
                ("redis_version", "6.0.16"),
                Unfit::TooOld {
                    version: "6.0.16".into(),
                },
            ),
            (
                ("redis_version", "next"),
                Unfit::TooOld {
                    version: "next".into(),
                },
            ),
            (
                ("run_id", ""),
                Unfit::Unreadable {
                    detail: "run_id is missing".into(),
                },
            ),
            (
                ("run_id", "a b"),
                Unfit::Unreadable {
                    detail: "its run_id or master_replid2 is not an id".into(),
                },
            ),
            (
                ("master_replid2", "-"),
                Unfit::Unreadable {
                    detail: "its run_id or master_replid2 is not an id".into(),
                },
            ),
            (
                ("role", ""),
                Unfit::Unreadable {
                    detail: "role is missing".into(),
                },
            ),
        ];
        for (change, unfit) in cases {
            assert_eq!(Facts::read(&info(&[change])).unwrap_err(), unfit);
        }
        assert!(matches!(
            Facts::read(&Info::default()).unwrap_err(),
            Unfit::Unreadable { .. }
        ));
    }

    #[test]
    fn versions_are_compared_as_numbers_and_valkey_by_its_own() {
        for version in ["6.2.0", "6.10.1", "7.0.15", "10.0.0", "255.255.255"] {
            assert_eq!(
                &*Facts::read(&info(&[("redis_version", version)])).unwrap().version,
                version
            );
        }
        let valkey = info(&[("redis_version", "7.2.4"), ("valkey_version", "9.1.2")]);
        assert_eq!(&*Facts::read(&valkey).unwrap().version, "9.1.2");
    }

    #[test]
    fn a_master_whose_data_came_from_another_server_is_told() {
        let facts = |former| Facts::read(&info(&[("master_replid2", former)])).unwrap();
        let replication = |role: &str, former: &str| format!("role:{role}\r\nmaster_replid2:{former}\r\n");
        let (never, once) = (facts("000").process, facts("0ab0").process);
        assert_eq!(once.former_master.as_deref(), Some("0ab0"));
        for (info, process, still) in [
            (replication("master", "000"), &never, true),
            (replication("slave", "000"), &never, false),
            (replication("master", "0ab0"), &never, false),
            (replication("master", "0ab0"), &once, true),
            (replication("master", "cd"), &once, false),
            // The server forgets the history after an hour without replicas.
            (replication("master", "000"), &once, true),
        ] {
            assert_eq!(is_still(&info, process), still, "{info}");
        }
    }

    #[test]
    fn a_memory_is_taken_while_another_node_is_known_to_be_it() {
        let (run_ids, one, other) = (RunIds::default(), MemoryId::from(7), MemoryId::from(8));
        let enter = |node, name: &str, id| run_ids.enter(node, &name.into(), &name.into(), id).unwrap();
        enter(0, "a:1", one);
        enter(1, "b:1", other);
        let is_taken = |node, run: &str, id| run_ids.is_taken(node, &run.into(), id);
        assert!(is_taken(1, "b:1", one) && !is_taken(0, "a:1", one));
        assert!(!is_taken(1, "a:1", one), "the same server, not a copy");
        enter(0, "restarted", other);
        assert!(!is_taken(1, "b:1", one));
    }

    #[test]
    fn a_server_is_entered_once_and_a_restarted_one_again() {
        let run_ids = RunIds::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a:1".into(), "b:1".into());
        let enter = |node, name, run: &str| run_ids.enter(node, name, &run.into(), MemoryId::from(7));
        enter(0, &a, "run1").unwrap();
        enter(0, &a, "run1").unwrap();
        let duplicate = Unfit::Duplicate { other: a.clone() };
        assert_eq!(enter(1, &b, "run1").unwrap_err(), duplicate);
        assert_eq!(run_ids.check(1, &"run1".into()).unwrap_err(), duplicate);
        enter(0, &a, "run2").unwrap();
        enter(1, &b, "run1").unwrap();
    }
}
