//! The URL of a node.

use std::path::PathBuf;
use std::sync::Arc;

use fred::types::config::{Config, Server, ServerConfig};
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use crate::options::ConfigError;

const ENCODED: &str = "write %2F for a '/' in a password";
const DEFAULT_PORT: u16 = 6379;
#[cfg(not(feature = "tls"))]
pub(super) const NEEDS_TLS: &str = "TLS needs quorlock's feature \"tls\", which this build does not have";
pub(super) const NOT_ONE_MASTER: &str =
    "each node must be one independent master, not a cluster or a sentinel";

/// Reads a URL into a configuration of the client library. The error shows the URL without its credentials.
pub(super) fn read(text: &str) -> Result<Config, ConfigError> {
    let wrong = |reason: String| ConfigError::Url {
        shown: redacted(text),
        reason: reason.into(),
    };
    if text.trim().is_empty() {
        return Err(wrong("it is empty".into()));
    }
    match text.matches("://").count() {
        0 if text.contains("//") => {
            return Err(wrong("no ':' before the \"//\"; write redis://host:port".into()));
        }
        0 => return Err(wrong("no scheme; write redis://host:port".into())),
        1 => {}
        _ => {
            return Err(wrong(
                "this is more than one URL; separate URLs by commas or blanks, and write %2F for a '/' in a password".into(),
            ));
        }
    }
    if has_bare_ipv6(text) {
        return Err(wrong("an IPv6 address needs brackets: redis://[::1]:6379".into()));
    }
    let url = Url::parse(text).map_err(|error| match text.contains('@') {
        true => wrong(format!("{error}; {ENCODED}, %40 for a '@', %3A for a ':'")),
        false => wrong(error.to_string()),
    })?;
    parse(text, &url).map_err(wrong)
}

fn parse(text: &str, url: &Url) -> Result<Config, String> {
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

fn over_tcp(text: &str, url: &Url, tls: bool) -> Result<Config, String> {
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
        path if path.contains('@') => {
            return Err(format!(
                "the part after the '/' is not the number of a database; {ENCODED}"
            ));
        }
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
    if tls { encrypted(config) } else { Ok(config) }
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

fn over_unix(url: &Url) -> Result<Config, String> {
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
    Ok(config)
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
        .map_err(|_| "the part after the '/' is not the number of a database, from 0 to 255".into())
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
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.:/".contains(c);
    if !scheme.chars().all(is_scheme) || scheme.matches(':').count() > 1 {
        return "***".into();
    }
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
        None if path_is_shown => format!("{scheme}{head}").into(),
        None => format!("{scheme}{}", without_password(&host(head))).into(),
    }
}

/// Shows what stands behind the first colon only if it is a port: if the host is missing, it is a password.
fn without_password(authority: &str) -> String {
    match authority.split_once(':') {
        Some((name, behind)) if !name.starts_with('[') && !behind.chars().all(|c| c.is_ascii_digit()) => {
            format!("{name}:***")
        }
        _ => authority.to_owned(),
    }
}
