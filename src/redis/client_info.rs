//! Clients' descriptions of themselves, as they stand in registrations: one word.

use std::fmt::Write;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::node::{ClientInfo, LocalClient};

/// Registrations are split at blanks, descriptions at `&` and `=`.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'&').add(b'=');
/// The word of a client that does not tell who it is.
const ANONYMOUS: &str = "-";

/// Returns the description of this process. `name` replaces the executable's.
pub(crate) fn this_process(name: Option<String>) -> ClientInfo {
    let executable = || {
        let path = std::env::current_exe().ok();
        let name = path.as_deref().and_then(|path| path.file_name());
        name.map_or_else(
            || "unknown".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    ClientInfo {
        name: name.unwrap_or_else(executable),
        host: host(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        locks: 0,
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn host() -> String {
    std::env::var("HOSTNAME").unwrap_or_else(|_| "unknown host".to_owned())
}

/// Returns the name of this client's connections in `CLIENT LIST`, where blanks are not allowed.
pub(super) fn connection_name(client: &LocalClient) -> String {
    let Some(info) = &client.info else {
        return "quorlock".to_owned();
    };
    let shown = |c: char| if c.is_ascii_graphic() { c } else { '_' };
    let name: String = info.name.chars().map(shown).collect();
    format!("quorlock/{name}/{}", client.id)
}

/// Encodes a description as one word. `locks` is how many locks the client holds now.
pub(super) fn encode(info: Option<&ClientInfo>, locks: usize) -> String {
    let Some(info) = info else {
        return ANONYMOUS.to_owned();
    };
    let text = |text: &str| utf8_percent_encode(text, ESCAPED).to_string();
    let mut word = String::new();
    let _ = write!(
        word,
        "name={}&host={}&pid={}&version={}&locks={locks}",
        text(&info.name),
        text(&info.host),
        info.pid,
        text(&info.version),
    );
    word
}

/// Decodes a description. `None` if the client does not tell who it is, or tells it in another way.
pub(super) fn decode(word: &str) -> Option<ClientInfo> {
    let mut info = ClientInfo::default();
    for field in word.split('&') {
        let (name, value) = field.split_once('=')?;
        // Another client wrote it: a terminal would act on control characters.
        let shown = |c: char| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        };
        let text = || {
            percent_decode_str(value)
                .decode_utf8_lossy()
                .chars()
                .map(shown)
                .collect()
        };
        match name {
            "name" => info.name = text(),
            "host" => info.host = text(),
            "pid" => info.pid = value.parse().ok()?,
            "version" => info.version = text(),
            "locks" => info.locks = value.parse().ok()?,
            // A later version tells more.
            _ => {}
        }
    }
    Some(info)
}

/// Returns a description for people.
pub(super) fn readable(word: &str) -> String {
    match decode(word) {
        Some(info) => info.to_string(),
        None if word == ANONYMOUS => "a client that does not tell who it is".to_owned(),
        None => percent_decode_str(word).decode_utf8_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_one_word_and_can_be_read() {
        let odd = ClientInfo {
            name: "a b&c=d%20".into(),
            host: "höst".into(),
            pid: 7,
            version: "1".into(),
            locks: 3,
        };
        let word = encode(Some(&odd), 3);
        assert!(!word.contains(|c: char| c.is_whitespace()), "{word}");
        assert_eq!(decode(&word), Some(odd));
        assert_eq!(decode(&format!("{word}&later=x")).map(|info| info.pid), Some(7));
        let odd = ClientInfo {
            name: "\u{1b}[2J\nx".into(),
            ..ClientInfo::default()
        };
        let name = decode(&encode(Some(&odd), 0)).unwrap().name;
        assert_eq!(name, "\u{fffd}[2J\u{fffd}x");
        let own = this_process(None);
        assert_eq!(readable(&encode(Some(&own), 0)), own.to_string());
        assert_eq!(this_process(Some("billing".into())).name, "billing");
    }

    #[test]
    fn connections_have_names_that_servers_accept() {
        let id = crate::node::ClientId::new(0xab);
        let info = Some(this_process(Some("a b\n".into())));
        assert_eq!(
            connection_name(&LocalClient { id, info }),
            "quorlock/a_b_/00000000ab"
        );
        assert_eq!(connection_name(&LocalClient { id, info: None }), "quorlock");
    }

    #[test]
    fn a_client_may_hide_who_it_is() {
        assert_eq!(decode(&encode(None, 3)), None);
        assert_eq!(readable("-"), "a client that does not tell who it is");
        assert_eq!(readable("worker%20on%20a"), "worker on a");
        for damaged in ["", "name", "pid=x&host=h"] {
            assert_eq!(decode(damaged), None, "{damaged}");
        }
    }
}
