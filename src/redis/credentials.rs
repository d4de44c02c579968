//! User names and passwords that change while connections live.

use std::env::VarError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::blocking::on_a_thread;

/// Credentials are not renewed more often, however short their validity.
pub(super) const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// Returns after how long credentials with this validity are renewed.
pub(super) fn renewed_after(valid_for: Duration) -> Duration {
    (valid_for / 5 * 4).max(SHORTEST_PERIOD)
}

/// A user name and a password.
///
/// `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: String,
    pub(super) valid_for: Option<Duration>,
}

impl Credentials {
    /// Takes a password for the user in the node's URL, or for the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Credentials {
            username: None,
            password: password.into(),
            valid_for: None,
        }
    }

    /// Takes a user name and its password.
    pub fn user(username: impl Into<String>, password: impl Into<String>) -> Self {
        Credentials {
            username: Some(username.into()),
            ..Credentials::password(password)
        }
    }

    /// Sets how long these credentials are valid, from when the provider returns them. By default, as long as a connection lives.
    ///
    /// Live connections get new credentials after four fifths of this time, but at least a second. Connections for locks
    /// authenticate again; connections for announcements are replaced.
    pub fn valid_for(mut self, valid_for: Duration) -> Self {
        self.valid_for = Some(valid_for);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

type Answer = Result<Credentials, String>;

/// Returns a node's credentials for each new connection. Use it for passwords that are rotated, and tokens that expire.
///
/// If the provider fails, the node is out of reach for that reason. The next attempt to connect calls the provider again. A
/// provider also fails if it panics, or takes longer than the [`connect_timeout`](crate::RedlockBuilder::connect_timeout). If a
/// live connection cannot get new credentials, it stays in use, and a warning is logged.
///
/// ```
/// use std::time::Duration;
/// use quorlock::{Credentials, CredentialsProvider, NodeConfig};
///
/// # async fn token() -> Result<String, std::io::Error> { Ok("token".into()) }
/// # fn example() -> Result<(), quorlock::ConfigError> {
/// let from_a_file = CredentialsProvider::file("/run/secrets/redis");
/// let node = NodeConfig::from_url("redis://locker@db1:6379")?.with_credentials(from_a_file);
///
/// let short_lived = CredentialsProvider::from_fn(|| async {
///     Ok::<_, std::io::Error>(Credentials::password(token().await?).valid_for(Duration::from_secs(900)))
/// });
/// let node = NodeConfig::from_url("redis://locker@db1:6379")?.with_credentials(short_lived);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CredentialsProvider(Arc<dyn Fn() -> BoxFuture<'static, Answer> + Send + Sync>);

impl CredentialsProvider {
    /// Calls `provide` for each connection, on the runtime that the manager was connected on.
    /// [`registrations`](crate::RedlockBuilder::registrations) calls it on the caller's runtime. Calls for several nodes may run
    /// at the same time. The future may be dropped at any point.
    pub fn from_fn<F, P, E>(provide: F) -> Self
    where
        F: Fn() -> P + Send + Sync + 'static,
        P: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        CredentialsProvider(Arc::new(move || {
            provide()
                .map(|given| given.map_err(|error| error.to_string()))
                .boxed()
        }))
    }

    /// Reads the password from a file for each connection. Line ends at its end are left out. An empty file is an error.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        CredentialsProvider::from_fn(move || {
            let path = path.clone();
            async move {
                let shown = path.display().to_string();
                let read = on_a_thread(move || std::fs::read_to_string(path)).await?;
                let text = read.map_err(|error| format!("{shown}: {error}"))?;
                match text.trim_end_matches(['\r', '\n']) {
                    "" => Err(format!("{shown} is empty")),
                    password => Ok(Credentials::password(password)),
                }
            }
        })
    }

    /// Reads the password from an environment variable for each connection. A missing or empty variable is an error.
    pub fn env(name: impl Into<String>) -> Self {
        let name = name.into();
        CredentialsProvider::from_fn(move || {
            let read = match std::env::var(&name) {
                Ok(password) if password.is_empty() => Err(format!("{name} is empty")),
                Ok(password) => Ok(Credentials::password(password)),
                Err(VarError::NotPresent) => Err(format!("{name} is not set")),
                // The error's own text would show the value.
                Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
            };
            std::future::ready(read)
        })
    }

    pub(super) async fn provide(&self) -> Answer {
        // A panic must not end the node's task.
        let given = AssertUnwindSafe(async { (self.0)().await }).catch_unwind().await;
        given.unwrap_or_else(|_| Err("the provider panicked".into()))
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_renewed_before_they_expire_and_at_most_once_a_second() {
        let seconds = Duration::from_secs;
        assert_eq!(renewed_after(seconds(900)), seconds(720));
        assert_eq!(renewed_after(Duration::ZERO), seconds(1));
        assert!(renewed_after(Duration::MAX) < Duration::MAX);
    }

    #[tokio::test]
    async fn a_provider_that_panics_has_failed() {
        let at_once = CredentialsProvider::from_fn(|| -> std::future::Ready<Answer> { panic!("at once") });
        let later = CredentialsProvider::from_fn(|| async {
            tokio::task::yield_now().await;
            match std::env::args().count() {
                0 => Ok(Credentials::password("")),
                _ => Err(panicking()),
            }
        });
        for provider in [at_once, later] {
            assert_eq!(provider.provide().await, Err("the provider panicked".to_owned()));
        }
    }

    fn panicking() -> String {
        panic!("later")
    }
}
