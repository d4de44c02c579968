//! What a server says of itself in `INFO`.

use std::collections::HashMap;

/// The fields of an `INFO`, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    pub(crate) fn read(text: &str) -> Info {
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Info(
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// Returns a field. `None` if the server does not have it.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns a field that is a number. `None` for anything else.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the server's own version. Valkey's `redis_version` is always 7.2.4, the Redis that it is compatible with.
    pub(crate) fn version(&self) -> Option<&str> {
        self.text("valkey_version").or_else(|| self.text("redis_version"))
    }
}
