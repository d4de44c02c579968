//! Which nodes, and connecting to them.

use quorlock::testbed::{Testbed, TestbedError};
use quorlock::{ConnectError, NodeConfig, Redlock, RedlockBuilder};

use crate::args::Nodes;
use crate::exit::{self, Failure};

/// Holds the nodes' URLs.
pub(crate) const VARIABLE: &str = "QUORLOCK_NODES";

/// The URLs: from the options, else from the environment.
pub(crate) fn urls(nodes: &Nodes) -> Result<Vec<String>, Failure> {
    if !nodes.node.is_empty() {
        return Ok(nodes.node.clone());
    }
    let listed = std::env::var(VARIABLE).unwrap_or_default();
    let urls: Vec<String> = listed
        .split(|separator: char| separator == ',' || separator.is_whitespace())
        .filter(|url| !url.is_empty())
        .map(str::to_owned)
        .collect();
    if urls.is_empty() {
        return Err(Failure::usage(format!(
            "no nodes: name them with --node URL (once for each) or in the variable {VARIABLE}; \
             `quorlock run --testbed` and `quorlock testbed` use local ones to try things out"
        )));
    }
    Ok(urls)
}

/// The settings with which to connect to these nodes.
pub(crate) fn builder(nodes: &Nodes, urls: &[String]) -> Result<RedlockBuilder, Failure> {
    let configure = |url: &String| with_tls(nodes, NodeConfig::from_url(url).map_err(Failure::usage)?);
    let configs = urls.iter().map(configure).collect::<Result<Vec<_>, _>>()?;
    Ok(configs
        .into_iter()
        .fold(Redlock::builder(), RedlockBuilder::node)
        .connect_timeout(nodes.connect_timeout))
}

#[cfg(feature = "tls")]
fn with_tls(nodes: &Nodes, config: NodeConfig) -> Result<NodeConfig, Failure> {
    use quorlock::TlsOptions;
    use std::path::PathBuf;

    let read = |file: &PathBuf| {
        std::fs::read(file)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
    };
    if !config.uses_tls() || (nodes.tls_ca.is_none() && nodes.tls_cert.is_none()) {
        return Ok(config);
    }
    let mut options = TlsOptions::new();
    if let Some(authorities) = &nodes.tls_ca {
        options = options.ca_pem(read(authorities)?);
    }
    if let (Some(certificate), Some(key)) = (&nodes.tls_cert, &nodes.tls_key) {
        options = options.client_pem(read(certificate)?, read(key)?);
    }
    config.with_tls(&options).map_err(Failure::usage)
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: &Nodes, config: NodeConfig) -> Result<NodeConfig, Failure> {
    Ok(config)
}

/// Why no connection came about, by its exit code.
pub(crate) fn not_connected(error: &ConnectError) -> Failure {
    let code = match error {
        ConnectError::Options(_) => exit::USAGE,
        ConnectError::Misconfigured(_) => exit::MISCONFIGURED,
        ConnectError::NoRuntime => exit::SYSTEM,
        _ => exit::NO_QUORUM,
    };
    Failure::new(code, error.to_string())
}

/// Starts a testbed.
pub(crate) async fn testbed(nodes: usize, server: Option<&std::path::Path>) -> Result<Testbed, Failure> {
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
