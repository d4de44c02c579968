//! The nodes, and how to connect to them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorlock::node::{Fault, NodeState};
use quorlock::testbed::{Testbed, TestbedError};
use quorlock::{ConnectError, NodeConfig, NodeStatus, Redlock, RedlockBuilder};
use tokio::time::timeout;

use crate::args::{Existing, Nodes};
use crate::credentials;
use crate::end::End;
use crate::event::{Event, Weight};
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::signals::Signals;
use crate::variables::{CONFIG, CREDENTIALS_COMMAND, NODES, PASSWORD_FILE};

/// How long the end waits until slow nodes have deleted keys. The keys expire by themselves, too.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(2);

/// Returns the nodes' URLs.
pub(crate) fn urls(nodes: &Nodes) -> Result<Vec<String>, Failure> {
    let urls: Vec<String> = nodes.node.iter().flat_map(|list| split(list)).collect();
    if urls.is_empty() {
        return Err(Failure::usage(format!(
            "no nodes: name them with --node URL,URL,..., in the variable {NODES}, or as \"nodes\" in the configuration file; to try things out, `quorlock run --testbed` and `quorlock testbed` start local ones"
        )));
    }
    // The message leaves the address out: it may be a part of a password.
    let has_comma = |url: &String| url.rsplit('@').next().is_some_and(|host| host.contains(','));
    if urls.iter().any(has_comma) {
        return Err(Failure::usage(
            "a node's address contains a comma: write redis:// in front of every node",
        ));
    }
    Ok(urls)
}

/// Splits a list of URLs at commas and blanks. A comma without a URL behind it is part of a password.
fn split(list: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for word in list.split_whitespace() {
        let mut within = false;
        for piece in word.split(',').filter(|piece| !piece.is_empty()) {
            match urls.last_mut() {
                Some(url) if within && !piece.contains("://") => {
                    url.push(',');
                    url.push_str(piece);
                }
                _ => urls.push(piece.to_owned()),
            }
            within = true;
        }
    }
    urls
}

/// Checks the URLs of a list.
pub(crate) fn check(list: &str) -> Result<(), impl std::fmt::Display + use<>> {
    split(list)
        .iter()
        .try_for_each(|url| NodeConfig::from_url(url).map(drop))
}

/// Returns whether a list of URLs contains a password.
pub(crate) fn have_passwords(list: &str) -> bool {
    let has_one = |url: &String| url::Url::parse(url).is_ok_and(|url| url.password().is_some());
    split(list).iter().any(has_one)
}

/// Returns how many of `nodes` have to grant a lock.
pub(crate) fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns a builder with the nodes and the options to connect.
pub(crate) fn builder(nodes: &Nodes, urls: &[String]) -> Result<RedlockBuilder, Failure> {
    let provider = credentials::provider(nodes);
    let configure = |url: &String| {
        let config = with_tls(nodes, NodeConfig::from_url(url).map_err(Failure::usage)?)?;
        Ok(match &provider {
            Some(provider) => config.with_credentials(provider.clone()),
            None => config,
        })
    };
    let configs = urls.iter().map(configure).collect::<Result<Vec<_>, _>>()?;
    Ok(configs
        .into_iter()
        .fold(Redlock::builder(), RedlockBuilder::node)
        .connect_timeout(nodes.connect_timeout))
}

/// As [`builder`], to look for existing locks and clients.
pub(crate) fn builder_for(existing: &Existing) -> Result<RedlockBuilder, Failure> {
    let builder = builder(&existing.nodes, &urls(&existing.nodes)?)?;
    Ok(builder.key_prefix(&existing.key_prefix))
}

/// Connects to nodes to look at locks, without taking part. Fewer nodes than a quorum are enough.
pub(crate) async fn look(existing: &Existing) -> Result<Redlock, Failure> {
    let (redlock, error) = observer(existing)?
        .connect_without_quorum()
        .await
        .map_err(|error| not_connected(&error))?;
    match error {
        None | Some(ConnectError::NoQuorum { .. }) => Ok(redlock),
        Some(error) => Err(not_connected(&error)),
    }
}

/// Connects to a quorum of nodes, without taking part.
pub(crate) async fn connect(existing: &Existing) -> Result<Redlock, Failure> {
    let connected = observer(existing)?.connect().await;
    connected.map_err(|error| not_connected(&error))
}

fn observer(existing: &Existing) -> Result<RedlockBuilder, Failure> {
    Ok(builder_for(existing)?.observe())
}

#[cfg(feature = "tls")]
fn with_tls(nodes: &Nodes, config: NodeConfig) -> Result<NodeConfig, Failure> {
    use quorlock::TlsOptions;

    if nodes.tls_cert.is_some() != nodes.tls_key.is_some() {
        return Err(Failure::usage(
            "a client certificate needs --tls-cert and --tls-key: only one of them is given",
        ));
    }
    if !config.uses_tls() || (nodes.tls_ca.is_none() && nodes.tls_cert.is_none()) {
        return Ok(config);
    }
    let mut options = TlsOptions::new();
    if let Some(authorities) = &nodes.tls_ca {
        options = options.ca_file(authorities);
    }
    if let (Some(certificate), Some(key)) = (&nodes.tls_cert, &nodes.tls_key) {
        options = options.client_files(certificate, key);
    }
    config.with_tls(&options).map_err(Failure::usage)
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: &Nodes, config: NodeConfig) -> Result<NodeConfig, Failure> {
    Ok(config)
}

/// Returns why no quorum could be connected, with the exit code.
pub(crate) fn not_connected(error: &ConnectError) -> Failure {
    let code = match error {
        ConnectError::Config(_) => exit::USAGE,
        ConnectError::Misconfigured(_) | ConnectError::OtherNodes(_) => exit::MISCONFIGURED,
        ConnectError::NoRuntime => exit::SYSTEM,
        _ => exit::NO_QUORUM,
    };
    Failure::new(code, error.to_string())
}

/// Returns the warnings about a node's settings, or why the node is not up.
pub(crate) fn warnings(state: NodeState) -> Result<Vec<String>, Fault> {
    match state {
        NodeState::Up { warnings } => Ok(warnings),
        NodeState::Down(fault) => Err(fault),
        _ => Err(Fault::Disconnected {
            reason: "no answer yet".into(),
        }),
    }
}

/// Returns the nodes that may have forgotten locks, and why. New locks wait until those would have expired.
pub(crate) fn forgetful(redlock: &Redlock) -> Vec<(Arc<str>, Fault)> {
    let fault = |node: &NodeStatus| node.left_out.clone().filter(may_have_forgotten);
    let nodes = redlock.nodes().into_iter();
    nodes
        .filter_map(|node| Some((node.name.clone(), fault(&node)?)))
        .collect()
}

/// Returns whether the fault says that the node has lost what it knew.
pub(crate) fn may_have_forgotten(fault: &Fault) -> bool {
    matches!(fault, Fault::Restarted { .. } | Fault::Replaced { .. })
}

/// Warns of nodes that may have forgotten locks.
pub(crate) fn warn_of_forgetful(forgetful: &[(Arc<str>, Fault)], report: &Report) {
    if forgetful.is_empty() {
        return;
    }
    let nodes: Vec<String> = forgetful
        .iter()
        .map(|(node, fault)| format!("{node}: {fault}"))
        .collect();
    report.event(&Event::Log {
        weight: Weight::Warning,
        text: &format!("some nodes may have forgotten locks: {}", nodes.join("; ")),
    });
}

/// Returns why a node did not list its keys.
pub(crate) fn not_listed(fault: &Fault) -> String {
    match fault {
        Fault::NoPermission { .. } => "the user needs +scan".to_owned(),
        other => other.to_string(),
    }
}

/// Waits until no key is left on the nodes, `limit` at most.
pub(crate) async fn clean_up(redlock: &Redlock, limit: Duration) {
    if timeout(limit, redlock.shutdown()).await.is_err() {
        tracing::debug!("some nodes have not confirmed that the lock is deleted; it expires there by itself");
    }
}

/// Returns the variables with which a command uses a testbed, instead of the nodes of variables and files. It has no password, and
/// must not get that of other nodes.
pub(crate) fn testbed_variables(urls: &str) -> [(&'static str, Option<&str>); 4] {
    [
        (NODES, Some(urls)),
        (PASSWORD_FILE, None),
        (CREDENTIALS_COMMAND, None),
        (CONFIG, Some("/dev/null")),
    ]
}

/// Starts a testbed, does `work` on it, and ends it. A signal during the start ends it at once.
pub(crate) async fn with_testbed(
    nodes: usize,
    server: Option<&Path>,
    signals: &mut Signals,
    work: impl AsyncFnOnce(&Testbed, &mut Signals) -> Result<End, Failure>,
) -> Result<End, Failure> {
    let testbed = match signals.or(testbed(nodes, server)).await {
        Ok(testbed) => testbed?,
        Err(signal) => return Ok(End::by(signal)),
    };
    let end = work(&testbed, signals).await;
    testbed.shutdown().await;
    end
}

async fn testbed(nodes: usize, server: Option<&Path>) -> Result<Testbed, Failure> {
    let mut builder = Testbed::builder().nodes(nodes);
    if let Some(server) = server {
        builder = builder.server(server);
    }
    builder.start().await.map_err(|error| {
        let code = match error {
            TestbedError::NoNodes => exit::USAGE,
            _ => exit::NO_QUORUM,
        };
        Failure::new(code, format!("testbed: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_separated_by_commas_and_blanks_but_not_in_passwords() {
        for (list, urls) in [
            ("redis://a", &["redis://a"][..]),
            ("redis://a,redis://b", &["redis://a", "redis://b"]),
            (" redis://a ,, redis://b,\n", &["redis://a", "redis://b"]),
            ("redis://:p,w@a,redis://b", &["redis://:p,w@a", "redis://b"]),
            ("a b", &["a", "b"]),
            (" , ", &[]),
        ] {
            assert_eq!(split(list), urls, "{list:?}");
        }
    }
}
