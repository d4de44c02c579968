//! Node URLs: any text. Whatever becomes of it, a password is not shown.

use quorlock::NodeConfig;

use super::bytes::Bytes;

/// Neither part of a host's name nor of the library's own words.
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
    // Somewhere between a scheme and a host there is a password, of which nobody has encoded a character.
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

/// What a person may get to see of it.
fn shown(url: &str) -> Vec<String> {
    match NodeConfig::from_url(url) {
        Ok(config) => vec![config.name().to_string(), format!("{config:?}")],
        Err(error) => vec![error.to_string(), format!("{error:?}")],
    }
}
