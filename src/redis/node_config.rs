//! How to reach a server: URLs, and ready-made configurations of the client library.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fred::types::config::{Config, Server, ServerConfig};
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::credentials::CredentialsProvider;
use super::fault;
use crate::node::Fault;
use crate::options::ConfigError;

const DEFAULT_PORT: u16 = 6379;
#[cfg(not(feature = "tls"))]
pub(super) const NEEDS_TLS: &str = "TLS needs quorlock's feature \"tls\", which this build does not have";

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
        let wrong = |reason: String| ConfigError::Url {
            shown: redacted(text),
            reason: reason.into(),
        };
        if text.trim().is_empty() {
            return Err(wrong("it is empty".into()));
        }
        if !text.contains(':')
            || text
                .split(':')
                .next()
                .is_some_and(|host| host.contains('.') || host == "localhost")
        {
            return Err(wrong("no scheme; write redis://host:port".into()));
        }
        if has_bare_ipv6(text) {
            return Err(wrong("an IPv6 address needs brackets: redis://[::1]:6379".into()));
        }
        let url = Url::parse(text).map_err(|error| match text.contains('@') {
            true => wrong(format!(
                "{error}; write %2F for a '/' in a password, %40 for a '@', %3A for a ':'"
            )),
            false => wrong(error.to_string()),
        })?;
        parse(text, &url).map_err(wrong)
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

const NOT_ONE_MASTER: &str = "each node must be one independent master, not a cluster or a sentinel";

fn parse(text: &str, url: &Url) -> Result<NodeConfig, String> {
    match url.scheme() {
        "redis" | "valkey" => over_tcp(text, url, false),
        "rediss" | "valkeys" => over_tcp(text, url, true),
        "redis+unix" | "valkey+unix" | "unix" => over_unix(url),
        scheme if scheme.contains("cluster") || scheme.contains("sentinel") => Err(NOT_ONE_MASTER.into()),
        scheme => Err(format!(
            "unknown scheme {scheme:?}; known are redis, rediss, valkey, valkeys and redis+unix"
        )),
    }
}

fn over_tcp(text: &str, url: &Url, tls: bool) -> Result<NodeConfig, String> {
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => decoded(name)?,
        Some(Host::Ipv4(ip)) => ip.to_string(),
        Some(Host::Ipv6(ip)) => ip.to_string(),
        _ => return Err("it has no host".into()),
    };
    if let Some((name, _)) = url.query_pairs().next() {
        return Err(unknown_parameter(&name));
    }
    refuse_fragment(url)?;
    let database = match url.path().trim_matches('/') {
        "" => None,
        number => Some(database(number)?),
    };
    let username = Some(decoded(url.username())?).filter(|name| !name.is_empty());
    // The parser drops an empty password.
    if url.password().is_none() && text.split(['/', '?', '#']).any(|part| part.contains(":@")) {
        given(String::new())?;
    }
    let password = url.password().map(decoded).transpose()?;
    let port = url.port().unwrap_or(DEFAULT_PORT);
    let config = Config {
        server: ServerConfig::Centralized {
            server: Server::new(host, port),
        },
        username,
        password,
        database,
        ..Config::default()
    };
    named(if tls { encrypted(config)? } else { config })
}

#[cfg(feature = "tls")]
fn encrypted(config: Config) -> Result<Config, String> {
    let connector = super::tls::TlsOptions::default()
        .connector()
        .map_err(|error| error.to_string())?;
    Ok(Config {
        tls: Some(connector.into()),
        ..config
    })
}

#[cfg(not(feature = "tls"))]
fn encrypted(_: Config) -> Result<Config, String> {
    Err(NEEDS_TLS.into())
}

fn over_unix(url: &Url) -> Result<NodeConfig, String> {
    if url.host_str().is_some_and(|host| !host.is_empty()) {
        return Err("a socket's path is absolute: redis+unix:///path/to/socket".into());
    }
    let path = decoded(url.path())?;
    if path.trim_matches('/').is_empty() {
        return Err("it has no path".into());
    }
    refuse_fragment(url)?;
    let mut config = Config {
        server: ServerConfig::Unix {
            path: PathBuf::from(path),
        },
        ..Config::default()
    };
    for (name, value) in url.query_pairs() {
        match &*name {
            "db" => config.database = Some(database(&value)?),
            "username" => config.username = Some(value.into_owned()),
            "password" => config.password = Some(given(value.into_owned())?),
            _ => return Err(unknown_parameter(&name)),
        }
    }
    named(config)
}

fn named(config: Config) -> Result<NodeConfig, String> {
    let name = name_of(&config).ok_or(NOT_ONE_MASTER)?;
    Ok(NodeConfig::new(name, config))
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

/// Returns whether the host is an IPv6 address without brackets.
fn has_bare_ipv6(text: &str) -> bool {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.matches(':').count() > 1 && host.chars().all(|c| c == ':' || c.is_ascii_hexdigit())
}

/// Refuses an empty password, which most likely comes from a variable that is not set.
fn given(password: String) -> Result<String, String> {
    match password.is_empty() {
        true => Err("an empty password; leave it out for a server without one".into()),
        false => Ok(password),
    }
}

fn refuse_fragment(url: &Url) -> Result<(), String> {
    match url.fragment() {
        Some(_) => Err("it contains a '#'; write %23 for one in a password".into()),
        None => Ok(()),
    }
}

fn database(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| "the database is not a number from 0 to 255".into())
}

/// Shows only well-known names: another name may be part of a password with a '?' or '&' that is not encoded.
fn unknown_parameter(name: &str) -> String {
    const KNOWN_ELSEWHERE: [&str; 5] = [
        "protocol",
        "client_name",
        "timeout",
        "ssl_cert_reqs",
        "sentinelServiceName",
    ];
    match KNOWN_ELSEWHERE.iter().find(|known| **known == name) {
        Some(name) => format!("unknown parameter {name:?}"),
        None => "unknown parameter; write %3F for a '?' and %26 for a '&' in a password".into(),
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let bytes = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| "its percent-encoding is not UTF-8")?;
    Ok(bytes.into_owned())
}

/// Returns what may be shown of a URL, also of a malformed one: scheme, host and port, or a socket's path; no part of a password.
fn redacted(text: &str) -> Arc<str> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    let path_is_shown = scheme.contains("unix");
    let head = rest.split(['?', '#']).next().unwrap_or_default();
    let host = |text: &str| -> String {
        if path_is_shown {
            text.into()
        } else {
            text.split('/').next().unwrap_or_default().into()
        }
    };
    match head.rsplit_once('@') {
        Some((_, after)) => format!("{scheme}***@{}", host(after)).into(),
        // The host is missing ("redis://:secret"), or a '/', '?' or '#' in a password is not encoded.
        None if head.starts_with(':') || rest.contains('@') => format!("{scheme}***").into(),
        None => format!("{scheme}{}", host(head)).into(),
    }
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
    fn what_cannot_be_used_is_refused_by_name_and_without_secrets() {
        for (url, reason) in [
            ("", "empty"),
            ("10.0.0.1:6379", "no scheme; write redis://host:port"),
            ("localhost:6379", "no scheme"),
            ("db1", "no scheme"),
            ("redis://:s3/SECRET@h", "write %2F"),
            ("h:6379", "unknown scheme \"h\""),
            ("http://h:1", "unknown scheme \"http\""),
            ("redis-cluster://h", "not a cluster or a sentinel"),
            (
                "redis-sentinel://h?sentinelServiceName=m",
                "not a cluster or a sentinel",
            ),
            ("redis://", "no host"),
            ("redis:///3", "no host"),
            ("redis://h:99999", "invalid port number"),
            ("redis://h/x", "not a number from 0 to 255"),
            ("redis://h/300", "not a number from 0 to 255"),
            ("redis://h?protocol=resp3", "unknown parameter \"protocol\""),
            ("redis://user@h", "a user name without a password"),
            ("redis://:SECRET#x@h", ""),
            ("redis://:SECRET", ""),
            ("redis://u:SECRET?@h", ""),
            ("redis://user:123/SECRET@db1:6379", "not a number"),
            ("redis://user:1?SECRET@h", "unknown parameter"),
            ("redis://tok?SECRET@h", "unknown parameter"),
            ("redis://u:12/SECRET", "not a number"),
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
