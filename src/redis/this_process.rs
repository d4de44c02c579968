//! The description of this process in its registrations.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Registrations are split at spaces.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Returns executable, host and process id, encoded as one word.
pub(super) fn describe() -> String {
    let executable = std::env::current_exe().ok();
    let executable = executable.as_deref().and_then(|path| path.file_name());
    let executable = executable.map_or("unknown".into(), |name| name.to_string_lossy());
    let text = format!("{executable} on {} (pid {})", host(), std::process::id());
    utf8_percent_encode(&text, ESCAPED).to_string()
}

/// Decodes a description.
pub(super) fn readable(description: &str) -> String {
    percent_decode_str(description).decode_utf8_lossy().into_owned()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn host() -> String {
    std::env::var("HOSTNAME").unwrap_or_else(|_| "unknown host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_one_word_and_can_be_read() {
        let described = describe();
        assert!(!described.contains(' '), "{described}");
        let pid = std::process::id();
        assert!(
            readable(&described).ends_with(&format!("(pid {pid})")),
            "{described}"
        );
    }
}
