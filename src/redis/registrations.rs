//! Reads the lists of nodes in use, without registering one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::Value;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::address::Addresses;
use super::client_info::readable;
use super::fault;
use super::fred_client::{self, command};
use super::node_config::NodeConfig;
use crate::node::Fault;
use crate::options::{CLIENT_SUFFIX, VIEWS_SUFFIX, literal};
use crate::protocol::view::{Difference, View};

const LISTS: &str = include_str!("lists.lua");
const SCAN_COUNT: i64 = 1_000;

/// The lists of nodes that clients use, as far as the queried nodes know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registrations {
    /// One entry for each set of addresses. With several, clients use different nodes, or different names for the same nodes.
    pub lists: Vec<NodeList>,
    /// Whether two of the lists have different nodes. Clients of the later one get no locks.
    pub has_conflict: bool,
    /// Nodes that could not be queried, and why.
    pub faults: Vec<(Arc<str>, Fault)>,
    /// Nodes that did not list their clients, and why: mostly, the user lacks the right `+scan`.
    pub unlisted: Vec<(Arc<str>, Fault)>,
}

/// A list of nodes that clients use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeList {
    /// The addresses in the list, as its clients write them.
    pub nodes: Vec<Arc<str>>,
    /// How long the list counts as in use, unless a client confirms it again.
    pub remaining: Duration,
    /// The queried nodes that know of it.
    pub registered_on: Vec<Arc<str>>,
    /// The clients that use it: executable, host, process id. Without those of [`unlisted`](Registrations::unlisted) nodes.
    pub clients: Vec<Arc<str>>,
}

struct Known {
    lists: Vec<(View, Duration)>,
    clients: Result<Vec<(View, String)>, Fault>,
}

#[derive(Default)]
struct Merged {
    remaining: Duration,
    registered_on: BTreeSet<Arc<str>>,
    clients: BTreeSet<Arc<str>>,
    /// As the nodes know the list: in some, a client may have known fewer memories.
    views: Vec<View>,
}

/// Queries all nodes.
pub(crate) async fn registrations(
    configs: Vec<NodeConfig>,
    prefix: &str,
    answer_timeout: Duration,
) -> Registrations {
    let asked = configs.into_iter().map(|config| async move {
        let name = config.name().clone();
        let answer = timeout(answer_timeout, ask(config, prefix, answer_timeout)).await;
        let late = |_| Err(fault::disconnected("no answer in time".into()));
        (name, answer.unwrap_or_else(late))
    });
    let mut found = Registrations::default();
    let mut lists: BTreeMap<Vec<Arc<str>>, Merged> = BTreeMap::new();
    for (name, answer) in join_all(asked).await {
        match answer {
            Ok(known) => {
                for (view, remaining) in known.lists {
                    let list = lists.entry(view.addresses()).or_default();
                    list.remaining = remaining.max(list.remaining);
                    list.registered_on.insert(name.clone());
                    list.views.push(view);
                }
                match known.clients {
                    Ok(clients) => {
                        for (view, client) in clients {
                            let list = lists.entry(view.addresses()).or_default();
                            list.clients.insert(client.into());
                        }
                    }
                    Err(fault) => found.unlisted.push((name, fault)),
                }
            }
            Err(fault) => found.faults.push((name, fault)),
        }
    }
    let differs = |one: &Merged| lists.values().any(|other| differ(&one.views, &other.views));
    found.has_conflict = lists.values().any(differs);
    let list = |(nodes, list): (Vec<Arc<str>>, Merged)| NodeList {
        nodes,
        remaining: list.remaining,
        registered_on: Vec::from_iter(list.registered_on),
        clients: Vec::from_iter(list.clients),
    };
    found.lists = lists.into_iter().map(list).collect();
    found
}

/// Returns whether two lists have different nodes, by the views that know the most of them. A list that no node knows, but only
/// clients, does not count.
fn differ(one: &[View], other: &[View]) -> bool {
    let fullest = |views: &[View]| views.iter().max_by_key(|view| view.known()).cloned();
    match (fullest(one), fullest(other)) {
        (Some(one), Some(other)) => one.compare(&other) == Difference::OtherNodes,
        _ => false,
    }
}

async fn ask(config: NodeConfig, prefix: &str, answer_timeout: Duration) -> Result<Known, Fault> {
    let addresses = Addresses::new(config.config(), answer_timeout);
    let peer = addresses.choose(addresses.find().await?).await?;
    let (config, _) = config.current().await?;
    let client = fred_client::client(&config, peer, answer_timeout);
    let mut task = fred_client::start(&client).await?;
    tokio::select! {
        biased;
        known = read(&client, prefix) => known,
        fault = task.ended() => Err(fault),
    }
}

async fn read(client: &Client, prefix: &str) -> Result<Known, Fault> {
    let key = format!("{prefix}{VIEWS_SUFFIX}");
    let answer = fred_client::run(client, LISTS, key).await?;
    let entries = answer
        .convert::<Vec<String>>()
        .map_err(|error| fred_client::refusal(&error))?;
    let list = |entry: &[String]| {
        let remaining = entry[1].parse().map(Duration::from_millis).ok()?;
        Some((entry[0].parse().ok()?, remaining))
    };
    Ok(Known {
        lists: entries.chunks_exact(2).filter_map(list).collect(),
        clients: clients(client, prefix).await,
    })
}

/// Returns the registered clients.
async fn clients(client: &Client, prefix: &str) -> Result<Vec<(View, String)>, Fault> {
    let refusal = |error| fred_client::refusal(&error);
    let pattern = format!("{}*{CLIENT_SUFFIX}", literal(prefix));
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let args = vec![
            Value::from(cursor),
            Value::from_static_str("MATCH"),
            Value::from(&*pattern),
            Value::from_static_str("COUNT"),
            Value::Integer(SCAN_COUNT),
        ];
        let answer: Value = client.custom(command("SCAN"), args).await.map_err(refusal)?;
        let (next, keys): (String, Vec<String>) = answer.convert().map_err(refusal)?;
        for key in keys {
            let get = client.custom(command("GET"), vec![Value::from(key)]);
            let description: Option<String> = get.await.map_err(refusal)?;
            found.extend(description.as_deref().and_then(parse));
        }
        if next == "0" {
            return Ok(found);
        }
        cursor = next;
    }
}

/// Reads a client's list and description. `None` if they are damaged.
fn parse(description: &str) -> Option<(View, String)> {
    let (_, rest) = description.split_once(' ')?;
    let (client, view) = rest.split_once(' ')?;
    Some((view.parse().ok()?, readable(client)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::memory::MemoryId;

    #[test]
    fn lists_differ_by_what_is_known_of_their_nodes() {
        let views = |texts: &[&str]| {
            let view = |text: &&str| {
                let members = text.split(' ').map(|member| {
                    let (id, address) = member.split_once('@').unwrap();
                    (id.parse::<u128>().ok().map(MemoryId::from), address.into())
                });
                View::new(members)
            };
            texts.iter().map(view).collect::<Vec<_>>()
        };
        for (one, other, expected) in [
            (&["1@a 2@b 3@c"][..], &["1@x 2@y 3@z"][..], false),
            (&["1@a 2@b 3@c"], &["1@a 2@b 4@d"], true),
            // A client that never reached c may mean d.
            (&["1@a 2@b ?@c"], &["1@a 2@b 4@d"], false),
            (&["1@a 2@b ?@c", "1@a 2@b 3@c"], &["1@a 2@b 4@d"], true),
            (&["1@a"], &["2@b"], true),
            (&["1@a"], &[], false),
        ] {
            let (one, other) = (views(one), views(other));
            assert_eq!(differ(&one, &other), expected, "{one:?} {other:?}");
            assert_eq!(differ(&other, &one), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn clients_are_read_as_they_tell_of_themselves() {
        let (view, client) = parse("1700000000000 worker%20on%20a%20(pid%201) ?@b:1 ?@a:1").unwrap();
        assert_eq!(client, "worker on a (pid 1)");
        assert_eq!(view.addresses(), [Arc::from("a:1"), Arc::from("b:1")]);
        for damaged in ["", "1", "1 who", "1 who damaged"] {
            assert!(parse(damaged).is_none(), "{damaged}");
        }
    }
}
