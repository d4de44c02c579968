//! Node URLs: any text. Neither an accepted nor a refused URL shows its password.

use quorlock::NodeConfig;

use super::bytes::Bytes;

/// Part of no host name, and of no text of the library.
const PASSWORD: &str = "hunter2";

pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let kind = bytes.byte();
    let rest = String::from_utf8_lossy(bytes.0);
    if kind % 2 == 0 {
        let _ = shown(&rest);
        return;
    }
    if rest.contains(PASSWORD) {
        return;
    }
    // The password stands between a scheme and a host, without percent-encoding.
    let mut parts = rest.splitn(3, '\n').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let schemes = [
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "redis+unix",
        "unix",
        "http",
        "",
    ];
    let scheme = schemes[usize::from(kind / 2) % schemes.len()];
    let (user, behind, host) = (part().replace(['/', '@'], ""), part(), part());
    let urls = [
        format!("{scheme}://{user}:{PASSWORD}{behind}@{host}"),
        format!("{scheme}://:{PASSWORD}{behind}"),
        format!("{scheme}:///run/redis.sock?username={user}&password={PASSWORD}{behind}&{host}"),
        format!("{scheme}://{user}?password={PASSWORD}{behind}"),
    ];
    for url in urls {
        for text in shown(&url) {
            assert!(!text.contains(PASSWORD), "{url:?} is shown as {text:?}");
        }
    }
}

/// Returns the texts in which a URL may be shown.
fn shown(url: &str) -> Vec<String> {
    match NodeConfig::from_url(url) {
        Ok(config) => vec![config.name().to_string(), format!("{config:?}")],
        Err(error) => vec![error.to_string(), format!("{error:?}")],
    }
}
