//! How to reach a server: from a URL, or from a ready-made configuration of the client library.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fred::types::config::{Config, ServerConfig};

use super::credentials::CredentialsProvider;
use super::fault;
use super::node_url::{self, NOT_ONE_MASTER};
use crate::node::Fault;
use crate::options::ConfigError;

/// How to reach one node: its address and credentials.
///
/// | URL | |
/// |---|---|
/// | `redis://host:6379/0` | also `valkey://`; port and database may be left out |
/// | `redis://user:password@host`, `redis://:password@host` | percent-encoded where needed |
/// | `redis://[::1]:6379` | IPv6 |
/// | `rediss://host:6380` | TLS (feature `tls`); also `valkeys://` |
/// | `redis+unix:///run/redis.sock?db=1&username=u&password=p` | also `unix://` |
///
/// Anything else is refused: an unknown scheme or parameter, a cluster, a sentinel. `Debug` shows no credentials.
#[derive(Clone)]
pub struct NodeConfig {
    name: Arc<str>,
    config: Config,
    credentials: Option<CredentialsProvider>,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::TlsOptions>,
}

impl NodeConfig {
    /// Reads a URL. A URL with a user name and no password needs [`with_credentials`](Self::with_credentials).
    ///
    /// # Errors
    /// [`ConfigError::Url`] with the reason, and the URL without its credentials.
    pub fn from_url(text: &str) -> Result<Self, ConfigError> {
        NodeConfig::from_fred(node_url::read(text)?)
    }

    /// Takes a configuration of the `fred` client, for settings that a URL cannot have.
    ///
    /// Server, user, password, database, rustls connector and `tls_server_name` are used. Connections for locks ignore the rest,
    /// for instance the version of the protocol. A connector of native-tls is refused when connecting.
    ///
    /// # Errors
    /// [`ConfigError::Url`] if it does not name one single server.
    pub fn from_fred(config: Config) -> Result<Self, ConfigError> {
        let name = name_of(&config).ok_or_else(|| ConfigError::Url {
            shown: "fred configuration".into(),
            reason: NOT_ONE_MASTER.into(),
        })?;
        Ok(NodeConfig::new(name, config))
    }

    fn new(name: Arc<str>, config: Config) -> Self {
        NodeConfig {
            name,
            config,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Asks the provider for credentials for each connection. They replace those in the URL or the `fred` configuration.
    pub fn with_credentials(mut self, provider: CredentialsProvider) -> Self {
        self.credentials = Some(provider);
        self
    }

    /// Refuses a user name without a password.
    pub(crate) fn check(self) -> Result<Self, ConfigError> {
        match (&self.config.username, &self.config.password, &self.credentials) {
            (Some(_), None, None) => Err(ConfigError::Url {
                shown: self.name,
                reason: "a user name without a password; write redis://:password@host for the default user"
                    .into(),
            }),
            _ => Ok(self),
        }
    }

    /// Returns the address without credentials, as messages show it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns whether connections are encrypted.
    #[cfg(feature = "tls")]
    pub fn uses_tls(&self) -> bool {
        self.config.tls.is_some()
    }

    /// Uses these certificates in place of the system's. Has no effect on connections that are not encrypted.
    ///
    /// Files are read now, which blocks, and again in the background for each connection.
    ///
    /// # Errors
    /// [`TlsError`](crate::TlsError) if a certificate or key cannot be read.
    #[cfg(feature = "tls")]
    pub fn with_tls(mut self, options: &super::tls::TlsOptions) -> Result<Self, super::tls::TlsError> {
        if self.uses_tls() {
            self.config.tls = Some(options.connector()?.into());
            self.tls = Some(options.clone()).filter(super::tls::TlsOptions::has_files);
        }
        Ok(self)
    }

    /// Returns the settings from the URL. The credentials and certificates in them may be outdated.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the configuration with current credentials and certificates, and how long the credentials are valid.
    pub(super) async fn current(&self) -> Result<(Config, Option<Duration>), Fault> {
        #[allow(unused_mut)]
        let (mut config, valid_for) = self.with_current_credentials().await?;
        #[cfg(feature = "tls")]
        if let Some(options) = self.tls.clone() {
            let read = super::blocking::on_a_thread(move || options.connector()).await;
            let connector = read.and_then(|read| read.map_err(|error| error.to_string()));
            let connector = connector.map_err(|reason| fault::disconnected(reason.into()))?;
            config.tls = Some(connector.into());
        }
        Ok((config, valid_for))
    }

    /// Does the same, but keeps the certificates.
    pub(super) async fn with_current_credentials(&self) -> Result<(Config, Option<Duration>), Fault> {
        let mut config = self.config.clone();
        let mut valid_for = None;
        if let Some(provider) = &self.credentials {
            let given = provider.provide().await.map_err(|reason| {
                let reason = format!("no credentials: {reason}");
                fault::disconnected(reason.into())
            })?;
            config.username = given.username.or(config.username);
            config.password = Some(given.password);
            valid_for = given.valid_for;
        }
        Ok((config, valid_for))
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn name_of(config: &Config) -> Option<Arc<str>> {
    let address = match &config.server {
        ServerConfig::Centralized { server } if server.host.contains(':') => {
            format!("[{}]:{}", server.host, server.port)
        }
        ServerConfig::Centralized { server } => format!("{}:{}", server.host, server.port),
        ServerConfig::Unix { path } => path.display().to_string(),
        _ => return None,
    };
    Some(match config.database {
        Some(database) if database > 0 => format!("{address}/{database}").into(),
        _ => address.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        NodeConfig::from_url(url)
            .unwrap_or_else(|error| panic!("{error}"))
            .config
    }

    fn tcp(url: &str) -> (String, u16) {
        match config(url).server {
            ServerConfig::Centralized { server } => (server.host.to_string(), server.port),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(tcp("redis://db1.example"), ("db1.example".into(), 6379));
        assert_eq!(tcp("valkey://10.0.0.1:7000"), ("10.0.0.1".into(), 7000));
        assert_eq!(tcp("redis://[::1]:7001/3"), ("::1".into(), 7001));
        assert_eq!(config("redis://h/3").database, Some(3));
        assert_eq!(
            &**NodeConfig::from_url("redis://:pw@[::1]/2").unwrap().name(),
            "[::1]:6379/2"
        );
    }

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let url = "redis://us%65r:p%40ss%3Aw@h:1";
        let parsed = config(url);
        assert_eq!(parsed.username.as_deref(), Some("user"));
        assert_eq!(parsed.password.as_deref(), Some("p@ss:w"));
        let node = NodeConfig::from_url(url).unwrap();
        assert_eq!(
            format!("{node:?} {}", node.name()),
            "NodeConfig { name: \"h:1\", .. } h:1"
        );
        assert_eq!(config("redis://:pw@h").password.as_deref(), Some("pw"));
        assert_eq!(config("redis://:pw@h").username, None);
    }

    #[test]
    fn sockets() {
        for url in [
            "redis+unix:///run/r.sock?db=2&password=p%40",
            "unix:///run/r.sock?password=p%40&db=2",
        ] {
            let parsed = config(url);
            assert!(
                matches!(parsed.server, ServerConfig::Unix { ref path } if path.as_os_str() == "/run/r.sock")
            );
            assert_eq!(
                (parsed.database, parsed.password.as_deref()),
                (Some(2), Some("p@"))
            );
        }
    }

    #[test]
    fn unusable_urls_are_refused_with_the_reason_and_without_secrets() {
        for (url, reason) in [
            ("", "empty"),
            ("10.0.0.1:6379", "no scheme; write redis://host:port"),
            ("localhost:6379", "no scheme"),
            ("db1", "no scheme"),
            ("redis://:s3/SECRET@h", "write %2F"),
            ("h:6379", "no scheme"),
            ("redis//:SECRET@h", "no ':' before"),
            ("redis://user:SECRET", "invalid port number"),
            ("redis://u:SECRET/x", "invalid port number"),
            ("app:SECRET", "no scheme"),
            ("redis://u:SECRET:1", "invalid port number"),
            ("app:SECRET@a;redis://b;redis://c", "more than one URL"),
            ("redis://u:SECRET@a;redis://b", "separate URLs"),
            ("http://h:1", "unknown scheme \"http\""),
            ("redis-cluster://h", "not a cluster or a sentinel"),
            (
                "redis-sentinel://h?sentinelServiceName=m",
                "not a cluster or a sentinel",
            ),
            ("redis://", "no host"),
            ("redis:///3", "no host"),
            ("redis://h:99999", "invalid port number"),
            ("redis://h/x", "not the number of a database"),
            ("redis://h/300", "not the number of a database"),
            ("redis://h?protocol=resp3", "unknown parameter \"protocol\""),
            ("redis://user@h", "a user name without a password"),
            ("redis://:SECRET#x@h", ""),
            ("redis://:SECRET", ""),
            ("redis://u:SECRET?@h", ""),
            ("redis://user:123/SECRET@db1:6379", "write %2F"),
            ("redis://user:1?SECRET@h", "unknown parameter"),
            ("redis://tok?SECRET@h", "unknown parameter"),
            ("redis://u:12/SECRET", "not the number"),
            ("unix:///r.sock?password=abc&SECRET", "unknown parameter"),
            ("unix:///r.sock?x=1&password=@SECRET", "unknown parameter"),
            ("redis://u:SECRET@h:port", "invalid port number"),
            ("redis://::1:6379", "needs brackets: redis://[::1]:6379"),
            ("redis://:SECRET@fe80::1:6379/2", "needs brackets"),
            ("redis://:@h", "an empty password"),
            ("redis://u:@h/1", "an empty password"),
            ("unix:///r.sock?password=", "an empty password"),
            ("redis+unix://host/path", "absolute"),
            ("unix:///", "no path"),
            ("unix:///r.sock?password=SECRET&x=1", "unknown parameter"),
        ] {
            let checked = NodeConfig::from_url(url).and_then(NodeConfig::check);
            let error = checked.expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_says_so() {
        assert!(
            NodeConfig::from_url("rediss://h")
                .unwrap_err()
                .to_string()
                .contains("feature \"tls\"")
        );
    }

    #[test]
    fn ready_made_configurations_name_one_server() {
        assert_eq!(
            &**NodeConfig::from_fred(Config::default()).unwrap().name(),
            "127.0.0.1:6379"
        );
        let cluster = Config {
            server: ServerConfig::new_clustered(vec![("h", 1)]),
            ..Config::default()
        };
        assert!(
            NodeConfig::from_fred(cluster)
                .unwrap_err()
                .to_string()
                .contains("not a cluster")
        );
    }
}
