//! What a server must be before it may vote (R1), read from its `INFO`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::mutex::lock;
use crate::node::Unfit;

/// Major and minor version. Older servers cannot restrict channels, and the tests do not run on them.
const OLDEST_VERSION: (u32, u32) = (6, 2);

/// What `INFO` says of a server, as far as a lock cares.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) run_id: Arc<str>,
    pub(super) version: Arc<str>,
    eviction: Option<Arc<str>>,
    pub(super) forgets: bool,
    uptime_seconds: i64,
}

impl Facts {
    /// Reads and judges: `Err` if this server may not vote whatever its state.
    pub(super) fn read(info: &str) -> Result<Facts, Unfit> {
        let fields: HashMap<&str, &str> = info
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let field = |name: &str| fields.get(name).copied();
        let need = |name: &str| {
            field(name).ok_or_else(|| Unfit::Unreadable {
                detail: format!("no {name} in it").into(),
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
        // Valkey says in `redis_version` which Redis it is compatible with: 7.2.4, whatever its own version.
        let version = field("valkey_version").map_or_else(|| need("redis_version"), Ok)?;
        if numbers(version).is_none_or(|version| version < OLDEST_VERSION) {
            return Err(Unfit::TooOld {
                version: version.into(),
            });
        }
        let run_id = need("run_id")?;
        if run_id.is_empty() {
            return Err(Unfit::Unreadable {
                detail: "its run_id is empty".into(),
            });
        }
        Ok(Facts {
            run_id: run_id.into(),
            version: version.into(),
            eviction: field("maxmemory_policy")
                .filter(|policy| *policy != "noeviction")
                .map(Arc::from),
            forgets: field("aof_enabled") == Some("0"),
            uptime_seconds: need("uptime_in_seconds")?
                .parse()
                .map_err(|_| Unfit::Unreadable {
                    detail: "its uptime is not a number".into(),
                })?,
        })
    }

    /// For how long it has been running, give or take a second: the difference of two times, each rounded down to seconds.
    pub(super) fn uptime(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.uptime_seconds).unwrap_or(0))
    }

    /// The same, in microseconds.
    pub(super) fn uptime_micros(&self) -> i64 {
        self.uptime_seconds.max(0).saturating_mul(1_000_000)
    }

    /// Settings under which the server may vote, but should not be run.
    pub(super) fn warnings(&self) -> Vec<String> {
        let eviction = self.eviction.iter().map(|policy| {
            format!("maxmemory-policy is {policy}: locks can be evicted before they expire; use noeviction")
        });
        eviction.collect()
    }
}

/// The major and the minor version in a version; `None` if they are not numbers.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Which node of a set has claimed which server, by run id: no server votes twice.
#[derive(Debug, Default)]
pub(super) struct Roll(Mutex<HashMap<usize, Entry>>);

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    run_id: Arc<str>,
}

impl Roll {
    /// Enters the server behind node number `node`, in place of the one that was there before.
    pub(super) fn enter(&self, node: usize, name: &Arc<str>, run_id: &Arc<str>) -> Result<(), Unfit> {
        let mut entries = lock(&self.0);
        let taken = entries
            .iter()
            .find(|(number, entry)| **number != node && entry.run_id == *run_id);
        if let Some((_, entry)) = taken {
            return Err(Unfit::Duplicate {
                other: entry.name.clone(),
            });
        }
        entries.insert(
            node,
            Entry {
                name: name.clone(),
                run_id: run_id.clone(),
            },
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(change: &[(&str, &str)]) -> String {
        let mut fields = vec![
            ("redis_version", "7.0.15"),
            ("redis_mode", "standalone"),
            ("run_id", "abc"),
            ("uptime_in_seconds", "7"),
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
        format!("# Server\r\n{}\r\n", lines.concat())
    }

    #[test]
    fn a_plain_master_may_vote() {
        let facts = Facts::read(&info(&[])).unwrap();
        assert_eq!(&*facts.run_id, "abc");
        assert_eq!(facts.uptime_micros(), 7_000_000);
        assert!(facts.warnings().is_empty());
    }

    #[test]
    fn whatever_is_not_an_independent_master_may_not() {
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
                    detail: "no run_id in it".into(),
                },
            ),
            (
                ("uptime_in_seconds", "long"),
                Unfit::Unreadable {
                    detail: "its uptime is not a number".into(),
                },
            ),
            (
                ("role", ""),
                Unfit::Unreadable {
                    detail: "no role in it".into(),
                },
            ),
        ];
        for (change, unfit) in cases {
            assert_eq!(Facts::read(&info(&[change])).unwrap_err(), unfit);
        }
        assert!(matches!(Facts::read("").unwrap_err(), Unfit::Unreadable { .. }));
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
    fn eviction_is_worth_a_warning_and_forgetting_is_noticed() {
        let facts = Facts::read(&info(&[("maxmemory_policy", "allkeys-lru")])).unwrap();
        assert!(facts.warnings()[0].contains("allkeys-lru"));
        assert!(!facts.forgets);
        assert!(Facts::read(&info(&[("aof_enabled", "0")])).unwrap().forgets);
    }

    #[test]
    fn a_server_is_entered_once_and_a_restarted_one_again() {
        let roll = Roll::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a:1".into(), "b:1".into());
        roll.enter(0, &a, &"run1".into()).unwrap();
        roll.enter(0, &a, &"run1".into()).unwrap();
        assert_eq!(
            roll.enter(1, &b, &"run1".into()).unwrap_err(),
            Unfit::Duplicate { other: a.clone() }
        );
        roll.enter(0, &a, &"run2".into()).unwrap();
        roll.enter(1, &b, &"run1".into()).unwrap();
    }
}
